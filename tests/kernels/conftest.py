"""The native kernels, compiled once for all tests that need them, and Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from anybit.kernels.native import library, missing


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that was compiled."""
    assert not missing(), missing()
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYBIT_DATA", str(home))
        library.cache_clear()
        library()
    (path,) = home.glob("native/*.so")
    return path


@pytest.fixture(scope="session")
def interpreter() -> None:
    """Choose Triton's interpreter, which it does once, when it is imported: by its programs, or by torch's compiler."""
    assert importlib.util.find_spec("triton"), "make test-kernels installs Triton"
    os.environ["TRITON_INTERPRET"] = "1"
