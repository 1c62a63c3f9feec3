"""Flower's own simulation runtime, with the same project: the server model of the sequential engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from anybit.config import from_recipe
from anybit.fleet.project import Project
from anybit.training.build import build_task, settled
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.fleet.deployment import TINY, Deployment, free_port, wait_for
from tests.trainings import trained

pytestmark = [pytest.mark.fleet, pytest.mark.usefixtures("own_models")]


def test_the_simulation_runtime_gives_the_model_of_the_sequential_engine(tmp_path: Path) -> None:
    project = Project("quickstart/mqat", [*TINY, "rounds=2", "cohort=3", "threads=1"], ["any"] * 4, port=free_port(),
                      imports=["anybit_test_models"])
    deployment = Deployment(tmp_path / "project", project)
    run = tmp_path / "run"
    try:
        deployment.call("./flwr.sh", "run", "app", "simulation", "--federation-config", "num-supernodes=4",
                        "-c", f'run="{run}"')
        wait_for((run / "evaluation.json").exists, 400, "the simulation completes")
    finally:
        deployment.shut_down()
    assert deployment.processes() == []
    config = settled(from_recipe(str(deployment.server / "app/fleet_app/recipe.toml")), ["anybit_test_models"])
    here = trained(build_task(config, ["anybit_test_models"]), config)
    there = Run.load(run, trusted=["anybit_test_models"])
    for name, value in RunFolder.open(run).model().items():
        torch.testing.assert_close(value, here.w[name], rtol=0, atol=1e-6)
    assert [m["loss"] for m in there.metrics] == pytest.approx([m["loss"] for m in here.metrics], abs=1e-5)
