"""The same recipe, seed and cohort through Flower's messages gives the server model of the sequential engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from anybit.config import from_recipe
from anybit.federated.cohort import build_cohort
from anybit.fleet.training import FleetRounds
from anybit.quant.grid import FLOAT
from anybit.training.course import Training
from anybit.training.run import Run
from anybit.training.run_folder import RunFolder
from tests.fleet.conftest import SMALL, LocalGrid, fleet, here_and_there, listening, nodes, small


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("overrides", [
    [], ["variant.name=apqn", "server.optimizer=yogi"], ["variant.sites=WA", "fleet.calibration=server"],
    ["variant.name=carousel", "variant.sites=WA", "variant.cap=true", "server.schedule=cosine", "server.average=0",
     "fleet.calibration=server", "ranges.follow=true", "ranges.learned=true"],
    *(pytest.param(overrides, marks=pytest.mark.fleet) for overrides in (
        ["cohort=2", "client.epochs=2"], ["weighting=examples"], ["ranges.learned=true"], ["sites.per_channel=true"],
        ["variant.name=kure"], ["server.mean=median"], ["sampling.policy=stratified", "cohort=2"],
        ["variant.name=carousel", "variant.cap=true", "ranges.follow=true", "server.schedule=linear", "server.average=0.9"],
        ["variant.name=carousel", "variant.widths=cohort", "server.schedule=constant", "server.average=0", "cohort=3"]))],
    ids=lambda overrides: " ".join(overrides) or "mqat")
def test_the_server_model_is_that_of_the_sequential_engine(overrides: list[str]) -> None:
    here, there = here_and_there(*overrides)
    assert [m["loss"] for m in there.metrics] == pytest.approx([m["loss"] for m in here.metrics], abs=1e-5)
    own = here.evaluation["own"]
    for width, score in here.evaluation["grid"][own].items():
        if "A" not in width:
            assert there.evaluation["grid"][own][width]["metric"] == pytest.approx(score["metric"], abs=0.3)


@pytest.mark.usefixtures("own_models")
def test_a_fleet_run_is_an_ordinary_run_folder(tmp_path: Path) -> None:
    config = small()
    from anybit.fleet.server_app import serve

    grid = LocalGrid(nodes(4))
    serve(grid, config, tmp_path / "run", ["anybit_test_models"])
    run = Run.load(tmp_path / "run", trusted=["anybit_test_models"])
    assert set(run.evaluate(["W2", "FP32"])) == {"W2", "FP32"}
    assert run.steps().steps["1.weight_quantizer"].shape == (7,)
    folder = RunFolder.open(tmp_path / "run")
    rounds = [line for line in folder.lines("fleet") if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    (device, *_) = rounds[-1]["devices"]
    assert device["seconds"] > 0
    assert device["bytes"] > 4 * 610
    assert 0 <= device["score"] <= 100


@pytest.mark.usefixtures("own_models")
def test_devices_cycle_up_to_their_own_width() -> None:
    """What a device can do is its cap: at 4 bits it trains at 2, 3 and 4, at 2 bits at 2 alone."""
    grid = LocalGrid({client: {"bits": bits} for client, bits in enumerate((2, 4, 8, 32))})
    config = small("variant.name=carousel", "rounds=1", "client.batch_size=16")
    training = fleet(config, grid)
    training.devices.present(4, 4)
    state, table = training.computation.start()
    cohort = FleetRounds(Training(training.computation, 0, state, table), training.devices)(state, 0).cohort
    widths = {client: {b for b in bits[:, 0].tolist() if b != FLOAT or client == 3}
              for client, bits in zip(cohort.clients, cohort.width_bits, strict=True)}
    assert widths == {0: {2}, 1: {2, 3, 4}, 2: {2, 3, 4, 6, 8}, 3: {2, 3, 4, 6, 8, 32}}
    task = training.computation.task
    here = build_cohort(config.seed, 0, cohort.clients, cohort.widths, task.split, config.client, task.variant.step_widths)
    assert torch.equal(cohort.width_bits, here.width_bits)


@pytest.mark.usefixtures("own_models")
def test_devices_train_at_their_own_width() -> None:
    grid = LocalGrid({client: {"bits": bits} for client, bits in enumerate((2, 4, 8, 32))})
    config = small("rounds=1")
    seen = list[dict[str, Any]]()
    training = fleet(config, grid)
    listening(training.devices, seen)
    training.train()
    (round,) = [entry for entry in seen if entry["event"] == "round"]
    assert sorted((d["client"], d["width"]) for d in round["devices"]) == [(0, "W2"), (1, "W4"), (2, "W8"), (3, "FP32")]


@pytest.mark.usefixtures("own_models")
def test_a_fleet_that_may_go_on_delivers_an_average_and_keeps_its_learning_rate(tmp_path: Path) -> None:
    """Unless it is told otherwise; and the same open recipe goes on in its folder."""
    from anybit.fleet.server_app import serve

    def stored(name: str, *overrides: str) -> tuple[str | None, float | None, str | None]:
        config = from_recipe("carousel/digits", [*SMALL, "rounds=2", *overrides])
        serve(LocalGrid(nodes(4)), config, tmp_path / name, ["anybit_test_models"])
        (tmp_path / name / "evaluation.json").unlink()
        serve(LocalGrid(nodes(4)), config, tmp_path / name, ["anybit_test_models"])
        server = RunFolder.open(tmp_path / name).stored_config().server
        return server.schedule, server.average, server.deliver

    assert stored("open") == ("constant", 0.99, "average")
    assert stored("told", "server.schedule=linear", "server.average=0.5") == ("linear", 0.5, "last")
    folder = RunFolder.open(tmp_path / "open")
    kept = folder.load_checkpoint(folder.checkpoints()[-1], torch.device("cpu"))
    assert all(torch.equal(w, kept.average()[name]) for name, w in folder.model().items())
    assert not torch.equal(folder.model()["1.weight"], kept.weights()["1.weight"])
