"""The runs of a report, under unique names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anybit.errors import RunError
from anybit.sweeps.plan import is_sweep
from anybit.training.reading import RunRecord


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """Read the runs in these folders."""
    paths = [run for path in paths for run in _runs_of(path)]
    if not paths:
        raise RunError("no run given: name at least one run folder")
    return [RunRecord(path, name).read() for path, name in zip(paths, unique_names(paths), strict=True)]


def _runs_of(path: Path) -> list[Path]:
    """List the folder itself, or the runs of a sweep that have begun."""
    inside = sorted(config.parent for config in path.glob("*/config.json"))
    if inside and not is_sweep(path) and not (path / "config.json").is_file():
        raise RunError(f"{path} is not a run but a folder of runs: name them, e.g. {path}/*/")
    return inside if is_sweep(path) else [path]


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return folder names with as many parents as tell them apart; a folder that is given twice is numbered.

    >>> unique_names([Path("/a/mqat"), Path("/b/mqat"), Path("/b/qat")])
    ['a/mqat', 'b/mqat', 'qat']
    """
    folders = [path.resolve().parts for path in paths]
    names: list[str] = []
    for parts in folders:
        rivals = [folder for folder in folders if folder != parts]
        length = next((n for n in range(1, len(parts)) if all(rival[-n:] != parts[-n:] for rival in rivals)), len(parts))
        name = "".join(c if c.isprintable() else "�" for c in "/".join(parts[-length:]))
        same = sum(n == name or n.startswith(f"{name} (") for n in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names
