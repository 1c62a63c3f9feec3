"""Build the sdist and, from it, the wheel into dist/, and try the wheel where there is no checkout: python tools/package.py

The wheel goes into a new environment under the pinned constraints; there the command must say its version, list its recipes
and train two rounds. So packaging works for somebody who never sees the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = ["-m", "pip", "install", "-qq", "--disable-pip-version-check"]


def environment(folder: Path, *packages: str) -> Path:
    """Return the Python of a new environment with these packages and nothing else."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    subprocess.run([python, *PIP, "--constraint", ROOT / "constraints.txt", *packages], check=True)
    return python


def build(home: Path, dist: Path) -> Path:
    """Write the sdist and the wheel that is made from it into `dist`, and return the wheel."""
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    python = environment(home / "build", *backend)
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([python, "-m", "hatchling", "build", "-t", "sdist", "-d", dist], cwd=ROOT, check=True,
                   capture_output=True)
    (sdist,) = dist.glob("*.tar.gz")
    subprocess.run([python, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", dist, sdist], check=True)
    (wheel,) = dist.glob("*.whl")
    return wheel


def use(wheel: Path, home: Path) -> None:
    """Install the wheel with what the demo needs, and run its command outside the checkout."""
    anybit = environment(home / "user", f"{wheel}[demo]").parent / "anybit"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def say(*arguments: str) -> str:
        return subprocess.run([anybit, *arguments], cwd=home, env=clean, check=True, stdout=subprocess.PIPE,
                              text=True).stdout

    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if say("--version").strip() != f"anybit {version}":
        sys.exit(f"{wheel.name}: anybit --version does not say {version}")
    if "quickstart/mqat" not in say("ls"):
        sys.exit(f"{wheel.name}: anybit ls does not list quickstart/mqat")
    say("run", "quickstart/mqat", "rounds=2", "--path", "run")
    say("report", "run", "--out", "report")


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        wheel = build(Path(home), ROOT / "dist")
        use(wheel, Path(home))
    print("\n".join(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes" for path in sorted(wheel.parent.iterdir())))


if __name__ == "__main__":
    main()
