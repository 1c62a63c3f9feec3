"""Devices train with the client's optimizer, local steps and schedule; the server's own code stays on the server."""

from __future__ import annotations

import importlib

import pytest
import torch

import anybit
from anybit.errors import ConfigError
from anybit.training.build import build_task
from tests.fleet.conftest import LocalGrid, fleet, here_and_there, nodes, small


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("overrides", [
    ["client.momentum=0.9", "client.local_steps=3", "client.schedule=linear"],
    ["client.optimizer=adamw", "client.lr=0.01", "client.weight_decay=0.1", "client.prox=0.5"]], ids=" ".join)
def test_devices_train_as_the_sequential_engine(overrides: list[str]) -> None:
    here, there = here_and_there(*overrides)
    assert [m["loss"] for m in there.metrics] == pytest.approx([m["loss"] for m in here.metrics], abs=1e-5)


@pytest.mark.usefixtures("own_models")
def test_the_servers_own_code_stays_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer of the server is none of a device's business; a sampler of fixed clients has none to draw from."""
    module = importlib.import_module("anybit_test_models")
    still = anybit.ServerOptimizer(lambda w: (), lambda state, w, delta, rate: (state, dict(w)))
    monkeypatch.setattr(module, "still", lambda options: still, raising=False)
    monkeypatch.setattr(module, "first", lambda seed, round, clients, size: range(size), raising=False)
    config = small("server.optimizer=anybit_test_models:still")
    start = build_task(config, ["anybit_test_models"]).model.state_dict()
    there = fleet(config, LocalGrid(nodes(4))).train()
    assert all(torch.equal(p, start[name]) for name, p in there.w.items())
    with pytest.raises(ConfigError, match=r"sampling\.policy: a sampler of your own .* devices come and go"):
        fleet(small("sampling.policy=anybit_test_models:first"), LocalGrid(nodes(4)))
