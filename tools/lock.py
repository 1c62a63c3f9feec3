"""Write requirements.lock: python tools/lock.py

pip resolves what anybit[all] names under constraints.txt, for Linux x86-64 wherever it runs, without installing it, and says
the SHA-256 of every file it would take. torch and its own companions are left out: their builds differ by platform and index
(see SECURITY.md).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = """# anybit[all] without torch, for Linux x86-64 and CPython 3.11, with the SHA-256 of every file.
# Made by 'make lock'; how to install from it: SECURITY.md
"""
VERSION = "3.11"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
_OF_TORCH = re.compile(r"torch|triton|(nvidia|cuda)[-_].*")


def lock(report: dict[str, Any]) -> str:
    """The lines of the lock, from what pip reports."""
    lines = []
    for item in report["install"]:
        name, hashes = item["metadata"]["name"], item["download_info"].get("archive_info", {}).get("hashes", {})
        if name != "anybit" and not _OF_TORCH.fullmatch(name):
            lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{hashes['sha256']}")
    return HEAD + "\n".join(sorted(lines, key=str.lower)) + "\n"


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """Return what an extra names, with the extras of anybit's own in it opened."""
    named = list[str]()
    for requirement in project["optional-dependencies"][extra]:
        own = re.fullmatch(r"anybit\[(.*)\]", requirement)
        named += [r for name in own[1].split(",") for r in requirements(project, name)] if own else [requirement]
    return list(dict.fromkeys(named))


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [r for r in project["dependencies"] if not r.startswith("torch")] + requirements(project, "all")
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
                        "--only-binary", ":all:", "--python-version", VERSION, *platforms, "--target", folder, "--report",
                        f"{folder}/report.json", "--constraint", "constraints.txt", *named], cwd=ROOT, check=True)
        report = json.loads(Path(folder, "report.json").read_text())
    (ROOT / "requirements.lock").write_text(lock(report))


if __name__ == "__main__":
    main()
