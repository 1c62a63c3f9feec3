"""Results of runs, small enough to keep: what was trained, every score, the curve, and what it took."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anybit.config import Config
from anybit.config.compare import compared
from anybit.errors import ConfigError, RunError
from anybit.federated.metrics import meaning_in, metric_column
from anybit.files.reading import read_json
from anybit.files.sheets import as_csv
from anybit.files.writing import write_bytes, writing
from anybit.recipes import toml_value
from anybit.schema import plain, read
from anybit.sweeps.plan import SweepFolder, is_sweep
from anybit.training.reading import RunRecord
from anybit.training.records import check_scores, checked_evaluation, total_seconds
from anybit.training.run_folder import RunFolder

Scores = Mapping[str, Mapping[str, float]]
"""{width: {"loss": …, "metric": …}}."""

_WHICH = ("run", "data", "model", "variant", "seed", "rounds", "steps", "own", "width")
_FIGURES = ("loss", "metric", "seconds", "device")
_TOLD = {*_WHICH, *_FIGURES, "data.name", "model.name", "variant.name", "variant.is"}
"""Settings that are no column of their own: the CSV has one of that name, or of that content."""


@dataclass(frozen=True)
class Point:
    """The server model on the way, at the variant's own steps and sites."""

    round: int
    loss: float | None
    """The clients' training loss, mean over the rounds since the point before; none where that is not finite."""
    scores: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    name: str
    config: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    """evaluation.json: every width × step rule."""
    curve: tuple[Point, ...]
    seconds: float
    environment: Mapping[str, Any]

    @functools.cached_property
    def settings(self) -> Config:
        config: Config = read(Config, self.config)
        return config

    @property
    def seed(self) -> int:
        return self.settings.seed

    @property
    def own(self) -> str:
        """The step rule at which the run is judged."""
        return str(self.evaluation["own"])

    def metric(self, width: str, steps: str | None = None) -> float | None:
        """Return the metric at a width, by the run's own step rule unless given; none where it was not evaluated."""
        scores: Scores = self.evaluation["grid"].get(steps or self.own, {})
        return scores[width]["metric"] if width in scores else None


@dataclass(frozen=True)
class Found:
    """The runs of a set of folders and files."""

    results: list[Result]
    unfinished: list[str]


def read_results(paths: Sequence[Path]) -> Found:
    """Read the finished runs of sweeps, run folders and results files."""
    collected = Found([], [])
    for path in paths:
        if path.is_file():
            collected.results.extend(_from_file(path))
            continue
        folders = [sweep.run_path(run) for sweep in [SweepFolder.open(path)] for run in sweep.runs] \
            if is_sweep(path) else [RunFolder.open(path).path]
        for folder in folders:
            if (folder / "evaluation.json").exists():
                collected.results.append(_from_record(RunRecord(folder)))
            else:
                collected.unfinished.append(str(folder))
    return collected


def _from_record(record: RunRecord) -> Result:
    return _checked({"name": record.name, "config": record.config, "evaluation": record.evaluation,
                     "curve": [plain(point) for point in _curve(record.metrics)],
                     "seconds": round(total_seconds(record.timing), 1), "environment": record.environment}, record.path)


def _curve(metrics: Iterable[Mapping[str, Any]]) -> Iterable[Point]:
    losses: list[float] = []
    for entry in metrics:
        losses.append(entry.get("loss", math.nan))
        if entry.get("evaluation"):
            mean = sum(losses) / len(losses)
            yield Point(entry["round"], mean if math.isfinite(mean) else None, entry["evaluation"]["scores"])
            losses = []


def _from_file(path: Path) -> list[Result]:
    content = read_json(path)
    try:
        return [_checked(entry, path) for entry in content["runs"]]
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError, ConfigError) as error:
        raise RunError(f"{path} is not a results file of 'anybit collect' ({error})") from None


def _checked(entry: Mapping[str, Any], path: Path) -> Result:
    """Check a result once, so that a damaged file is named here and not where its content is used."""
    result: Result = read(Result, entry)
    checked_evaluation(result.evaluation, path)
    for point in result.curve:
        check_scores(point.scores)
    read(Config, result.config)
    return result


def write_results(results: Sequence[Result], out: Path) -> None:
    """Write FILE.json with everything, or FILE.csv with the scores and the settings that differ between the runs."""
    if out.suffix == ".json":
        # One run per line: files of many runs stay small, and their differences readable.
        text = '{"runs": [\n' + ",\n".join(json.dumps(plain(r), ensure_ascii=False) for r in results) + "\n]}\n"
    elif out.suffix == ".csv":
        text = _csv(results)
    else:
        raise ConfigError(f"'{out}': a results file ends in .json or .csv")
    with writing(out, "choose another file with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out, text.encode())


def _csv(results: Sequence[Result]) -> str:
    varied = _varied(results)
    column = metric_column(meaning_in(r.evaluation) for r in results)
    lines: list[tuple[object, ...]] = [(*_WHICH, *varied, *(column if name == "metric" else name for name in _FIGURES))]
    for i, r in enumerate(results):
        settings = r.settings
        components = [settings.data.name, settings.model.name]
        here = [values[i] for values in varied.values()]
        device = r.environment.get("gpu") or r.environment.get("cpu", "")
        for rule, scores in r.evaluation["grid"].items():
            which = (r.name, *components, r.evaluation["variant"], settings.seed, settings.rounds, rule, rule == r.own)
            lines.extend((*which, width, *here, score["loss"], score["metric"], r.seconds, device)
                         for width, score in scores.items())
    return as_csv(lines)


def _varied(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return {setting: its value in each run} of the settings that differ; empty where a run has none."""
    settings = compared([plain(r.settings) for r in results])
    return {key: list(map(_cell, values)) for key, values in settings.items()
            if key not in _TOLD and any(value != values[0] for value in values)}


def _cell(value: Any) -> str:
    """Write a value as an override takes it."""
    return value if isinstance(value, str) else "" if value is None else toml_value(value)
