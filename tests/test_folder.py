from __future__ import annotations

from pathlib import Path

import pytest

from anybit.errors import RunError
from anybit.training.follower import Follower
from anybit.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"rounds": 3}, {})


def test_a_line_that_a_crash_cut_short_ends_the_log(folder: RunFolder) -> None:
    for round in (1, 2):
        folder.append("metrics", {"round": round})
    with open(folder.file("metrics.jsonl"), "a") as file:
        file.write('{"round": 3, "los')
    assert folder.lines("metrics") == [{"round": 1}, {"round": 2}]
    assert folder.lines("timing") == []


def test_a_folder_that_holds_a_run_is_never_overwritten(folder: RunFolder) -> None:
    with pytest.raises(RunError, match="already holds a run"):
        RunFolder.create(folder.path, {"rounds": 9}, {})
    assert folder.config() == {"rounds": 3}


def test_what_a_killed_start_left_is_no_obstacle(tmp_path: Path) -> None:
    for name in ("lock", "environment.json", "split.safetensors", ".config.json.abcd1234"):
        (tmp_path / name).write_text("half")
    (tmp_path / "checkpoints").mkdir()
    assert RunFolder.create(tmp_path, {"rounds": 3}, {}).config() == {"rounds": 3}
    (tmp_path / "config.json").rename(tmp_path / "notes.txt")
    with pytest.raises(RunError, match=r"is not empty \(it has notes\.txt\)"):
        RunFolder.create(tmp_path, {}, {})


def test_a_second_owner_is_refused_until_the_first_lets_go(folder: RunFolder) -> None:
    with folder.locked(), pytest.raises(RunError, match="in use by another process"), RunFolder(folder.path).locked():
        pass
    with RunFolder(folder.path).locked():
        pass


def test_a_follower_leaves_the_writers_files_alone(tmp_path: Path) -> None:
    """Another rank's half-written file, and every method that writes."""
    written = RunFolder.create(tmp_path / "run", {}, {})
    half = tmp_path / "run/checkpoints/.round-000001.safetensors.abcd1234"
    half.write_bytes(b"half")
    before = {p: p.read_bytes() for p in written.path.rglob("*") if p.is_file()}
    follower = Follower(written.path)
    with follower.locked():
        follower.tidy()
        follower.append("metrics", {"round": 1})
        follower.save_evaluation({})
    assert {p: p.read_bytes() for p in written.path.rglob("*") if p.is_file()} == before
    written.tidy()
    assert not half.exists()
