"""A kill before any file operation of a run leaves a manifest that fits its files, and the bytes of an undisturbed end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import anybit
from anybit.files.digests import Digests
from anybit.training.run_folder import RunFolder
from tests.reliability.killing import content, killed

Arrays = tuple[np.ndarray, np.ndarray]
Train = Callable[[Path, int], anybit.Fitted]
pytestmark = [pytest.mark.kills, pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")]


@pytest.fixture
def train(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> Train:
    few = anybit.EvaluationOptions(every=2, bits=(32, 2), sites=("W",), steps=("mse",))

    def run(path: Path, rounds: int) -> anybit.Fitted:
        return anybit.fit(mlp, clients, held_out, rounds=rounds, cohort=2, engine="sequential", threads=1, evaluation=few,
                          checkpoint_every=1, path=path, resume=True)
    return run


def settled(path: Path) -> bool:
    digests = Digests.read(path)
    return digests is not None and all(len(accepted) == 1 for accepted in digests.files.values())


def test_a_run_killed_before_any_file_operation(train: Train, tmp_path: Path) -> None:
    killed(lambda: train(tmp_path / "whole", 3))
    whole = content(tmp_path / "whole")
    assert settled(tmp_path / "whole")
    path, kills = tmp_path / "run", 0
    while killed(lambda: train(path, 3), kills):
        if (path / "config.json").exists():
            RunFolder.open(path)  # whoever looks at what is left takes it for no damage
        assert not killed(lambda: train(path, 3))
        assert content(path) == whole, f"killed before operation {kills}"
        shutil.rmtree(path)
        kills += 1
    assert kills > 15


def test_a_run_killed_while_it_gets_more_rounds(train: Train, tmp_path: Path) -> None:
    killed(lambda: train(tmp_path / "three", 3))
    shutil.copytree(tmp_path / "three", tmp_path / "whole")
    killed(lambda: train(tmp_path / "whole", 4))
    whole = content(tmp_path / "whole")
    for at in range(11):  # until the longer run begins
        path = Path(shutil.copytree(tmp_path / "three", tmp_path / f"run{at}"))
        assert killed(lambda path=path: train(path, 4), at)  # type: ignore[misc]
        RunFolder.open(path)
        assert not killed(lambda path=path: train(path, 4))  # type: ignore[misc]
        assert content(path) == whole, f"killed before operation {at}"


def test_an_evaluation_that_is_exchanged_is_the_old_or_the_new(train: Train, tmp_path: Path) -> None:
    killed(lambda: train(tmp_path / "run", 1))
    folder = RunFolder.open(tmp_path / "run")
    old = folder.evaluation()
    new = {**old, "mixed": {"WA2": {"loss": 1.0, "metric": 50.0}}}
    for at in range(3):
        assert killed(lambda: RunFolder.open(tmp_path / "run").save_evaluation(new), at)
        folder = RunFolder.open(tmp_path / "run")
        assert folder.evaluation() in (old, new)
        with folder.locked():
            folder.tidy()
        assert settled(tmp_path / "run")
        folder.save_evaluation(old)
