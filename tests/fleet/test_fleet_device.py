"""The device's side: inference-only devices, data of its own, quantized uplink, and a ClientApp of somebody else's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import ConfigError
from anybit.fleet.client_app import app
from anybit.fleet.device import device_width, local_task, local_update
from anybit.fleet.flower import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from anybit.fleet.node import Node
from anybit.fleet.server_app import serve
from anybit.fleet.wire import to_record
from anybit.quant.grid import Width
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import LocalGrid, fleet, nodes, small


def logged(path: Path, event: str) -> list[dict[str, Any]]:
    return [entry for entry in RunFolder.open(path).lines("fleet") if entry["event"] == event]


def test_a_device_knows_its_width() -> None:
    assert device_width("4", "W") == Width(4, 32)
    assert device_width("4", "WA") == Width(4, 4)
    assert device_width("W4A8", "W") == Width(4, 8)
    assert device_width("", "W") is None


@pytest.mark.usefixtures("own_models")
def test_a_device_keeps_its_width_whatever_the_server_says() -> None:
    run = fleet(small(), LocalGrid(nodes(4)))
    state, table = run.start()
    arrays = {"w": to_record(state.w), "steps": to_record(table.steps)}
    question = run.devices.question(run.devices.roster.present()[0], "train", arrays, Width(8, 32))
    context = Context(1, 100, {"partition-id": 0, "bits": 2}, RecordDict(), {"imports": "anybit_test_models"})
    reply = app(Message(question.content, 100, "train"), context)
    assert reply.content["answer"]["width"] == "W2"


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("overrides", [[], ["variant.name=carousel", "variant.sites=WA"]], ids=["mqat", "carousel"])
def test_inference_only_devices_get_the_model_at_their_width(tmp_path: Path, overrides: list[str]) -> None:
    """They take no part in the training, receive few bytes, and measure what the server would have measured there."""
    devices = {**nodes(4), 4: {"width": "W2", "role": "inference", "partition-id": 0},
               5: {"width": "W8A8", "role": "inference", "partition-id": 1}}
    devices[4]["partition-id"], devices[5]["partition-id"] = 4, 5
    config = small("split.clients=6", "rounds=2", "evaluation.sites=[\"W\", \"WA\"]", *overrides)
    serve(LocalGrid(devices), config, tmp_path / "run", ["anybit_test_models"])
    assert all(set(entry["asked"]) == {0, 1, 2, 3} for entry in logged(tmp_path / "run", "round"))
    (delivery,) = logged(tmp_path / "run", "delivery")
    assert [(d["client"], d["width"]) for d in delivery["devices"]] == [(4, "W2"), (5, "WA8")]
    (training,) = logged(tmp_path / "run", "round")[-1:]
    assert delivery["bytes_down"] / 2 < training["bytes_down"] / 4
    run = Run.load(tmp_path / "run", trusted=["anybit_test_models"])
    for client, width in ((4, "W2"), (5, "WA8")):
        task = local_task(run.config, Node(client), ["anybit_test_models"])
        scores = anybit.evaluate(run.model(), (task.data.train.x, task.data.train.y), [width], steps="table",
                                 table=run.steps(), pipeline=task.data.pipeline, sites=run.config.sites)
        assert delivery["devices"][client - 4]["score"] == pytest.approx(scores[width].metric, abs=1e-4)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("bits", [8, 4])
def test_deltas_can_travel_in_few_bits(tmp_path: Path, bits: int) -> None:
    whole, few = tmp_path / "whole", tmp_path / "few"
    serve(LocalGrid(nodes(4)), small("rounds=2"), whole, ["anybit_test_models"])
    serve(LocalGrid(nodes(4)), small("rounds=2", f"fleet.uplink_bits={bits}"), few, ["anybit_test_models"])
    before, after = (logged(path, "round")[-1]["bytes_up"] for path in (whole, few))
    assert after < before - 4 * (610 * 4 - 610 * bits / 8) + 1000
    first, second = (RunFolder.open(path).lines("metrics")[-1]["loss"] for path in (whole, few))
    assert first == pytest.approx(second, abs=0.05)
    assert first != second


@pytest.mark.usefixtures("own_models")
def test_a_device_may_bring_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "anybit_own_data.py").write_text(
        "import torch\nfrom anybit.data.examples import Data, as_examples\n\n\ndef local():\n"
        "    x, y = torch.randn(12, 1, 8, 8), torch.arange(12) % 10\n"
        "    return Data(as_examples(x, y, 'train'), as_examples(x[:5], y[:5], 'test'))\n")
    task = local_task(small(), Node(77, data="anybit_own_data:local"), ["anybit_test_models"])
    assert (len(task.data.train), len(task.data.test)) == (12, 5)
    with pytest.raises(ConfigError, match="partition-id = 77, but the recipe's split has 4 clients"):
        local_task(small(), Node(77), ["anybit_test_models"])


def test_the_client_update_works_in_a_client_app_of_ones_own(mlp: nn.Module, clients: list[Any]) -> None:
    """The delta is that of `fit` for the same client, round and width."""
    x, y = clients[2]
    w = {name: p.detach() for name, p in mlp.named_parameters()}
    options = anybit.ClientOptions(lr=0.1, batch_size=8)
    delta, loss = local_update(mlp, w, (x, y), width="W4", variant=anybit.qat(4), options=options, seed=5)
    server = anybit.ServerOptions(optimizer="sgd", lr=1.0)
    result = anybit.fit(mlp, [(x, y)], (x, y), anybit.qat(4), rounds=1, cohort=1, seed=5, client=options, server=server)
    for name, p in result.model.named_parameters():
        torch.testing.assert_close(w[name] + delta[name], p.detach())
    assert loss == pytest.approx(result.metrics[0]["loss"])
    assert np.isfinite(loss)


def test_flower_and_torch_are_imported_only_where_they_are_needed() -> None:
    code = "import sys; import {}; print(*(name in sys.modules for name in ('flwr', 'torch')))"
    for module, expected in (("anybit", "False False"), ("anybit.config", "False True"),
                             ("anybit.cli.main", "False False"), ("anybit.fleet.client_app", "True False")):
        done = subprocess.run([sys.executable, "-c", code.format(module)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected, module


def test_the_client_app_in_the_docs_runs(clients: list[Any]) -> None:
    text = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    x, y = clients[1]
    names: dict[str, Any] = {"model": lambda: nn.Sequential(nn.Linear(8, 4)), "x": x, "y": y}
    exec(example, names)
    w = {name: p.detach() for name, p in names["model"]().named_parameters()}
    content = RecordDict({"arrays": ArrayRecord(w), "config": ConfigRecord({"server-round": 1})})
    question = Message(content, 7, "train")
    reply = names["app"](question, Context(1, 7, {"partition-id": 2}, RecordDict(), {}))
    assert reply.content["metrics"]["num-examples"] == 20
    assert reply.content["metrics"]["train_loss"] > 0
    moved = reply.content["arrays"].to_torch_state_dict()
    assert all(not torch.equal(moved[name], w[name]) for name in w)
