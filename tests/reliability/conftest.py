"""Disks that are full or read-only, for real: a small file system of their own where that can be had. And small runs."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.reliability.small_runs import train

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.insert(0, BENCHMARKS)


@pytest.fixture(scope="session")
def can_mount(tmp_path_factory: pytest.TempPathFactory) -> bool:
    """Whether this process may mount: root outside a locked-down container."""
    place = tmp_path_factory.mktemp("probe")
    if os.getuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],
                                           capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", str(place)], check=True)
    return True


Disk = Callable[[str], None]


@pytest.fixture
def disk(can_mount: bool) -> Iterator[tuple[Path, Disk]]:
    """A folder on a disk of its own, and a function that makes it 'full', 'readonly' or 'well' again.

    Where nothing can be mounted, files that may not grow stand for a full disk, and a folder that an ordinary user may
    not write to for a read-only one.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        if can_mount:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m,mode=755", "tmpfs", name], check=True)
        become = _mounted(place) if can_mount else _limited(place)
        try:
            yield place, become
        finally:
            become("well")
            if can_mount:
                subprocess.run(["umount", "--lazy", name], check=True)


def _mounted(place: Path) -> Disk:
    def become(state: str) -> None:
        ballast = place / "ballast"
        subprocess.run(["mount", "-o", f"remount,{'ro' if state == 'readonly' else 'rw'}", str(place)], check=True)
        if state == "full":
            with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
                while True:
                    file.write(b"\0" * 4096)
        elif state == "well":
            ballast.unlink(missing_ok=True)
    return become


def _limited(place: Path) -> Disk:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    root = os.getuid() == 0

    def become(state: str) -> None:
        if root:
            os.seteuid(65534 if state == "readonly" else 0)
        else:
            for folder in (place, *(p for p in place.rglob("*") if p.is_dir())):
                folder.chmod(0o555 if state == "readonly" else 0o755)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16 if state == "full" else hard, hard))
    return become


NET = str(Path(__file__).parents[2] / "tools/net")


@pytest.fixture(scope="session")
def two_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of different seeds: run1, run2."""
    home = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(NET)
        for seed in (1, 2):
            train(home / f"run{seed}", seed)
    return home


@pytest.fixture
def two_runs(two_trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of them, free to be damaged."""
    monkeypatch.syspath_prepend(NET)
    return Path(shutil.copytree(two_trained, tmp_path / "runs"))
