"""How the native kernels come to be: compiled when asked for, kept, checked before they are loaded, or not there at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from anybit.config import ComputeOptions, Config
from anybit.errors import ConfigError
from anybit.kernels.native import compiled, library
from anybit.kernels.native.compiled import _fingerprint, _kept
from anybit.models import lenet5
from anybit.training import engine_choice
from anybit.training.computation import open_computation
from anybit.training.engine_choice import example_task

pytestmark = pytest.mark.kernels
LOAD = "from anybit.kernels.native import library; library(); print('loaded')"


@pytest.fixture
def home(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYBIT_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def built(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log with one line for every compilation, by a compiler that only copies what was compiled before."""
    log, script = tmp_path / "log", tmp_path / "cxx"
    script.write_text(f'#!/bin/sh\ncase "$*" in *native.cpp*) echo built >> "{log}"; for last; do :; done; '
                      f'cp "{native}" "$last";; *) echo macros;; esac\n')
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    return log


def compilations(log: Path) -> int:
    return len(log.read_text().splitlines())


def kept(home: Path) -> Path:
    (path,) = (home / "native").glob("*.so")
    return path


def load() -> None:
    """As a new process would."""
    assert library.__wrapped__().conv_forward


def test_it_is_compiled_once_and_kept_for_the_user_alone(home: Path, built: Path) -> None:
    load()
    load()
    assert compilations(built) == 1
    assert stat.S_IMODE((home / "native").stat().st_mode) == 0o700
    assert [path.suffix for path in (home / "native").iterdir()] == [".so"]


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-100], lambda b: b[:2000] + b"\0" * 64 + b[2064:]])
def test_a_damaged_library_is_built_anew(home: Path, built: Path, damage: object) -> None:
    load()
    content = kept(home).read_bytes()
    kept(home).write_bytes(damage(content))  # type: ignore[operator]
    load()
    assert compilations(built) == 2
    assert kept(home).read_bytes() == content
    load()
    assert compilations(built) == 2


def test_nothing_is_loaded_from_a_folder_that_others_can_write(home: Path, built: Path) -> None:
    load()
    (home / "native").chmod(0o777)
    assert _kept(_fingerprint()) is None
    load()
    assert compilations(built) == 2


def test_a_home_that_cannot_be_written_is_no_obstacle(home: Path, built: Path) -> None:
    home.write_text("a file where a folder should be")
    load()
    assert compilations(built) == 1


def test_another_compiler_or_processor_gets_its_own(home: Path, built: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    before = _fingerprint()
    script = tmp_path / "cxx"
    script.write_text(script.read_text().replace("echo macros", "echo others"))
    assert _fingerprint() != before
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-g"))
    load()
    assert compilations(built) == 2


def test_two_processes_at_once(home: Path) -> None:
    """With the real compiler: both build, both load, one file is left, and a third finds it."""
    environment = {**os.environ, "ANYBIT_DATA": str(home)}
    runs = [subprocess.Popen([sys.executable, "-c", LOAD], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)]
    assert [run.communicate(timeout=240)[0].strip() for run in runs] == ["loaded"] * 2
    found = kept(home)
    before = found.stat().st_mtime_ns
    assert _kept(_fingerprint()) is not None
    assert found.stat().st_mtime_ns == before
    assert list((home / "native").iterdir()) == [found]


def test_without_a_compiler_it_is_said_and_never_a_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("anybit.training.computation.library", library.__wrapped__)
    wanted = r"^compute.convolution = 'native', but there is no C\+\+ compiler .*: install g\+\+"
    with pytest.raises(ConfigError, match=wanted) as e:
        open_computation(example_task(lenet5(), 2, 4), Config(cohort=2, compute=ComputeOptions(convolution="native")))
    assert e.value.exit_code == 2
    assert "\n" not in str(e.value)
    monkeypatch.setattr(engine_choice, "library", library.__wrapped__)
    monkeypatch.setattr(engine_choice, "round_seconds", lambda *given: 1.0)
    table = engine_choice.measure(Config(cohort=2), example_task(lenet5(), 2, 4))
    assert {m.candidate.convolution for m in table} == {"default", "channels-last", "no-onednn"}


def test_a_compiler_that_fails_is_quoted(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cxx"
    script.write_text('#!/bin/sh\necho "note" >&2; echo "fatal error: no such option" >&2; exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(ConfigError, match=r"cxx fails \(fatal error: no such option\): install"):
        load()


def test_what_cannot_be_loaded_is_said(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "cxx"
    script.write_text('#!/bin/sh\ncase "$*" in *native.cpp*) for last; do :; done; echo text > "$last";; esac\n')
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load()


def test_importing_compiles_nothing(home: Path) -> None:
    code = "import anybit, anybit.training.loop, anybit.kernels.native, anybit.training.engine_choice"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ANYBIT_DATA": str(home)}, check=True)
    assert not home.exists()
