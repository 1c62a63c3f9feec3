"""A disk that is full or read-only ends in one line; what was written before stays, and the run goes on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.data import cache
from anybit.data.cache import Manifest
from anybit.errors import AnybitError, DataError, RunError
from anybit.report import write_report
from anybit.sweeps.results import read_results, write_results
from anybit.training.course import Progress
from anybit.training.run_folder import RunFolder
from tests.reliability.conftest import Disk
from tests.unrecorded import unrecorded

Arrays = tuple[np.ndarray, np.ndarray]
STATES = {"full": "No space left on device|File too large", "readonly": "Read-only file system|Permission denied"}


@pytest.fixture
def fit(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> Callable[..., anybit.api.Fitted]:
    few = anybit.EvaluationOptions(every=3, bits=(32, 2), sites=("W",), steps=("mse",))

    def run(path: Path, **settings: Any) -> anybit.api.Fitted:
        return anybit.fit(mlp, clients, held_out, rounds=6, cohort=2, evaluation=few, checkpoint_every=2, path=path,
                          **settings)
    return run


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "timing.jsonl"}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("at", [1, 2])
def test_a_run_stops_with_one_line_and_goes_on_afterwards(disk: tuple[Path, Disk], fit: Callable[..., Any], tmp_path: Path,
                                                         state: str, at: int) -> None:
    place, become = disk
    whole = fit(tmp_path / "whole")
    with pytest.raises(RunError, match=rf"cannot be written \(({STATES[state]})\): fix the disk, then continue with"):
        fit(place / "run", on_round=lambda p: become(state) if p.round == at else None)
    become("well")
    folder = RunFolder.open(place / "run")
    for checkpoint in folder.checkpoints():
        assert folder.load_checkpoint(checkpoint, torch.device("cpu")).round <= at
    assert fit(place / "run", resume=True).evaluation == whole.evaluation
    assert content(place / "run") == content(tmp_path / "whole")


@pytest.mark.parametrize("state", STATES)
def test_a_run_cannot_begin_or_go_on_there(disk: tuple[Path, Disk], fit: Callable[..., Any], state: str) -> None:
    place, become = disk
    fit(place / "run")
    (place / "run/evaluation.json").unlink()
    become(state)
    with pytest.raises(RunError, match=STATES[state]):
        fit(place / "other")
    with pytest.raises(RunError, match=STATES[state]):
        fit(place / "run", resume=True)


def test_times_that_cannot_be_written_do_not_stop_a_run(fit: Callable[..., Any], tmp_path: Path) -> None:
    """They are no part of its result."""
    whole = fit(tmp_path / "whole")

    def spoil(progress: Progress) -> None:
        if progress.round == 3:
            (tmp_path / "run/timing.jsonl").unlink()
            (tmp_path / "run/timing.jsonl").mkdir()

    assert fit(tmp_path / "run", on_round=spoil).evaluation == whole.evaluation


@pytest.mark.parametrize("state", STATES)
def test_reports_results_and_recipes_say_it(disk: tuple[Path, Disk], fit: Callable[..., Any],
                                            state: str) -> None:
    place, become = disk
    fit(place / "run")
    found = read_results([place / "run"]).results
    write_results(found, place / "old.json")
    before = (place / "old.json").read_bytes()
    become(state)
    with pytest.raises(RunError, match=STATES[state]):
        write_results(found, place / "old.json")
    with pytest.raises(RunError, match=STATES[state]):
        write_report([place / "run"], place / "report")
    assert (place / "old.json").read_bytes() == before
    assert not list(place.glob(".*")), "nothing half-written is left"


@pytest.mark.parametrize("state", STATES)
def test_a_data_set_is_kept_whole(disk: tuple[Path, Disk], monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    place, become = disk
    monkeypatch.setenv("ANYBIT_DATA", str(place / "data"))
    manifest = Manifest("small", "s", "r", {"train": 400, "test": 400}, (1, 4, 4), ("a",), (0.5,), (0.2,))
    arrays = {f"{part}_{stem}": value for part in cache.PARTS
              for stem, value in (("images", np.zeros((400, 1, 4, 4), np.uint8)), ("labels", np.zeros(400, np.int64)))}
    with cache.locked("small"):
        cache.write(manifest, arrays)
    become(state)
    with pytest.raises(DataError, match="set ANYBIT_DATA"), cache.locked("small"):
        cache.write(manifest, arrays)
    assert cache.verify("small") is not None


@pytest.mark.parametrize("state", STATES)
def test_an_export_says_it(disk: tuple[Path, Disk], fit: Callable[..., Any], tmp_path: Path, mlp: nn.Module,
                           state: str) -> None:
    from anybit.export.archive import read_archive
    from anybit.export.exporting import Exporter
    from anybit.export.subject import Subject
    from anybit.quant.grid import Width
    from anybit.training.run import Run
    from tests.reliability.export_subject import subject_of

    fit(tmp_path / "run")
    place, become = disk
    subject: Subject = subject_of(Run.load(tmp_path / "run", model=mlp))
    exporter = Exporter(subject, place / "export")
    old = place / "export" / exporter.export(Width(8, 32), "archive").file
    become(state)
    with pytest.raises(RunError, match=STATES[state]):
        exporter.export(Width(4, 32), "archive")
    with pytest.raises(RunError, match=STATES[state]):
        _ = exporter.fp32
    read_archive(old)


def test_output_that_nobody_can_take_is_one_line(tmp_path: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "anybit", "show", "quickstart/mqat"], stdout=full, cwd=tmp_path,
                              stderr=subprocess.PIPE, text=True, check=False, env={**buffered, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "No space left on device" in done.stderr


def test_what_a_killed_writer_left_is_tidied_away(fit: Callable[..., Any], tmp_path: Path) -> None:
    fit(tmp_path / "run")
    (tmp_path / "run/evaluation.json").unlink()
    left = [tmp_path / "run/checkpoints/.round-000008.safetensors.ab3_x9zq", tmp_path / "run/.steps.json.ab3_x9zq"]
    for path in left:
        path.write_bytes(b"half")
    fit(tmp_path / "run", resume=True)
    assert not any(path.exists() for path in left)


def test_a_link_in_a_handed_folder_harms_nothing_outside(fit: Callable[..., Any], tmp_path: Path) -> None:
    """metrics, times and lock are written in place: through a link they could be any file of the user's."""
    for name in ("metrics.jsonl", "lock"):
        fit(tmp_path / name / "run")
        (tmp_path / name / "run/evaluation.json").unlink()
        victim = tmp_path / f"precious-{name}"
        victim.write_bytes((tmp_path / name / "run" / name).read_bytes() + b"precious")
        (tmp_path / name / "run" / name).unlink()
        (tmp_path / name / "run" / name).symlink_to(victim)
        with pytest.raises(AnybitError, match="symbolic links"):
            fit(tmp_path / name / "run", resume=True)
        assert victim.read_bytes().endswith(b"precious")


@pytest.mark.parametrize("line", ["{", '{"round": 1', "[1]", "\0\0\0", "[" * 10000])
def test_a_damaged_line_of_a_log_is_named(fit: Callable[..., Any], tmp_path: Path, line: str) -> None:
    """In the middle it is damage; only a last line without an end is what a crash leaves."""
    fit(tmp_path / "run")
    folder = RunFolder.open(unrecorded(tmp_path / "run"))
    whole = folder.file("metrics.jsonl").read_text()
    folder.file("metrics.jsonl").write_text(line + "\n" + whole)
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1, is damaged"):
        folder.lines("metrics")
    folder.file("metrics.jsonl").write_text(whole + line)
    assert len(folder.lines("metrics")) == 6


def test_damaged_times_do_not_keep_a_run_from_going_on(fit: Callable[..., Any], tmp_path: Path) -> None:
    fit(tmp_path / "run")
    (tmp_path / "run/evaluation.json").unlink()
    (tmp_path / "run/timing.jsonl").write_text('{"round": 1, "seconds": 2.0}\n\0\0\n{"seconds": 1}\n')
    fit(tmp_path / "run", resume=True)
    assert [json.loads(line)["round"] for line in (tmp_path / "run/timing.jsonl").read_text().splitlines()] == [1]
