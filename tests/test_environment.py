"""Which code ran: the commit of its checkout, where it is one."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import anybit
from anybit.environment import commit


def test_the_commit_of_a_checkout_and_whether_it_was_changed(tmp_path: Path) -> None:
    package = tmp_path / "src/anybit"
    package.mkdir(parents=True)
    shutil.copy(Path(anybit.__file__).parent / "environment.py", package)
    (package / "__init__.py").touch()
    assert _found(tmp_path) == "None", "no checkout"
    _git(tmp_path, "init", "-q")
    _commit(tmp_path, "src/anybit/__init__.py")
    assert _found(tmp_path) == "None", "somebody else's checkout: the file is not tracked"
    _commit(tmp_path, ".")
    head = _git(tmp_path, "rev-parse", "--short", "HEAD")
    (tmp_path / "watcher").write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    (tmp_path / "watcher").chmod(0o755)
    _git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "watcher"))
    assert _found(tmp_path) == head
    with (package / "__init__.py").open("a") as file:
        file.write("changed = True\n")
    assert _found(tmp_path) == f"{head}, changed"
    assert not (tmp_path / "ran").exists(), "nothing that the checkout names is run"


def test_it_is_asked_once() -> None:
    commit.cache_clear()
    commit()
    commit()
    assert (commit.cache_info().hits, commit.cache_info().misses) == (1, 1)


def _found(home: Path) -> str:
    return str(runpy.run_path(str(home / "src/anybit/environment.py"))["commit"]())


def _commit(home: Path, what: str) -> None:
    _git(home, "add", what)
    _git(home, "-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-q", "-m", what)


def _git(home: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=home, check=True, capture_output=True, text=True).stdout.strip()
