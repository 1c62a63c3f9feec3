"""Accuracy per class of devices at the width of its hardware, the worst class, and the spread.

A class is all devices of one width. Devices of a fleet report theirs; on one process MQAT* draws one per client.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from anybit.errors import RunError
from anybit.federated.metrics import Better
from anybit.quant.grid import FLOAT, Width
from anybit.training.run import Run


@dataclass(frozen=True)
class DeviceClass:
    """All devices of one width."""

    width: str
    devices: int
    metric: float
    """The metric of the trained model at that width, on the test set."""
    on_devices: float | None
    """The mean of the last metrics that its devices measured on their own examples; none for a run on one process."""


@dataclass(frozen=True)
class Classes:
    """All classes of a run."""

    classes: tuple[DeviceClass, ...]
    better: Better | None = "higher"
    """Which direction of the metric is better; none: unknown, and no class is the worst."""

    @property
    def worst(self) -> DeviceClass | None:
        if self.better is None:
            return None
        sign = 1 if self.better == "higher" else -1
        return min(self.classes, key=lambda device_class: sign * device_class.metric)

    @property
    def spread(self) -> float:
        """The largest metric of a class − the smallest."""
        metrics = [device_class.metric for device_class in self.classes]
        return max(metrics) - min(metrics)


def device_classes(run: Run) -> Classes:
    """Evaluate a finished run at the widths of its devices."""
    scores = _last_scores(run)
    widths = {client: width for client, (width, _) in scores.items()} or _fixed_widths(run)
    metrics = run.evaluate(sorted(set(widths.values())))
    measured = {width: [score for w, score in scores.values() if w == width] for width in metrics}
    return Classes(tuple(DeviceClass(w, count, metrics[w].metric, fmean(measured[w]) if measured[w] else None)
                         for w, count in sorted(Counter(widths.values()).items(), key=lambda c: Width.parse(c[0]))),
                   run.metric.better)


def _last_scores(run: Run) -> dict[int, tuple[str, float]]:
    """Return {client: (width, last metric)} of the devices that have a width of their own."""
    log = run.folder.lines("fleet")
    widths = {entry["client"]: entry["width"] for entry in log if entry["event"] in ("device", "back") and entry["width"]}
    last = {device["client"]: device for entry in log for device in entry.get("devices", [])}
    return {client: (width, last[client]["score"]) for client, width in widths.items()
            if "score" in last.get(client, {})}


def _fixed_widths(run: Run) -> dict[int, str]:
    variant, clients, seed = run.task().variant, range(len(run.folder.split())), run.config.seed
    first, later = (variant.widths_of(seed, round, clients) for round in (0, 1))
    if first != later or set(first) == {Width(FLOAT, FLOAT)}:
        own = "variant.cap=true" if variant.name == "carousel" else "variant.fixed=true"
        raise RunError(f"{run.folder.path}: its clients have no width of their own (variant '{variant.name}' gives them all "
                       f"the same): train with {own}, or on a fleet with bits in the node configs")
    return {client: str(width) for client, width in enumerate(first)}
