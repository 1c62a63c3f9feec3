"""Models on a fleet beyond dense layers that all train."""

from __future__ import annotations

from pathlib import Path

import pytest

import anybit
from anybit.fleet.device import local_task
from anybit.fleet.node import Node
from anybit.fleet.server_app import serve
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import LocalGrid, nodes, small

TRUSTED = ["anybit_test_models"]


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("model", ["frozen", "Pixels"])
def test_devices_that_infer_round_every_weight(tmp_path: Path, model: str) -> None:
    """Frozen weights, which do not travel, as well; the score is what the server measures on the device's examples."""
    config = small("split.clients=5", "rounds=1", f"model.name=anybit_test_models:{model}")
    devices = {**nodes(4), 4: {"width": "W2", "role": "inference", "partition-id": 4}}
    serve(LocalGrid(devices), config, tmp_path / "run", TRUSTED)
    (delivery,) = [e for e in RunFolder(tmp_path / "run").lines("fleet") if e["event"] == "delivery"]
    run = Run.load(tmp_path / "run", trusted=TRUSTED)
    data = local_task(run.config, Node(4), TRUSTED).data
    scores = anybit.evaluate(run.model(), (data.train.x, data.train.y), ["W2"], steps="table", table=run.steps(),
                             pipeline=data.pipeline, sites=run.config.sites)
    assert delivery["devices"][0]["score"] == pytest.approx(scores["W2"].metric, abs=1e-4)
