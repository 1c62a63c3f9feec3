"""Means over seeds, hand-computed, of runs that differ in nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from anybit.report.read import read_runs
from anybit.report.seeds import seeds_table
from anybit.report.tables import accuracy_table
from tests.report.test_report_tables import edited

Copied = Callable[[str, str], Path]


def reset(path: Path, **settings: object) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **settings}))
    return path


@pytest.fixture
def paths(copied: Copied) -> list[Path]:
    """A baseline with three seeds, one of them on other threads, an mqat with one, and a run that is not finished."""
    first = edited(copied("baseline", "fedavg-seed1"), "accuracy", FP32=50.0, W8=40.0)
    second = reset(edited(copied("baseline", "fedavg-seed2"), "accuracy", FP32=53.0, W8=40.0), seed=2)
    third = reset(edited(copied("baseline", "fedavg-seed4"), "accuracy", FP32=56.0, W8=40.0), seed=4, threads=7)
    return [first, second, third, copied("mqat", "mqat-seed1"), copied("stopped", "stopped-seed1")]


def test_means_and_deviations_of_what_differs_in_its_seed_alone(paths: list[Path]) -> None:
    runs = read_runs(paths)
    seeds = seeds_table(runs, accuracy_table(runs))
    assert seeds is not None
    first = int(json.loads((paths[0] / "config.json").read_text())["seed"])
    assert seeds.groups["fedavg"] == (first, 2, 4)
    assert [*seeds.groups] == ["fedavg", "mqat"], "a run that is not finished has no place in a mean"
    assert seeds.columns == ["width", "fedavg (3)", "mqat (1)"]
    assert seeds.scores["fedavg"]["FP32"] == (53.0, pytest.approx(3.0))
    cells = {row[0]: row[1:] for row in seeds.cells()}
    assert cells["FP32"][0] == "53.00 ± 3.00"
    assert cells["W8"][0] == "40.00 ± 0.00"
    assert "±" not in cells["FP32"][1]
    assert seeds.marks()[0] == [False, True, False], "53 % in full precision, the best mean"
    assert seeds.as_json()[0]["scores"]["FP32"] == {"mean": 53.0, "std": pytest.approx(3.0)}


def test_runs_that_differ_otherwise_have_no_mean(paths: list[Path]) -> None:
    reset(paths[1], rounds=99)
    runs = read_runs([paths[0], paths[1], paths[3]])
    assert seeds_table(runs, accuracy_table(runs)) is None


def test_another_model_or_the_same_seed_again_is_no_other_seed(paths: list[Path], tmp_path: Path) -> None:
    def groups(*names: str) -> list[tuple[int, ...]]:
        moved = [Path(shutil.copytree(path, tmp_path / name)) for path, name in zip(paths, names, strict=False)]
        again = Path(shutil.copytree(moved[1], tmp_path / f"again-{names[1]}"))
        for path, digest in zip([*moved, again], ("0c", "0c", "1d", "0c"), strict=True):
            (path / "task.json").write_text(json.dumps({"data": {"train": {"inputs": f"uint8 [9, 4], sha256 {digest}"}}}))
        runs = read_runs([*moved, again])
        seeds = seeds_table(runs, accuracy_table(runs))
        return [] if seeds is None else sorted(seeds.groups.values())

    first = int(json.loads((paths[0] / "config.json").read_text())["seed"])
    assert groups("one", "two", "other") == sorted([(first, 2), (4,), (2,)])
    assert groups("run-seed1", "run-seed2", "run-seed4") == sorted([(first, 2, 4), (2,)]), "clients of their own"


def test_nobody_is_the_best_among_other_tasks(paths: list[Path]) -> None:
    runs = read_runs(paths[:2])
    assert any(any(row) for row in accuracy_table(runs).marks())
    other = read_runs([paths[0], reset(paths[1], loss="mse")])
    assert not any(any(row) for row in accuracy_table(other).marks())
    assert accuracy_table(other).score.better is None
