"""Callbacks of a user's own: told of every round after it is logged and before its checkpoint, and of a stop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import anybit
from anybit.errors import Interrupted
from anybit.training.course import Training

Arrays = tuple[np.ndarray, np.ndarray]
SETTINGS = {"rounds": 4, "cohort": 2, "checkpoint_every": 2, "evaluation": anybit.EvaluationOptions(every=2)}


class Listener(anybit.Callback):
    """Writes down what it hears and sees."""

    def __init__(self, stop_after: int = 0) -> None:
        self.heard: list[tuple[int, bool, int, int]] = []
        self.stopped: list[int] = []
        self.stop_after = stop_after

    def after_round(self, training: Training, progress: anybit.Progress) -> None:
        assert training.round == progress.round
        assert progress.rounds == 4
        assert progress.seconds > 0
        newest = training.folder.checkpoints()[-1:] if training.folder else []
        self.heard.append((progress.round, progress.evaluation is not None, len(training.metrics),
                           max(map(training.folder.round_of, newest), default=0) if training.folder else 0))
        training.watch.stop = progress.round == self.stop_after

    def on_stop(self, training: Training) -> None:
        self.stopped.append(training.round)


def test_a_round_is_told_after_its_log_and_before_its_checkpoint(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                               tmp_path: Path) -> None:
    listener = Listener()
    anybit.fit(mlp, clients, held_out, path=tmp_path / "run", callbacks=[listener], **SETTINGS)  # type: ignore[arg-type]
    assert listener.heard == [(1, False, 1, 0), (2, True, 2, 0), (3, False, 3, 2), (4, True, 4, 2)]
    assert listener.stopped == []


def test_a_callback_can_stop_the_run_which_goes_on_later(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                         tmp_path: Path) -> None:
    whole = anybit.fit(mlp, clients, held_out, **SETTINGS)  # type: ignore[arg-type]
    listener = Listener(stop_after=3)
    with pytest.raises(KeyboardInterrupt, match="stopped after round 3 of 4"):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "run", callbacks=[listener], **SETTINGS)  # type: ignore[arg-type]
    assert listener.stopped == [3]
    assert (tmp_path / "run/checkpoints/round-000003.safetensors").exists()
    rest = Listener()
    result = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", resume=True, callbacks=[rest],
                        **SETTINGS)  # type: ignore[arg-type]
    assert [round for round, *_ in rest.heard] == [4]
    assert result.evaluation == whole.evaluation


def test_without_a_folder_a_stop_is_an_error_of_anybit(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    with pytest.raises(Interrupted, match=r"^stopped after round 2$"):
        anybit.fit(mlp, clients, held_out, callbacks=[Listener(stop_after=2)], **SETTINGS)  # type: ignore[arg-type]
