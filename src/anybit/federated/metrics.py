"""Losses and metrics: one value per example, with a direction and a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anybit.data.examples import IGNORED
from anybit.errors import AnybitError, ConfigError

PerExample = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one value per example."""

Better = Literal["lower", "higher"]


class Meaning(NamedTuple):
    """The name of a metric, its direction (none: unknown, then nothing is called best) and its unit."""

    name: str
    better: Better | None
    unit: str

    @property
    def label(self) -> str:
        """The name with its unit, for an axis: "mae (°C)"."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def head(self) -> str:
        """The head of a column of numbers: as `label`, but percent goes without saying."""
        return self.name if self.unit == "%" else self.label

    def text(self, value: float) -> str:
        """Write a value: percent with two digits, anything else with four that count."""
        return f"{value:.2f}" if self.unit == "%" else f"{value:.4g}"

    def line(self, scores: Mapping[str, Mapping[str, float]]) -> str:
        """Write the scores by width in a line: "FP32 98.33 W2 97.50"."""
        return " ".join(f"{width} {self.text(score['metric'])}" for width, score in scores.items())

    def lost(self, before: float, after: float) -> float:
        """Return by how much `after` is worse than `before`; 0 where nobody said what worse means."""
        return {"higher": before - after, "lower": after - before, None: 0.0}[self.better]

    def recorded(self) -> dict[str, Any]:
        """Return the keys of evaluation.json and export.json; accuracy is known by its name."""
        return {"metric": self.name} | ({} if self == ACCURACY else {"better": self.better, "unit": self.unit})


ACCURACY = Meaning("accuracy", "higher", "%")


def meaning_in(record: Mapping[str, Any]) -> Meaning:
    """Read `Meaning.recorded` back."""
    if record["metric"] == ACCURACY.name and "better" not in record:
        return ACCURACY
    return Meaning(record["metric"], record.get("better"), record.get("unit", ""))


def metric_column(metrics: Iterable[Meaning | None]) -> str:
    """Name the column of a CSV: "metric" for accuracy and for runs of several metrics, else "mae (°C)"."""
    known = {metric for metric in metrics if metric is not None}
    return known.pop().label if len(known) == 1 and known != {ACCURACY} else "metric"


@dataclass(frozen=True)
class Metric:
    """A function (outputs, targets) → one value per example, of which the mean over the test set is reported."""

    function: PerExample
    name: str = ""
    """What reports call it; empty: the function's own name."""
    better: Better | None = None
    """Which of two values is the better one; none: unknown, and reports mark no best."""
    unit: str = ""
    """The unit of its values, such as "%" or "°C"."""

    def __post_init__(self) -> None:
        if not callable(self.function) or not isinstance(self.name, str) or not isinstance(self.unit, str):
            raise ConfigError("Metric: give a function (outputs, targets) → one value per example; name and unit are text")
        if self.better not in (None, "lower", "higher"):
            raise ConfigError(f"Metric: better is {self.better!r}: use 'lower' or 'higher'")
        named = getattr(self.function, "func", self.function)  # of a functools.partial
        object.__setattr__(self, "name", self.name or getattr(named, "__name__", type(named).__name__))

    @property
    def meaning(self) -> Meaning:
        return Meaning(self.name, self.better, self.unit)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.function(outputs, targets)


def meaning(metric: PerExample) -> Meaning:
    """Describe a metric; a plain function has its name and no direction."""
    return (metric if isinstance(metric, Metric) else Metric(metric)).meaning


def per_example(function: PerExample, what: str, outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute a loss or metric and raise unless it gives one value per example."""
    name = f"{what} '{meaning(function).name}'"
    shapes = f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
    try:
        values = function(outputs, targets)
    except (AnybitError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ConfigError(f"{name} fails on {shapes} ({type(error).__name__}: {_first_line(error)}): use one that "
                          "takes them") from error
    if not isinstance(values, Tensor):
        raise ConfigError(f"{name} returned a {type(values).__name__}: return a tensor with one value per example")
    if values.shape != (len(targets),):
        hint = "return one value per example, e.g. by reduction='none' or without .mean()"
        if values.dim() > 1 and outputs.numel() == targets.numel() and outputs.shape != targets.shape:
            hint = "the two were broadcast: give them one shape, e.g. outputs.squeeze(1)"
        elif values.dim() > 1:
            hint = "take the mean over the other dimensions, e.g. values.flatten(1).mean(1)"
        raise ConfigError(f"{name} returned shape {tuple(values.shape)} for {shapes}: {hint}")
    return values


def check_no_nan(function: PerExample, what: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise where an example has no number, which would be that of the mean over all."""
    if outputs.isfinite().all() and (bare := per_example(function, what, outputs, targets).isnan()).any():
        raise ConfigError(f"{what} '{meaning(function).name}' of {int(bare.sum())} of the {len(bare)} examples that were "
                          "tried is not a number, and so would be its mean: return a number for every example")


def check_alone(function: PerExample, what: str, outputs: Tensor, targets: Tensor) -> None:
    """Raise unless every example's value is the same with and without the others beside it.

    A broadcast (N, 1) − (N,) followed by a mean has the right shape, and gives every example a mean over all targets.
    """
    together = per_example(function, what, outputs, targets)
    alone = torch.cat([per_example(function, what, outputs[i:i + 1], targets[i:i + 1]) for i in range(len(targets))])
    if not torch.allclose(together.double(), alone.double(), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ConfigError(f"{what} '{meaning(function).name}' gives an example another value when others are beside it, for "
                          f"outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}: compute "
                          "each value from its own row, and give both one shape, e.g. outputs.squeeze(1)")


def check_gradient(loss: PerExample, outputs: Tensor, targets: Tensor) -> None:
    """Raise unless the loss depends on the outputs in a way that can be trained."""
    with torch.enable_grad():
        values = per_example(loss, "loss", outputs.detach().requires_grad_() * 1, targets)
    if not values.requires_grad:
        raise ConfigError(f"loss '{meaning(loss).name}' has no gradient, because argmax, comparisons, rounding and detach() "
                          "pass none: use one that changes smoothly with the outputs, and this one as metric")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def classifies(outputs: Tensor, targets: Tensor) -> bool:
    """Tell whether these are scores (N, C, …) of several classes and whole-number labels (N, …)."""
    return _labelled(outputs, targets) and outputs.shape[1] > 1


def _labelled(outputs: Tensor, targets: Tensor) -> bool:
    return (not targets.is_floating_point() and outputs.dim() > 1
            and outputs.shape[:1] + outputs.shape[2:] == targets.shape)


def _mean(values: Tensor) -> Tensor:
    """Average over everything but the example: pixels, tokens, labels."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _mean_where_labelled(values: Tensor, targets: Tensor) -> Tensor:
    """Average over the positions of an example, without those whose target is −100; (N,) values stay."""
    if values.dim() == 1:
        return values
    counts = (targets != IGNORED).to(values.dtype)
    return (values * counts).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp_min(1)


def _labels(outputs: Tensor, targets: Tensor, metric: str) -> None:
    if not _labelled(outputs, targets):
        raise ConfigError(f"{metric} needs scores (N, C, …) of classes and whole-number labels (N, …), not outputs of shape "
                          f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} ({targets.dtype}): use "
                          "metric 'mae', or one of your own")
    if outputs.shape[1] == 1:
        raise ConfigError(f"{metric} of a model with one output per example: that names class 0 whatever it is; use metric "
                          "'binary_accuracy', or give the model one output per class")


def _same_shape(outputs: Tensor, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return both in the outputs' shape and type: (N, 1) and (N,) are the same numbers, and must not broadcast."""
    if [n for n in outputs.shape[1:] if n != 1] != [n for n in targets.shape[1:] if n != 1]:
        raise ConfigError(f"{name} needs outputs and targets of one shape, not {tuple(outputs.shape)} and "
                          f"{tuple(targets.shape)}: change the model's last layer or the targets")
    return outputs, targets.reshape(outputs.shape).to(outputs.dtype)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log p(target) per example, the mean over its pixels or tokens that have a target: the default loss."""
    return _mean_where_labelled(F.cross_entropy(outputs, targets, reduction="none"), targets)


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of (output − target)² per example."""
    outputs, targets = _same_shape(outputs, targets, "mse")
    return _mean((outputs - targets).square())


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of |output − target| per example."""
    outputs, targets = _same_shape(outputs, targets, "mae")
    return _mean((outputs - targets).abs())


def bce_with_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over labels of −t·log σ(o) − (1 − t)·log(1 − σ(o)) per example, for targets t of 0 and 1."""
    return _mean(F.binary_cross_entropy_with_logits(*_same_shape(outputs, targets, "bce_with_logits"), reduction="none"))


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    _labels(outputs, targets, "accuracy")
    return _mean_where_labelled(100.0 * (outputs.argmax(1) == targets), targets)


def _top5(outputs: Tensor, targets: Tensor) -> Tensor:
    _labels(outputs, targets, "top5")
    best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices
    return _mean_where_labelled(100.0 * (best == targets.unsqueeze(1)).any(1), targets)


def _binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs, targets = _same_shape(outputs, targets, "binary_accuracy")
    return _mean(100.0 * ((outputs > 0) == (targets > 0.5)))


def _iou(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 100·|P ∩ T|/|P ∪ T| per example, over its positions that have a label; the mean over the classes in either."""
    _labels(outputs, targets, "iou")
    classes = torch.arange(outputs.shape[1], device=outputs.device)
    predicted, wanted = (torch.where(targets != IGNORED, labels, IGNORED).reshape(len(targets), -1, 1) == classes
                         for labels in (outputs.argmax(1), targets))
    either = (predicted | wanted).sum(1)
    share = (predicted & wanted).sum(1) / either.clamp_min(1)
    return 100.0 * share.sum(1) / (either > 0).sum(1).clamp_min(1)


accuracy = Metric(_accuracy, *ACCURACY)
"""100 where the largest output is the target's, else 0: the default metric."""

binary_accuracy = Metric(_binary_accuracy, "binary_accuracy", "higher", "%")
"""100·(the share of outputs above 0 where the target is above 0.5, and not above 0 elsewhere)."""

LOSSES: dict[str, PerExample] = {f.__name__: f for f in (cross_entropy, mse, mae, bce_with_logits)}
METRICS: dict[str, PerExample] = {metric.name: metric for metric in (
    accuracy, Metric(_top5, "top5", "higher", "%"), binary_accuracy,
    Metric(_iou, "iou", "higher", "%"), Metric(mae, "mae", "lower"), Metric(mse, "mse", "lower"),
    Metric(cross_entropy, "cross_entropy", "lower", "nats"))}


def named(name: str) -> Meaning:
    """Describe a metric of which only the name is known."""
    return meaning(METRICS[name]) if name in METRICS else Meaning(name, None, "")


def default_metric(loss: PerExample, outputs: Tensor, targets: Tensor) -> PerExample:
    """Return accuracy where a model classifies, else the loss itself, of which less is better."""
    return accuracy if classifies(outputs, targets) else Metric(loss, better="lower")
