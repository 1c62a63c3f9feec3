"""Compare every file that tiny runs write, of another commit and of this working tree: `make net BASE=<commit>`.

Both trees train on the same machine, from copies outside any checkout, so that only what the code computes can differ.
Times are no part of a result: the list below names everything that is not compared, and why.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

NOT_COMPARED = {"timing.jsonl": "seconds per round", "lock": "empty"}
TIMES = ("seconds", "latency", "fp32_latency")
"""Entries of JSON files that say how long something took."""
TIMED_TEXT = re.compile(rb"[0-9.,]+ ?(?:ms|s|\xc2\xb5s)\b")
"""Times in pages and cards."""
TIMED_COLUMNS = ("seconds",)
"""Columns of CSV files."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--keep", type=Path, help="a new folder to leave both sides in")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anybit-net-") as folder:
        home = arguments.keep or Path(folder)
        sides = {"base": _archived(arguments.base, home / "base"), "now": _copied(home / "now")}
        running = [_start(home / name) for name in sides]
        if any(code := [process.wait() for process in running]):
            sys.exit(f"a side failed (exit codes {code}): see what it printed")
        differing, count = list(differences(home / "base/out", home / "now/out")), _count(home / "now/out")
    for line in differing:
        print(line)
    print(f"{count} files compared, {len(differing)} differ; not compared: "
          + ", ".join(f"{name} ({why})" for name, why in NOT_COMPARED.items()))
    sys.exit(bool(differing))


def _archived(commit: str, side: Path) -> Path:
    """The package as it was at a commit."""
    side.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryFile() as file:
        file.write(packed)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            archive.extractall(side, filter="data")
    return side


def _copied(side: Path) -> Path:
    """The package as it lies here, with what is not committed."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (side / name).parent.mkdir(parents=True, exist_ok=True)
            (side / name).write_bytes((ROOT / name).read_bytes())
    return side


def _start(side: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join((str(side / "src"), str(HERE)))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}
    port = "29541" if side.name == "base" else "29542"
    return subprocess.Popen([sys.executable, str(HERE / "runs.py"), "out", port], cwd=side, env=environment)


def differences(before: Path, after: Path) -> Iterator[str]:
    """Every file that one side lacks, or whose content differs."""
    names = sorted({path.relative_to(side) for side in (before, after) for path in side.rglob("*") if path.is_file()})
    for name in names:
        if name.name in NOT_COMPARED:
            continue
        if not (before / name).exists() or not (after / name).exists():
            yield f"{name}: only {'now' if (after / name).exists() else 'before'}"
        elif content(before / name) != content(after / name):
            yield f"{name}: differs"


def _count(side: Path) -> int:
    return sum(path.is_file() and path.name not in NOT_COMPARED for path in side.rglob("*"))


def content(path: Path) -> object:
    """What a file says, without times."""
    raw = path.read_bytes()
    if path.suffix == ".json" or path.suffix == ".jsonl":
        texts = raw.splitlines() if path.suffix == ".jsonl" else [raw]
        try:
            return [_without_times(json.loads(text)) for text in texts]
        except ValueError:
            return raw
    if path.suffix == ".csv":
        rows = list(csv.reader(raw.decode().splitlines()))
        timed = {i for i, name in enumerate(rows[0]) if name in TIMED_COLUMNS}
        return [[cell for i, cell in enumerate(row) if i not in timed] for row in rows]
    if path.suffix in (".html", ".md"):
        return TIMED_TEXT.sub(b"", raw)
    return raw


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
