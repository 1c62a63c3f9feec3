"""The short version of benchmarks/crash_test.py: kills at random moments, half of them while a checkpoint is written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from crash_test import Crash, content, crash, differences

from anybit.cli.progress import SweepReporter
from anybit.sweeps.plan import SweepFolder, plan
from anybit.training.run_folder import RunFolder

pytestmark = pytest.mark.kills


@pytest.mark.parametrize(("mode", "kills"), [("sequential", 5), ("stacked", 2), ("sweep-stacked", 2)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_runs_end_with_the_bytes_of_an_undisturbed_one(mode: str, kills: int) -> None:
    count = crash(mode, kills, rounds=6, seed=3)
    assert count.kills == kills
    assert count.differences == []


def test_a_run_that_went_another_way_is_told_apart(tmp_path: Path) -> None:
    """The comparison itself: a byte in any file, or a file more or less."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/model").write_bytes(b"1")
    before = content(tmp_path / "run")
    assert differences(before, content(tmp_path / "run")) == []
    (tmp_path / "run/model").write_bytes(b"2")
    (tmp_path / "run/checkpoints/.half").write_bytes(b"")
    assert differences(before, content(tmp_path / "run")) == ["checkpoints/.half", "model"]


def test_a_run_killed_before_its_config_is_simply_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config is written last: until then there is no run that could neither be resumed nor begun."""
    written: list[str] = []
    replace = os.replace

    def watched(source: str, target: Path) -> None:
        written.append(Path(target).name)
        replace(source, target)

    monkeypatch.setattr("os.replace", watched)
    RunFolder.create(tmp_path / "run", {"rounds": 1}, {}, [np.arange(3)])
    assert written[-1] == "config.json"
    assert set(written) == {"split.safetensors", "environment.json", "manifest.json", "config.json"}


@pytest.mark.parametrize("written", [1, 2, 3, 4])
def test_a_sweep_goes_on_with_a_run_that_was_killed_while_it_began(written: int, tmp_path: Path) -> None:
    """After each of the first files of one of its runs."""
    sweep = SweepFolder.begin(tmp_path / "sweep", plan(["demo/fedavg"], ["rounds=1"], [1]))
    (run,) = sweep.runs
    whole, half = RunFolder.create(tmp_path / "whole", {"rounds": 1}, {}, [np.arange(3)], {}).path, sweep.run_path(run)
    (half / "checkpoints").mkdir(parents=True)
    for name in ("split.safetensors", "task.json", "environment.json", "manifest.json")[:written]:
        shutil.copy(whole / name, half)
    assert SweepReporter(sweep, quiet=True).lines[run.name].round == 0


def test_runs_side_by_side_of_which_one_had_only_to_be_evaluated(tmp_path: Path) -> None:
    """Killed between the last checkpoint of one run and its evaluation, while the others were still training."""
    test = Crash(tmp_path, "sweep-stacked", 4, 0)
    for name in ("mqat-seed1", "mqat-seed2", "fedavg-seed1"):
        (tmp_path / "whole" / name / "evaluation.json").unlink()
    (tmp_path / "whole/mqat-seed2/checkpoints/round-000004.safetensors").unlink()
    test.finish(test.start("whole"))
    assert differences(test.reference, content(tmp_path / "whole")) == []
