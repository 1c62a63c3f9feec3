"""What make would install: the demo its own layer, the tests the rest on top."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def extras(target: str, home: Path) -> list[str]:
    """Return the layers that a target installs in a fresh checkout, without installing them."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, home)
    (home / "src").mkdir(exist_ok=True)
    planned = subprocess.run(["make", "--dry-run", target], cwd=home, check=True, capture_output=True, text=True).stdout
    assert "pip install --quiet" not in planned, "one way to install, with pinned versions and without noise"
    return re.findall(r"--editable '\.\[(.*?)\]'", planned)


def test_the_demo_installs_its_layer_and_the_tests_the_rest(tmp_path: Path) -> None:
    assert extras("demo", tmp_path) == ["demo"]
    assert extras("test", tmp_path) == ["demo", "all,dev"]
    assert extras("site", tmp_path) == ["demo", "demo,docs"]


def test_every_package_that_an_extra_names_is_pinned() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {_plain(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    named = {_plain(need) for needs in listed.values() for need in needs}
    assert sorted(named - pinned - {"anybit"}) == []


def _plain(requirement: str) -> str:
    return re.split(r"[<>=\[]", requirement)[0].lower().replace("_", "-")
