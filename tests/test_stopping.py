"""Ctrl-C: a run in a folder ends after its round or within its last evaluation, and goes on from there."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.errors import Interrupted
from anybit.federated.variants import mqat
from anybit.training.course import Progress, Training, Watch
from anybit.training.loop import _evaluating, begin
from anybit.training.run_folder import RunFolder
from anybit.training.stopping import stoppable
from tests.parity.cases import training
from tests.trainings import to_end

Arrays = tuple[np.ndarray, np.ndarray]
SETTINGS: dict[str, Any] = {"rounds": 5, "cohort": 5, "engine": "sequential", "checkpoint_every": 100}


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As in a terminal; what is started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_fit_stops_after_the_round_and_goes_on(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    expected = anybit.fit(mlp, clients, held_out, **SETTINGS)
    with pytest.raises(KeyboardInterrupt, match=r"stopped after round 3 of 5; fit\(…, path=.*, resume=True\) goes on"):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "run", on_round=interrupt, **SETTINGS)
    assert "stopping when this round or evaluation is done" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [path.stem for path in RunFolder.open(tmp_path / "run").checkpoints()] == ["round-000003"]
    resumed = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", resume=True, **SETTINGS)
    for one, other in zip(resumed.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [entry["loss"] for entry in resumed.metrics] == [entry["loss"] for entry in expected.metrics]


def test_without_a_folder_or_with_a_handler_of_their_own_nothing_changes(mlp: nn.Module, clients: list[Arrays],
                                                                         held_out: Arrays, tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(progress: Progress) -> None:
        seen.append(signal.getsignal(signal.SIGINT))

    anybit.fit(mlp, clients, held_out, on_round=look, **SETTINGS)
    assert set(seen) == {signal.default_int_handler}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        anybit.fit(mlp, clients, held_out, path=tmp_path / "run", on_round=look, **SETTINGS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(seen[5:]) == {signal.SIG_IGN}


def test_fit_runs_in_another_thread(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    ended: list[anybit.Fitted] = []
    thread = threading.Thread(target=lambda: ended.append(anybit.fit(mlp, clients, held_out, path=tmp_path / "run",
                                                                     **SETTINGS)))
    thread.start()
    thread.join()
    assert len(ended[0].metrics) == 5


def test_a_second_signal_ends_at_once() -> None:
    watch, said = Watch(), list[str]()
    with stoppable(watch, said.append):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # the launcher passes on the same one
        assert watch.stop
        time.sleep(1.1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert len(said) == 1


def test_the_last_evaluation_can_be_stopped_and_made_later(tmp_path: Path) -> None:
    expected = to_end(training(mqat(), rounds=2))
    folder = RunFolder.create(tmp_path / "run", {}, {})
    run = stopped_while_evaluating()
    run.folder = folder
    with pytest.raises(Interrupted, match=r"stopped after round 2; continue with: anybit resume"):
        to_end(run)
    assert not (folder.path / "evaluation.json").exists()
    again = begin(training(mqat(), rounds=2).computation, folder, resume=True)
    resumed = to_end(again)
    assert resumed.evaluation == expected.evaluation
    assert [entry["loss"] for entry in resumed.metrics] == [entry["loss"] for entry in expected.metrics]


def test_without_a_folder_the_last_evaluation_is_finished() -> None:
    assert to_end(stopped_while_evaluating()).evaluation == to_end(training(mqat(), rounds=2)).evaluation


def stopped_while_evaluating() -> Training:
    run = training(mqat(), rounds=2)

    def stop(text: str) -> None:
        run.watch.stop = text == "evaluating at all widths"

    run.watch.on_message = stop
    return run


def test_an_evaluation_that_takes_long_says_how_far_it_is() -> None:
    run, said = training(mqat()), list[str]()
    run.watch.on_message = said.append
    _evaluating(run, time.perf_counter())(1, 3)
    assert said == []
    _evaluating(run, time.perf_counter() - 60)(1, 3)
    _evaluating(run, time.perf_counter() - 90)(3, 3)
    assert said == ["evaluated 1 of 3 step rules in 60 s"]
