"""Overfitting: the server model's test loss and accuracy during training, mean over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anybit.quant.grid import Width
from anybit.sweeps.results import Result
from anybit.training.build import Components

_TITLES = {"baseline": "Baseline", "baseline-dropout": "Baseline (dropout)", "mqat": "MQAT-W", "mqat-a": "MQAT-A",
           "mqat-wa": "MQAT-WA", "mqat-fixed": "MQAT*-W", "mqat-full": "MQAT-W (2…32)"}
"""The recipes of the paper's figure, and MQAT's relatives, by the last part of their names."""


@dataclass(frozen=True)
class Curve:
    """One score of one variant over the rounds that all its seeds have."""

    rounds: tuple[int, ...]
    values: np.ndarray
    """(seeds, rounds)."""

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.values.mean(0))

    @property
    def best_round(self) -> int:
        """The round of the least mean."""
        return self.rounds[int(self.mean.argmin())]

    @property
    def risen(self) -> float:
        """The rise of the mean from its least value to the end."""
        return float(self.mean[-1] - self.mean.min())


@dataclass(frozen=True)
class Course:
    """The curves of one variant: loss at its lowest width, as in the paper, and accuracy in full precision."""

    title: str
    width: str
    loss: Curve
    accuracy: Curve


def courses(by_recipe: Mapping[str, Sequence[Result]]) -> dict[str, list[Course]]:
    """Return {folder of recipes: its variants}, if a baseline and at least one MQAT were trained."""
    variants = {}
    for home in dict.fromkeys(recipe.rpartition("/")[0] for recipe in by_recipe):
        runs = {title: by_recipe[f"{home}/{leaf}"] for leaf, title in _TITLES.items() if f"{home}/{leaf}" in by_recipe}
        if _TITLES["baseline"] in runs and any(title.startswith("MQAT") for title in runs):
            lines = [_course(title, results) for title, results in runs.items() if all(r.curve for r in results)]
            variants[home.removeprefix("paper/")] = lines
    return variants


def _course(title: str, results: Sequence[Result]) -> Course:
    variant = Components(results[0].settings).build_variant()
    lowest = str(Width.of(variant.sites, min(variant.bits)))
    return Course(title, lowest, _curve(results, lowest, "loss"), _curve(results, "FP32", "metric"))


def _curve(results: Sequence[Result], width: str, key: Literal["loss", "metric"]) -> Curve:
    seeds = [{point.round: point.scores[width][key] for point in r.curve if width in point.scores} for r in results]
    rounds = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return Curve(tuple(rounds), np.array([[seed[round] for round in rounds] for seed in seeds]))
