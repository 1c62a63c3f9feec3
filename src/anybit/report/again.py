"""What to type to have the runs of a report again, and the report.

Paths are seen from the report's own folder, so that the commands hold wherever the report was made from, and also after
runs and report have moved together.
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
    """To train every run again, to finish those that are not, and to make the report of `paths` in `out`."""
    lines = []
    for record, file in zip(records, recipe_files(records), strict=True):
        if file:
            lines.append(_anybit("run", file, *_imports([record])))
        else:
            how = "" if record.finished else " with its path and resume=True"
            lines.append(f"# {record.name} was trained from Python objects: call anybit.fit again{how}")
    lines += dict.fromkeys(line for path in paths for line in _finishing(path, records, out))
    return [*lines, _anybit("report", *(_seen_from(out, path) for path in paths), "--out", ".")]


def _finishing(path: Path, records: Sequence[RunRecord], out: Path) -> Iterator[str]:
    """What finishes the runs of a run folder or sweep that are not."""
    if is_sweep(path):
        inside = [record for record in records if record.path.parent == path]
        if not all(record.finished for record in inside):
            yield _anybit("sweep", _seen_from(out, path), *_imports(inside))
        return
    for record in records:
        if record.path != path or record.finished or not _has_recipe(record):
            continue
        if (path / "fleet.jsonl").exists():
            yield f"# {record.name} is trained by a fleet: run its app again, and it goes on from its checkpoint"
        else:
            yield _anybit("resume", _seen_from(out, path), *_imports([record]))


def recipe_files(records: Sequence[RunRecord]) -> list[str | None]:
    """The file names of the runs' recipes; none for a run of Python objects, which no recipe can name."""
    taken: list[str | None] = []
    for record in records:
        slug = re.sub(r"[^\w.-]+", "-", record.name, flags=re.ASCII).strip("-.") or "run"
        name: str = f"{slug}.toml"
        number = 2
        while name in taken:
            name, number = f"{slug}-{number}.toml", number + 1
        taken.append(name if _has_recipe(record) else None)
    return taken


def _has_recipe(record: RunRecord) -> bool:
    names = [str(record.config.get(what, {}).get("name", "<")) for what in _COMPONENTS]
    return not any(name.startswith("<") for name in names)


def modules(records: Sequence[RunRecord]) -> list[str]:
    """The modules of the user's own that the recipes name."""
    names = [str(name) for record in records if _has_recipe(record)
             for name in (*(record.config[what]["name"] for what in _COMPONENTS),
                          *(record.config.get(what, "") for what in _FUNCTIONS))]
    return list(dict.fromkeys(name.partition(":")[0] for name in names if ":" in name))


def _imports(records: Sequence[RunRecord]) -> list[str]:
    return [word for module in modules(records) for word in ("--import", module)]


def _anybit(*words: str) -> str:
    return shlex.join(["anybit", *words])


def _seen_from(out: Path, path: Path) -> str:
    """A relative path that no command takes for an option."""
    seen = os.path.relpath(path.resolve(), out.resolve())
    return f"./{seen}" if seen.startswith("-") else seen
