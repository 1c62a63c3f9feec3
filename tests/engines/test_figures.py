"""Figures from forked processes: the same as one after another, and a clear end when something goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from anybit.config import ComputeOptions
from anybit.engines.base import Engine
from anybit.engines.processes import Processes
from anybit.errors import EngineError
from anybit.federated.variants import mqat
from anybit.quant.grid import Width
from anybit.training.evaluation import Evaluator, build_evaluator
from tests.engines.test_processes import gone
from tests.parity.cases import training


@pytest.mark.parametrize("items", [0, 1, 2, 7])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_figures_come_in_the_order_of_their_items(items: int, workers: int) -> None:
    engine = Processes(workers)
    found = engine.each(lambda i: (i / 3, float("inf") if i == 3 else -float(i)), range(items))
    assert found == Engine().each(lambda i: (i / 3, float("inf") if i == 3 else -float(i)), range(items))
    assert len(found) == items


def test_the_work_is_shared_by_processes_of_one_thread_that_end() -> None:
    torch.set_num_threads(2)
    found = Processes(3).each(lambda i: (os.getpid(), torch.get_num_threads()), range(6))
    pids = [int(pid) for pid, _ in found]
    assert pids[:3] == pids[3:]
    assert len({*pids, os.getpid()}) == 4
    assert {threads for _, threads in found} == {1}
    for pid in pids[:3]:
        with pytest.raises(ChildProcessError):  # not even a zombie is left
            os.waitpid(pid, 0)


def test_a_failure_names_its_reason() -> None:
    def figures(i: int) -> tuple[float]:
        return (1 / (i - 4),)

    with pytest.raises(EngineError, match=r"^the evaluation failed: ZeroDivisionError: ") as caught:
        Processes(2).each(figures, range(6))
    assert "in figures" in "".join(caught.value.__notes__)


def test_a_killed_process_is_named_and_no_other_stays(tmp_path: Path) -> None:
    def figures(i: int) -> tuple[float]:
        (tmp_path / str(os.getpid())).touch()
        if i == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return (0.0,)

    with pytest.raises(EngineError, match=r"a worker process of the evaluation was killed by SIGKILL \(out of memory\?"):
        Processes(2).each(figures, range(4))
    assert all(gone(int(path.name)) for path in tmp_path.iterdir())


def test_an_evaluation_has_the_scores_of_the_sequential_engine() -> None:
    run = training(mqat(sites="WA"))
    torch.set_num_threads(1)
    widths = [Width.of("WA", bits) for bits in (32, 8, 4, 2)]
    shared = replace(run.computation.evaluator, engine=Processes(2))
    assert shared.score(run.state.w, run.table, widths) == run.computation.evaluator.score(run.state.w, run.table, widths)


def test_the_channel_last_in_memory_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    run, outputs, laid = training(mqat(sites="WA")), Evaluator._outputs, list[bool]()

    def watched(self: Evaluator, widths: Any) -> Callable[..., Tensor]:
        answer = outputs(self, widths)

        def some(w: dict[str, Tensor], steps: Any, x: Tensor) -> Tensor:
            images = [x, *(value for value in w.values() if value.ndim == 4)]
            laid.append(all(value.is_contiguous(memory_format=torch.channels_last) for value in images))
            return answer(w, steps, x)
        return some

    monkeypatch.setattr(Evaluator, "_outputs", watched)
    widths = [Width.of("WA", bits) for bits in (32, 8, 4)]
    last, first = (replace(run.computation.evaluator, channels_last=is_last).score(run.state.w, run.table, widths)
                   for is_last in (True, False))
    assert {w: tuple(s) for w, s in last.items()} == {w: pytest.approx(tuple(s), rel=1e-9) for w, s in first.items()}
    assert laid == [True] * 3 + [False] * 3


@pytest.mark.parametrize(("convolution", "last"), [(None, False), ("no-onednn", False), ("channels-last", True)])
def test_evaluation_follows_the_convolutions_of_the_training(convolution: Any, last: bool) -> None:
    run = training(mqat())
    config = replace(run.config, compute=ComputeOptions(convolution=convolution))
    assert build_evaluator(run.computation.task, config).channels_last is last
