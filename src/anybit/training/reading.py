"""Reading a run: everything in its folder, also of a run that is not finished."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.federated.metrics import Meaning, meaning_in
from anybit.quant.grid import FLOAT, Width
from anybit.training.records import checked_metrics
from anybit.training.run_folder import RunFolder

Scores = dict[str, dict[str, float]]
"""{width: {"loss": …, "metric": …}}; a value that is not finite is left out."""


class RunRecord:
    """One run: every file is read when it is first asked for, checked, and read once."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.folder, self.path, self.name = RunFolder.open(path), path, name or path.name

    def read(self) -> RunRecord:
        """Read everything now, so that what is damaged is named before anything is made of it."""
        _ = (self.config, self.task, self.environment, self.evaluation, self.metrics, self.timing, self.weights, self.steps,
             self.split_sizes)
        return self

    @cached_property
    def config(self) -> dict[str, Any]:
        config = _table(self.folder.config(), self.folder.file("config.json"))
        for part in ("data", "split", "model", "variant", "sites"):
            if not isinstance(config.get(part, {}), dict):
                raise RunError(f"{self.folder.file('config.json')} is not a config: '{part}' must be a table")
        return config

    @cached_property
    def task(self) -> dict[str, Any]:
        """What identifies the model, data, loss and metric; empty where nobody recorded it."""
        return self.folder.task() or {}

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self.folder.environment()

    @cached_property
    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json; none while the run is not finished."""
        return self.folder.evaluation() if self.folder.finished else None

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        return checked_metrics(self.folder.lines("metrics"), self.folder.file("metrics.jsonl"))

    @cached_property
    def timing(self) -> list[dict[str, Any]]:
        return self.folder.lines("timing")

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trained weights, or those of the newest checkpoint; empty if there is neither."""
        return self._trained[0]

    @property
    def steps(self) -> dict[str, dict[str, Any]]:
        """{weight or activation site: {bits: step size, or sizes per channel}}, as in steps.json."""
        return self._trained[1]

    @cached_property
    def _trained(self) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
        if self.folder.finished:
            return self.folder.model(), _table(self.folder.steps(), self.folder.file("steps.json"))
        newest = self.folder.newest_checkpoint(torch.device("cpu"))
        if newest is None:
            return {}, {}
        server = self.config.get("server")
        average = newest.average() if isinstance(server, dict) and server.get("deliver") == "average" else {}
        w = average or newest.weights()
        return w, newest.table(w).to_json()

    @cached_property
    def split_sizes(self) -> list[int]:
        stored = self.folder.file("split.safetensors").exists()
        return [len(index) for index in self.folder.split()] if stored else []

    @property
    def finished(self) -> bool:
        return self.evaluation is not None

    @property
    def metric(self) -> Meaning | None:
        """The metric's name, direction and unit; an unfinished run does not know it yet."""
        return meaning_in(self.evaluation) if self.evaluation else None

    @property
    def variant(self) -> str:
        if self.evaluation:
            return str(self.evaluation["variant"])
        component = self.config.get("variant", {})
        return str(component.get("is", component.get("name", "?")))

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """The evaluations of the training, each with its round: {round, steps, scores, layers_at, layers}."""
        return [{"round": entry["round"], **entry["evaluation"], "scores": finite(entry["evaluation"]["scores"])}
                for entry in self.metrics if entry.get("evaluation")]

    @property
    def last(self) -> dict[str, Any] | None:
        return self.curve[-1] if self.curve else None

    @property
    def own(self) -> str | None:
        """The step rule at which this run is judged."""
        if self.evaluation:
            return str(self.evaluation["own"])
        return str(self.last["steps"]) if self.last else None

    @cached_property
    def grid(self) -> dict[str, Scores]:
        """{step rule: scores}: the final grid, or the newest evaluation of an unfinished run."""
        if self.evaluation:
            return {rule: finite(scores) for rule, scores in self.evaluation["grid"].items()}
        return {self.last["steps"]: self.last["scores"]} if self.last else {}

    @property
    def scores(self) -> Scores:
        """The scores at the run's own step rule."""
        return self.grid.get(self.own, {}) if self.own else {}

    @property
    def mixed(self) -> Scores:
        """The scores at every pair of bits of weights and activations; empty if they were not asked for."""
        return finite((self.evaluation or {}).get("mixed", {}))

    @property
    def rounds(self) -> int:
        """The rounds behind it."""
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def sites(self) -> str | None:
        """The kind of sites the variant quantizes: W, A or WA."""
        if self.evaluation:
            return str(self.evaluation["sites"])
        return _letters(str(Width.parse(self.last["layers_at"]))) if self.last else None

    @property
    def lowest(self) -> str | None:
        """The width of fewest bits at the variant's own sites."""
        trained = [name for name in self.scores if _letters(name) == self.sites]
        return min(trained or self.scores, key=lambda name: min(Width.parse(name)), default=None)

    @property
    def bits(self) -> list[int]:
        """The bit-widths below full precision at which it is evaluated, highest first."""
        return sorted({b for name in self.scores for b in Width.parse(name) if b != FLOAT}, reverse=True)


def finite(scores: Mapping[str, Mapping[str, Any]]) -> Scores:
    """Return the scores by width as widths are written, without values that are not finite."""
    return {str(Width.parse(width)): {key: float(score[key]) for key in ("loss", "metric") if math.isfinite(score[key])}
            for width, score in scores.items()}


def _table(content: Any, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a config: it must be a table")
    return content


def _letters(width: str) -> str:
    return width.rstrip("0123456789")
