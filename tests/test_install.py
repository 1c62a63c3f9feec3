"""What make would install: the demo its own layer, the tests the rest on top."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def installed(target: str, home: Path) -> list[str]:
    """Return what a target installs in a fresh checkout, extras in brackets, without installing it."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, home)
    (home / "src").mkdir(exist_ok=True)
    planned = subprocess.run(["make", "--dry-run", target], cwd=home, check=True, capture_output=True, text=True).stdout
    assert "pip install --quiet" not in planned, "one way to install, with pinned versions and without noise"
    return re.findall(r"--constraint constraints\.txt (?:--editable '\.)?([^-']\S*?)'?$", planned, re.M)


def test_the_demo_installs_its_layer_and_the_tests_the_rest(tmp_path: Path) -> None:
    assert installed("demo", tmp_path) == ["[demo]"]
    assert installed("test", tmp_path) == ["[demo]", "[all,dev]"]
    assert installed("site", tmp_path) == ["[demo]", *map(_plain, _extras()["docs"])]


def test_every_package_that_an_extra_names_is_pinned() -> None:
    pinned = {_plain(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    named = {_plain(need) for needs in _extras().values() for need in needs}
    assert sorted(named - pinned - {"anybit"}) == []


def _extras() -> dict[str, list[str]]:
    needs: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return needs


def _plain(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0].lower().replace("_", "-")
