"""Run folders as the report sees them: whatever is there, also of a run that is not finished."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anybit.errors import ConfigError, RunError
from anybit.files.reading import read_json
from anybit.quant.grid import FLOAT, Width
from anybit.sweeps.plan import is_sweep
from anybit.training.run_folder import RunFolder

Scores = dict[str, dict[str, float]]
"""{width: {"loss": …, "metric": …}}; a value that is not finite is left out."""


@dataclass(frozen=True)
class RunRecord:
    """One run, read once."""

    name: str
    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    evaluation: dict[str, Any] | None
    """evaluation.json; none while the run is not finished."""
    metrics: list[dict[str, Any]]
    timing: list[dict[str, Any]]
    weights: dict[str, Tensor]
    """The trained weights, or those of the newest checkpoint; empty if there is neither."""
    steps: dict[str, dict[str, Any]]
    """{weight or activation site: {bits: step, or steps per channel}}, as in steps.json."""
    split_sizes: list[int]

    @property
    def finished(self) -> bool:
        return self.evaluation is not None

    @property
    def metric(self) -> str | None:
        """The metric's name; an unfinished run does not know it yet."""
        return self.evaluation["metric"] if self.evaluation else None

    @property
    def variant(self) -> str:
        if self.evaluation:
            return str(self.evaluation["variant"])
        component = self.config.get("variant", {})
        return str(component.get("is", component.get("name", "?")))

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest evaluation of the training, with its round: {round, steps, scores, layers_at, layers}."""
        entries = [e for e in self.metrics if e.get("evaluation")]
        return {"round": entries[-1]["round"], **entries[-1]["evaluation"]} if entries else None

    @property
    def own(self) -> str | None:
        """The step rule at which this run is judged."""
        if self.evaluation:
            return str(self.evaluation["own"])
        return str(self.last["steps"]) if self.last else None

    @property
    def grid(self) -> dict[str, Scores]:
        """{step rule: scores}: the final grid, or the newest evaluation of an unfinished run."""
        if self.evaluation:
            grid: dict[str, Scores] = self.evaluation["grid"]
            return grid
        return {self.last["steps"]: self.last["scores"]} if self.last else {}

    @property
    def scores(self) -> Scores:
        """The scores at the run's own step rule."""
        return self.grid.get(self.own, {}) if self.own else {}

    @property
    def mixed(self) -> Scores:
        """The scores at every pair of bits of weights and activations; empty if they were not asked for."""
        mixed: Scores = (self.evaluation or {}).get("mixed", {})
        return mixed

    @property
    def rounds(self) -> int:
        """How many rounds are behind it."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def sites(self) -> str | None:
        """The kind of sites the variant quantizes: W, A or WA."""
        if self.evaluation:
            return str(self.evaluation["sites"])
        return _letters(self.last["layers_at"]) if self.last else None

    @property
    def lowest(self) -> str | None:
        """The width of fewest bits at the variant's own sites."""
        own = [name for name in self.scores if _letters(name) == self.sites]
        return min(own or self.scores, key=lambda name: min(Width.parse(name)), default=None)

    @property
    def bits(self) -> list[int]:
        """The bit-widths below full precision at which it is evaluated, highest first."""
        found = {b for name in self.scores for b in Width.parse(name) if b != FLOAT}
        return sorted(found, reverse=True)


def _letters(width: str) -> str:
    return width.rstrip("0123456789")


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs in these folders, each under a name of its own."""
    paths = [run for path in paths for run in _runs_of(path)]
    if not paths:
        raise RunError("no run given: name at least one run folder")
    names = unique_names(paths)
    return [_read(path, name) for path, name in zip(paths, names, strict=True)]


def _runs_of(path: Path) -> list[Path]:
    """The folder itself, or the runs of a sweep that have begun."""
    return sorted(found.parent for found in path.glob("*/config.json")) if is_sweep(path) else [path]


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


def _read(path: Path, name: str) -> RunRecord:
    if not (path / "config.json").is_file() and path.is_dir() and any(path.glob("*/config.json")):
        raise RunError(f"{path} is not a run but a folder of runs: name them, e.g. {path}/*/")
    folder = RunFolder.open(path)
    config = _table(folder, "config.json")
    for part in ("data", "split", "model", "variant", "sites"):
        if not isinstance(config.get(part, {}), dict):
            raise RunError(f"{folder.file('config.json')} is not a config: '{part}' must be a table")
    environment = _table(folder, "environment.json") if folder.file("environment.json").exists() else {}
    trained, steps = _weights(folder)
    return RunRecord(name, path, config, environment, _evaluation(folder),
                     _metrics(folder), folder.lines("timing"), trained, steps, _split_sizes(folder))


def _table(folder: RunFolder, name: str) -> dict[str, Any]:
    return _as_table(read_json(folder.file(name)), folder.file(name))


def _as_table(content: Any, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a config: it must be a table")
    return content


def _weights(folder: RunFolder) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """(weights, step table): the result of the run, or its newest checkpoint."""
    if folder.finished:
        return folder.model(), _as_table(folder.steps(), folder.file("steps.json"))
    newest = folder.newest_checkpoint(torch.device("cpu"))
    return (newest.weights(), newest.table().to_json()) if newest else ({}, {})


def _split_sizes(folder: RunFolder) -> list[int]:
    return [len(index) for index in folder.split()] if folder.file("split.safetensors").exists() else []


def _evaluation(folder: RunFolder) -> dict[str, Any] | None:
    if not folder.finished:
        return None
    content = folder.evaluation()
    try:
        grid = {str(steps): _scores(scores) for steps, scores in content["grid"].items()}
        return {**content, "mixed": _scores(content.get("mixed", {})), "metric": str(content["metric"]),
                "variant": str(content["variant"]), "sites": str(content["sites"]),
                "own": next(s for s in grid if s == content["own"]), "grid": grid}
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, StopIteration, ConfigError) as error:
        raise RunError(f"{folder.file('evaluation.json')} is not an evaluation ({error!r})") from None


def _metrics(folder: RunFolder) -> list[dict[str, Any]]:
    entries = []
    for number, entry in enumerate(folder.lines("metrics"), 1):
        try:
            seen: dict[str, Any] = {"round": int(entry["round"]), "loss": float(entry["loss"])}
            if entry.get("evaluation"):
                found = entry["evaluation"]
                seen["evaluation"] = {"steps": str(found["steps"]), "scores": _scores(found["scores"]),
                                      "layers_at": str(Width.parse(found["layers_at"])),
                                      "layers": {str(name): {key: float(health[key]) for key in ("kurtosis", "saturation")}
                                                 for name, health in found["layers"].items()}}
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, ConfigError) as error:
            raise RunError(f"{folder.file('metrics.jsonl')}, line {number}, is not a round ({error!r})") from None
        entries.append(seen)
    return entries


def _scores(scores: Mapping[str, Mapping[str, Any]]) -> Scores:
    read: Scores = {}
    for width, score in scores.items():
        values = {key: float(score[key]) for key in ("loss", "metric")}
        read[str(Width.parse(width))] = {key: value for key, value in values.items() if math.isfinite(value)}
    return read
