"""The commands that make the runs of a report, and the report, again.

Paths are relative to the report's folder, so that the commands still hold after runs and report have moved together.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from anybit.sweeps.plan import is_sweep
from anybit.training.reading import RunRecord

_COMPONENTS = ("data", "split", "model", "variant")
_FUNCTIONS = ("loss", "metric")


def commands(records: Sequence[RunRecord], paths: Sequence[Path], out: Path) -> list[str]:
    """List the commands that train every run again, finish unfinished ones, and make the report of `paths` in `out`."""
    lines = []
    for record, file in zip(records, recipe_files(records), strict=True):
        if file:
            lines.append(_anybit("run", file, *_imports([record])))
        else:
            resuming = "" if record.finished else " with its path and resume=True"
            lines.append(f"# {record.name} was trained from Python objects: call anybit.fit again{resuming}")
    lines += dict.fromkeys(line for path in paths for line in _finishing(path, records, out))
    return [*lines, _anybit("report", *(_relative(path, out) for path in paths), "--out", ".")]


def _finishing(path: Path, records: Sequence[RunRecord], out: Path) -> Iterator[str]:
    """List the commands that finish the unfinished runs of a run folder or sweep."""
    if is_sweep(path):
        inside = [record for record in records if record.path.parent == path]
        if not all(record.finished for record in inside):
            yield _anybit("sweep", _relative(path, out), *_imports(inside))
        return
    for record in records:
        if record.path != path or record.finished or not _has_recipe(record):
            continue
        if (path / "fleet.jsonl").exists():
            yield f"# {record.name} is trained by a fleet: run its app again, and it goes on from its checkpoint"
        else:
            yield _anybit("resume", _relative(path, out), *_imports([record]))


def recipe_files(records: Sequence[RunRecord]) -> list[str | None]:
    """Return the file names of the runs' recipes; None for a run of Python objects, which no recipe can name."""
    taken: list[str | None] = []
    for record in records:
        slug = re.sub(r"[^\w.-]+", "-", record.name, flags=re.ASCII).strip("-.") or "run"
        name, number = f"{slug}.toml", 2
        while name in taken:
            name, number = f"{slug}-{number}.toml", number + 1
        taken.append(name if _has_recipe(record) else None)
    return taken


def _has_recipe(record: RunRecord) -> bool:
    return not any(str(record.config.get(part, {}).get("name", "<")).startswith("<") for part in _COMPONENTS)


def modules(records: Sequence[RunRecord]) -> list[str]:
    """List the user's own modules that the recipes name."""
    names = [str(name) for record in records if _has_recipe(record)
             for name in (*(record.config[part]["name"] for part in _COMPONENTS),
                          *(record.config.get(function, "") for function in _FUNCTIONS))]
    return list(dict.fromkeys(name.partition(":")[0] for name in names if ":" in name))


def _imports(records: Sequence[RunRecord]) -> list[str]:
    return [word for module in modules(records) for word in ("--import", module)]


def _anybit(*words: str) -> str:
    return shlex.join(["anybit", *words])


def _relative(path: Path, out: Path) -> str:
    """Return the path relative to `out`, so that no command takes it for an option."""
    relative = os.path.relpath(path.resolve(), out.resolve())
    return f"./{relative}" if relative.startswith("-") else relative
