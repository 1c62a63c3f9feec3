"""What does not fit into memory is computed in smaller pieces, with the same result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anybit.engines.base import Program
from anybit.engines.stacked import Stacked
from anybit.errors import EngineError
from anybit.federated.state import Trainable
from anybit.federated.variants import Variant, mqat, qat
from anybit.schema import plain
from anybit.sweeps.schedule import GroupRun, _side_by_side, train_group
from anybit.training.course import Watch
from anybit.training.evaluation import Evaluator
from anybit.training.loop import Simulation
from anybit.training.opening import OpenRun
from anybit.training.run_folder import RunFolder
from anybit.training.task import Trained
from tests.test_lockstep import training
from tests.trainings import to_end


@pytest.fixture
def at_most(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A device on which no more than so many clients fit."""
    stacked = Stacked.stacked

    def limit(clients: int) -> None:
        def limited(self: Stacked, update: Any, step: Any, w: Trainable, given: Any, cohort: Any) -> Any:
            if len(next(iter(w.w.values()))) > clients:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return stacked(self, update, step, w, given, cohort)
        monkeypatch.setattr(Stacked, "stacked", limited)
    return limit


def kept(variant: Variant, home: Path, seed: int, rounds: int = 3) -> GroupRun:
    """A run of a sweep, which has a folder."""
    run = training(variant, seed, rounds, every=2)
    folder = RunFolder.create(home / str(seed), plain(run.config), {})
    return GroupRun(str(seed), OpenRun(run.computation, folder, True), Watch())


def same(one: Trained, other: Trained) -> bool:
    return all(torch.allclose(w, other.w[name], atol=1e-9) for name, w in one.w.items()) \
        and [e["round"] for e in one.metrics] == [e["round"] for e in other.metrics] == [1, 2, 3]


def test_a_cohort_is_halved_until_it_fits(at_most: Callable[[int], None]) -> None:
    expected, run, said = to_end(training(mqat(), 1)), training(mqat(), 1), list[str]()
    run.watch.on_message = said.append
    at_most(1)
    assert same(to_end(run), expected)
    assert said[:2] == ["3 clients do not fit into the GPU's memory: computing 2 at a time",
                        "3 clients do not fit into the GPU's memory: computing 1 at a time"]


def test_one_client_that_does_not_fit_ends_the_run(at_most: Callable[[int], None]) -> None:
    at_most(0)
    with pytest.raises(EngineError, match=r"one client alone does not fit .*: lower client\.batch_size, or use device=cpu"):
        to_end(training(mqat(), 1))


@pytest.mark.parametrize("clients", [6, 2], ids=["two runs of three clients", "two of one run's three"])
def test_runs_side_by_side_are_halved_until_they_fit(clients: int, at_most: Callable[[int], None], tmp_path: Path) -> None:
    variants = [mqat(), qat(4), qat(2)]
    expected = [to_end(training(variant, i)) for i, variant in enumerate(variants)]
    together = [kept(variant, tmp_path, i) for i, variant in enumerate(variants)]
    at_most(clients)
    outcomes = dict(train_group(together))
    for run, alone in zip(together, expected, strict=True):
        ended = outcomes[run.name]
        assert isinstance(ended, Trained), ended
        assert same(ended, alone)


def test_one_of_two_that_cannot_begin_leaves_the_other_its_memory(at_most: Callable[[int], None], tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    runs, begin = [kept(mqat(), tmp_path, seed) for seed in (0, 1)], GroupRun.begin
    monkeypatch.setattr(GroupRun, "begin", lambda run: begin(run) if run.name == "0" else (tmp_path / "gone").read_text())
    at_most(2)
    outcomes = dict(train_group(runs))
    assert isinstance(outcomes["1"], FileNotFoundError)
    ended = outcomes["0"]
    assert isinstance(ended, Trained), ended
    assert same(ended, to_end(training(mqat(), 0)))


def test_a_run_that_ended_before_the_memory_did_is_not_trained_again(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    together = [kept(mqat(), tmp_path, seed, rounds) for seed, rounds in enumerate((1, 3, 3))]
    call, calls = Program.__call__, list[int]()

    def scarce(self: Program, *given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return call(self, *given)

    monkeypatch.setattr(Program, "__call__", scarce)
    outcomes = list(_side_by_side(together))
    assert [name for name, _ in outcomes] == ["0", "1", "2"]
    assert [len(ended.metrics) for _, ended in outcomes if isinstance(ended, Trained)] == [1, 3, 3]


def losses(line: dict[str, Any]) -> dict[str, float]:
    """The losses of an evaluation by width, if there was one."""
    return {width: score["loss"] for width, score in line.get("evaluation", {}).get("scores", {}).items()}


@pytest.mark.parametrize("runs", [1, 2])
def test_an_evaluation_gets_the_memory_of_the_round(runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the way and at the end: it does not fit while a round is prepared, and the next round is prepared again."""
    expected = [to_end(training(mqat(), seed, every=2)) for seed in range(runs)]
    together = [kept(mqat(), tmp_path, seed) for seed in range(runs)]
    prepared, programs = list[str](), list[Program]()
    prepare, own, call = Stacked.prepare, Evaluator.own, Program.__call__

    def seen(self: Program, *given: Any) -> Any:
        programs.append(self)
        return call(self, *given)

    def counted(self: Stacked, round: Callable[..., Any]) -> Callable[..., Any]:
        prepared.append("round")
        return prepare(self, round)

    def cramped(self: Evaluator, *given: Any) -> Any:
        if programs[-1].prepared is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        prepared.append("evaluation")
        return own(self, *given)

    monkeypatch.setattr(Stacked, "prepare", counted)
    monkeypatch.setattr(Evaluator, "own", cramped)
    monkeypatch.setattr(Program, "__call__", seen)
    outcomes = dict(train_group(together))
    assert prepared == ["round", *["evaluation"] * runs, "round", *["evaluation"] * runs]
    for run, alone in zip(together, expected, strict=True):
        ended = outcomes[run.name]
        assert isinstance(ended, Trained), ended
        assert same(ended, alone)
        for one, other in zip(ended.metrics, alone.metrics, strict=True):
            assert ("evaluation" in one) == ("evaluation" in other)
            assert losses(one) == pytest.approx(losses(other), rel=1e-5), "side by side, sums are taken in another order"


def test_the_last_evaluation_has_the_device_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    run, grid, free = training(mqat(), 1), Evaluator.grid, list[bool]()

    def watched(self: Evaluator, *given: Any) -> Any:
        simulation = getattr(run.release, "__self__", None)
        assert isinstance(simulation, Simulation)
        free.append(simulation.program.prepared is None)
        return grid(self, *given)

    monkeypatch.setattr(Evaluator, "grid", watched)
    to_end(run)
    assert free == [True]


def test_test_images_are_halved_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = to_end(training(mqat(), 1))
    outputs, sizes = Evaluator._outputs, list[int]()

    def limited(self: Evaluator, widths: Any) -> Callable[..., Tensor]:
        answer = outputs(self, widths)

        def some(w: Any, steps: Any, x: Tensor) -> Tensor:
            if len(x) > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            sizes.append(len(x))
            return answer(w, steps, x)
        return some

    monkeypatch.setattr(Evaluator, "_outputs", limited)
    ended = to_end(training(mqat(), 1))
    assert max(sizes) == 4
    for site, scores in expected.evaluation["grid"].items():
        assert dict(flat(ended.evaluation["grid"][site])) == pytest.approx(dict(flat(scores)), abs=1e-9)


def flat(tree: Any, path: str = "") -> list[tuple[str, float]]:
    if isinstance(tree, dict):
        return [leaf for name, inner in tree.items() for leaf in flat(inner, f"{path}/{name}")]
    return [(path, tree)] if isinstance(tree, float) else []
