"""The native kernels, compiled once for all tests that need them."""

from __future__ import annotations

from pathlib import Path

import pytest

from anybit.kernels.native import library, missing


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that was compiled."""
    if why := missing():
        pytest.skip(why)
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANYBIT_DATA", str(home))
        library.cache_clear()
        library()
    (path,) = home.glob("native/*.so")
    return path
