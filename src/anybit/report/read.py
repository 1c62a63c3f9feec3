"""The runs of a report, each under a name of its own."""

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
    inside = sorted(found.parent for found in path.glob("*/config.json"))
    if inside and not is_sweep(path) and not (path / "config.json").is_file():
        raise RunError(f"{path} is not a run but a folder of runs: name them, e.g. {path}/*/")
    return inside if is_sweep(path) else [path]


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Folder names, preceded by as many parents as it takes to tell them apart; one given twice is numbered.

    >>> unique_names([Path("/a/mqat"), Path("/b/mqat"), Path("/b/qat")])
    ['a/mqat', 'b/mqat', 'qat']
    """
    parts = [path.resolve().parts for path in paths]
    names: list[str] = []
    for mine in parts:
        rivals = [other for other in parts if other != mine]
        length = next((n for n in range(1, len(mine)) if all(other[-n:] != mine[-n:] for other in rivals)), len(mine))
        name = "".join(c if c.isprintable() else "�" for c in "/".join(mine[-length:]))
        same = sum(n == name or n.startswith(f"{name} (") for n in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names
