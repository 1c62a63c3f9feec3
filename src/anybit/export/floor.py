"""The floor: a width at which a model has lost most of what it learned is not exported.

By default, of a classifier with a metric in percent: less than half of what full precision gains over chance. Chance is what
the same outputs score on other examples' labels, so that a model that always names the most frequent class gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import torch
from torch import Tensor

from anybit.errors import ConfigError, option
from anybit.export.reference import metric, outputs, reference
from anybit.export.subject import Subject
from anybit.federated.metrics import Meaning, classifies, meaning, per_example
from anybit.quant.grid import FLOAT, Width

KEPT = 0.5
"""Share of full precision's gain over chance that a width must keep."""
LEARNED = 5.0
"""Points that full precision must gain over chance before a width can lose them."""
_ORDERS = 8


@dataclass(frozen=True)
class Floor:
    """The judge of what a width scores, before anything is written."""

    subject: Subject
    least: float | None = None
    """The worst metric that is exported; none: by what is kept over chance; 0: anything."""

    @property
    def _metric(self) -> Meaning:
        return meaning(self.subject.evaluator.metric)

    @cached_property
    def _full(self) -> Tensor:
        return outputs(reference(self.subject, Width(FLOAT, FLOAT)), self.subject)

    @cached_property
    def _has_chance(self) -> bool:
        return ((self._metric.unit, self._metric.better) == ("%", "higher")
                and classifies(self._full, self.subject.data.test.y))

    def _gain(self, result: Tensor) -> float:
        return metric(self.subject, result) - chance(self.subject, result)

    @cached_property
    def warning(self) -> str:
        """Why no width can be judged by what it lost; empty if it can, or need not."""
        if self.least is not None or not self._has_chance or self._gain(self._full) >= LEARNED:
            return ""
        text = self._metric.text
        return (f"in full precision its {self._metric.name} is {text(metric(self.subject, self._full))}, by chance "
                f"{text(chance(self.subject, self._full))}: the model has learned nothing that a width could lose")

    def refusal(self, width: Width) -> str:
        """Say why a width is not exported; empty if it may be."""
        if self.least == 0 or (self.least is None and not (self._has_chance and not self.warning)):
            return ""
        result, name, text = outputs(reference(self.subject, width), self.subject), self._metric.name, self._metric.text
        value = metric(self.subject, result)
        if self.least is None:
            kept = self._gain(result) / self._gain(self._full)
            return "" if kept >= KEPT else (
                f"{width} is not exported: its {name} is {text(value)}, by chance {text(chance(self.subject, result))}, in "
                f"full precision {text(metric(self.subject, self._full))}: more than half of what was learned is lost "
                f"({option('min_accuracy', 0)} exports it all the same)")
        if self._metric.better is None:
            raise ConfigError(f"{option('min_accuracy', self.least)}: nobody said which direction of the metric '{name}' is "
                              "better; give a Metric with better='higher' or 'lower', or leave it out")
        if self._metric.lost(self.least, value) <= 0:
            return ""
        side = "below" if self._metric.better == "higher" else "above"
        return f"{width} is not exported: its {name} is {text(value)}, {side} {option('min_accuracy', self.least)}"


def chance(subject: Subject, result: Tensor) -> float:
    """Return the metric of outputs against the labels of other examples: the mean over some orders of the test set."""
    generator, targets = torch.Generator().manual_seed(0), subject.data.test.y
    orders = [torch.randperm(len(targets), generator=generator) for _ in range(_ORDERS)]
    return fmean(float(per_example(subject.evaluator.metric, "metric", result, targets[order]).double().mean())
                 for order in orders)
