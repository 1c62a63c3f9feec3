"""Run folders, sweeps and files from strangers: links that lead out, simultaneous starts, single flipped bits."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anybit.cli.main import run as command
from anybit.errors import AnybitError, RunError
from anybit.files.safetensors import from_bytes, to_bytes
from anybit.sweeps.plan import SweepFolder, plan
from anybit.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
OWN = ["--import", "net_models"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of two small runs: one finished, one stopped after round 2 of 3."""
    monkeypatch.syspath_prepend(str(ROOT / "tools/net"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "tests/net/runs", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A folder of the user's, with files that look as if a killed writer had left them."""
    folder = tmp_path / "precious"
    folder.mkdir()
    for name in (".notes.txt.abcd1234", "index.html", "export.json", "model.w2.safetensors", "round-000001.safetensors"):
        (folder / name).write_text("mine")
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def linked(place: Path, target: Path, *, with_files: bool = False) -> None:
    """Put a link in the place of a run's own folder."""
    if with_files:
        for file in place.iterdir():
            shutil.copy(file, target)
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(target)


def refused(arguments: list[str], precious: Path, match: str = "is a link") -> None:
    before = content(precious)
    with pytest.raises(AnybitError, match=match) as error:
        command(arguments)
    assert (error.value.exit_code, str(error.value).count("\n")) == (2, 0)
    assert content(precious) == before


@pytest.mark.parametrize("broken", [False, True], ids=["resume", "resume that another reason refuses"])
def test_linked_checkpoints_are_neither_tidied_nor_written(runs: Path, precious: Path, broken: bool) -> None:
    linked(runs / "stopped/checkpoints", precious, with_files=True)
    if broken:
        config = json.loads((runs / "stopped/config.json").read_text())
        (runs / "stopped/config.json").write_text(json.dumps({**config, "rounds": 4}))
    refused(["resume", str(runs / "stopped"), "--quiet", *OWN], precious)
    for use in (RunFolder(runs / "stopped").tidy, RunFolder(runs / "stopped").checkpoints):
        with pytest.raises(RunError, match="is a link"):
            use()


def test_a_new_run_is_not_started_on_linked_checkpoints(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "new").mkdir()
    linked(tmp_path / "new/checkpoints", precious)
    before = content(precious)
    with pytest.raises(RunError, match="is a link"):
        RunFolder.create(tmp_path / "new", {}, {})
    assert content(precious) == before
    assert not (tmp_path / "new/config.json").exists()


@pytest.mark.parametrize("verb", [["report"], ["report", "--paper"]])
def test_a_linked_report_is_not_written(runs: Path, precious: Path, verb: list[str]) -> None:
    linked(runs / "finished/report", precious)
    refused([*verb, str(runs / "finished")], precious)


def test_a_linked_export_is_not_written(runs: Path, precious: Path) -> None:
    linked(runs / "finished/export", precious)
    refused(["export", str(runs / "finished"), "--width", "W2", "--runtime", "archive", *OWN], precious)


def test_a_folder_that_the_user_names_may_be_a_link(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    linked(tmp_path / "link", tmp_path / "elsewhere")
    out = str(tmp_path / "link")
    assert command(["export", str(runs / "finished"), "--width", "W2", "--runtime", "archive", "--out", out, *OWN]) == 0
    assert (tmp_path / "elsewhere/model.w2.safetensors").is_file()


def test_a_linked_run_of_a_sweep_is_not_trained(tmp_path: Path, precious: Path) -> None:
    sweep = SweepFolder.begin(tmp_path / "sweep", plan(["quickstart/mqat"], ["rounds=1"]))
    linked(sweep.run_path(sweep.runs[0]), precious)
    refused(["sweep", str(tmp_path / "sweep"), "--quiet"], precious)


def _start(number: int, path: Path, gate: Any, answers: Any) -> None:
    split = [np.full(20_000, number), np.full(20_000, number)]
    gate.wait()
    try:
        RunFolder.create(path, {"number": number}, {"number": number}, split)
        answers.put((number, ""))
    except RunError as error:
        answers.put((number, str(error)))


def test_of_simultaneous_starts_exactly_one_wins(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    for attempt in range(5):
        path, gate, answers = tmp_path / f"run{attempt}", processes.Barrier(6), processes.Queue()
        starts = [processes.Process(target=_start, args=(number, path, gate, answers)) for number in range(6)]
        for start in starts:
            start.start()
        results = dict(answers.get(timeout=240) for _ in starts)
        for start in starts:
            start.join()
        winners = [number for number, error in results.items() if not error]
        assert len(winners) == 1
        assert all("in use by another process" in error or "already holds a run" in error
                   for error in results.values() if error)
        folder = RunFolder.open(path)
        assert folder.config() == folder.environment() == {"number": winners[0]}
        assert {int(part[0]) for part in folder.split()} == {winners[0]}


def test_of_two_sweeps_that_start_at_once_one_is_refused(tmp_path: Path) -> None:
    first, second = (plan(["quickstart/mqat"], [f"rounds={rounds}"]) for rounds in (1, 2))
    path = tmp_path / "sweep"
    path.mkdir()
    with SweepFolder(path, first).locked(), pytest.raises(RunError, match="in use by another process"):
        SweepFolder.begin(path, second)
    assert not (path / "sweep.json").exists()


def flips(content: bytes, load: Callable[[bytes], object], step: int = 1) -> list[int]:
    """Flip bits one at a time, and list those that nobody noticed."""
    accepted = []
    for bit in range(0, 8 * len(content), step):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            load(bytes(damaged))
            accepted.append(bit)
        except RunError:
            pass
    return accepted


def test_every_flipped_bit_of_a_file_of_tensors_is_refused() -> None:
    tensors = {"w/a": torch.arange(4.0), "w/b": torch.ones(2, 2), "flags": torch.tensor([True, False])}
    content = to_bytes(tensors, {"round": "5", "metrics_bytes": "985", "config": "0" * 64, "name": "é"})
    assert from_bytes(content, "it")[1]["metrics_bytes"] == "985"
    assert flips(content, lambda damaged: from_bytes(damaged, "it")) == []


def test_metrics_are_not_cut_where_a_damaged_checkpoint_says(runs: Path) -> None:
    assert command(["resume", str(runs / "stopped"), "--quiet", *OWN]) == 0
    folder = RunFolder(runs / "stopped")
    folder.file("evaluation.json").unlink()
    newest, metrics = folder.checkpoints()[-1], folder.file("metrics.jsonl").read_bytes()
    written = newest.read_bytes()
    head = written[:written.index(b'"config"')]
    at = head.index(b'"metrics_bytes":"') + len(b'"metrics_bytes":"')
    newest.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1:])
    with pytest.raises(RunError, match="SHA-256"):
        command(["resume", str(runs / "stopped"), "--quiet", *OWN])
    assert folder.file("metrics.jsonl").read_bytes() == metrics


def test_files_of_earlier_versions_load_without_a_hash_of_their_header(runs: Path) -> None:
    old = (runs / "finished/model.safetensors").read_bytes()
    tensors, metadata = from_bytes(old, "it")
    assert set(metadata) == {"format", "sha256"}
    with pytest.raises(RunError, match="SHA-256"):
        from_bytes(old[:-1] + bytes([old[-1] ^ 1]), "it")
    again, _ = from_bytes(to_bytes(tensors, metadata), "it")
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
