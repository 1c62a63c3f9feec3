"""A run that gets more rounds is the run that had them from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import anybit
from anybit.errors import RunError
from anybit.training.run_folder import RunFolder

Arrays = tuple[np.ndarray, np.ndarray]
SAME = ("config.json", "task.json", "model.safetensors", "metrics.jsonl", "steps.json", "evaluation.json")


def fitted(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, path: Path, rounds: int,
           **settings: Any) -> anybit.Fitted:
    given: dict[str, Any] = {"cohort": 3, "engine": "sequential", "checkpoint_every": 2,
                             "evaluation": anybit.EvaluationOptions(every=2), **settings}
    return anybit.fit(mlp, clients, held_out, rounds=rounds, path=path, resume=True, **given)


def assert_same(one: Path, two: Path) -> None:
    for name in SAME:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_a_finished_run_goes_on_as_if_it_had_been_longer(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                        tmp_path: Path) -> None:
    """3 rounds: the last is evaluated because it is the last, which in a run of 5 it is not."""
    fitted(mlp, clients, held_out, tmp_path / "cut", 3)
    assert fitted(mlp, clients, held_out, tmp_path / "cut", 4).metrics[-1]["round"] == 4
    longer = fitted(mlp, clients, held_out, tmp_path / "cut", 5)
    whole = fitted(mlp, clients, held_out, tmp_path / "whole", 5)
    assert longer.metrics == whole.metrics
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_a_run_killed_after_it_was_extended_goes_on(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                   tmp_path: Path) -> None:
    class Killed(anybit.Callback):
        def after_round(self, training: Any, progress: anybit.Progress) -> None:
            if progress.round == 5:  # logged, and its checkpoint is not written
                raise KeyboardInterrupt

    fitted(mlp, clients, held_out, tmp_path / "cut", 3)
    with pytest.raises(KeyboardInterrupt):
        fitted(mlp, clients, held_out, tmp_path / "cut", 7, callbacks=[Killed()], checkpoint_every=2)
    checkpoints = RunFolder.open(tmp_path / "cut").checkpoints()
    checkpoints[-1].unlink()  # that of round 4: back to the former end once more
    fitted(mlp, clients, held_out, tmp_path / "cut", 7)
    fitted(mlp, clients, held_out, tmp_path / "whole", 7)
    assert_same(tmp_path / "cut", tmp_path / "whole")


def test_what_cannot_go_on_keeps_what_it_has(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                             tmp_path: Path) -> None:
    fitted(mlp, clients, held_out, tmp_path / "run", 2)
    before = {name: (tmp_path / "run" / name).read_bytes() for name in SAME}
    (checkpoint,) = RunFolder.open(tmp_path / "run").checkpoints()
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[:500] + b"XXXX" + content[504:])
    with pytest.raises(RunError, match=r"cannot be read .*: without it a finished run cannot go on; its model"):
        fitted(mlp, clients, held_out, tmp_path / "run", 4)
    checkpoint.unlink()
    with pytest.raises(RunError, match="is finished and has no checkpoint to go on from"):
        fitted(mlp, clients, held_out, tmp_path / "run", 4)
    assert {name: (tmp_path / "run" / name).read_bytes() for name in SAME} == before


def test_rounds_never_shrink(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    fitted(mlp, clients, held_out, tmp_path / "run", 2)
    with pytest.raises(RunError, match="has 2 rounds, and rounds may only grow: 1 are fewer"):
        fitted(mlp, clients, held_out, tmp_path / "run", 1)
    assert RunFolder.open(tmp_path / "run").finished


def test_a_falling_learning_rate_goes_back_to_before_it_fell(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                            tmp_path: Path) -> None:
    """Linear over the last half of 4 rounds: η·min(1, (5 − t)/2), which falls at t = 4. Of 6 rounds it falls at t = 5."""
    falling = {"server": anybit.ServerOptions(schedule="linear", decay=0.5), "checkpoint_every": 3}
    fitted(mlp, clients, held_out, tmp_path / "cut", 4, **falling)
    fitted(mlp, clients, held_out, tmp_path / "cut", 6, **falling)
    fitted(mlp, clients, held_out, tmp_path / "whole", 6, **falling)
    assert_same(tmp_path / "cut", tmp_path / "whole")
    RunFolder.open(tmp_path / "whole").checkpoints()[0].unlink()
    with pytest.raises(RunError, match=r"by its schedule .* after round 4 of 6, and its first checkpoint is of round 6"):
        fitted(mlp, clients, held_out, tmp_path / "whole", 20, **falling)
    assert RunFolder.open(tmp_path / "whole").finished


@pytest.mark.parametrize(("settings", "advice"), [
    ({"server": anybit.ServerOptions(schedule="linear", decay=1.0)}, "with server.schedule=constant if"),
    ({"client": anybit.ClientOptions(batch_size=16, schedule="cosine")}, "with client.schedule=constant if"),
    ({"schedule": lambda round, rounds: 1 - round / rounds}, "with a schedule that does not know the number of rounds if")])
def test_the_schedule_that_is_in_the_way_is_named(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                                  settings: dict[str, Any], advice: str) -> None:
    fitted(mlp, clients, held_out, tmp_path / "run", 4, **settings)
    with pytest.raises(RunError, match=advice):
        fitted(mlp, clients, held_out, tmp_path / "run", 8, **settings)
