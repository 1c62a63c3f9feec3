"""How every class of devices fares: accuracy at the width its hardware has, the worst class, and the spread.

A class is all devices of one width. In a fleet the devices say theirs; in a run on one process MQAT* draws it once per
client.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from anybit.errors import RunError
from anybit.quant.grid import Width
from anybit.training.run import Run


@dataclass(frozen=True)
class DeviceClass:
    """All devices of one width."""

    width: str
    devices: int
    metric: float
    """Of the trained model at that width, on the test set."""
    on_devices: float | None
    """Mean over its devices of what each last measured on its own examples; none for a run on one process."""


@dataclass(frozen=True)
class Classes:
    """All classes, and how far apart they are."""

    classes: tuple[DeviceClass, ...]

    @property
    def worst(self) -> DeviceClass:
        return min(self.classes, key=lambda one: one.metric)

    @property
    def spread(self) -> float:
        """Best class − worst class."""
        return max(one.metric for one in self.classes) - self.worst.metric


def device_classes(run: Run) -> Classes:
    """The classes of a finished run."""
    scores = _last_scores(run)
    widths = {client: width for client, (width, _) in scores.items()} or _fixed_widths(run)
    metrics = run.evaluate(sorted(set(widths.values())))
    seen = {width: [score for own, score in scores.values() if own == width] for width in widths.values()}
    return Classes(tuple(DeviceClass(width, count, metrics[width].metric, fmean(seen[width]) if seen[width] else None)
                         for width, count in sorted(Counter(widths.values()).items(), key=lambda c: Width.parse(c[0]))))


def _last_scores(run: Run) -> dict[int, tuple[str, float]]:
    """{client: (its own width, what it last measured)} of the devices that have a width of their own."""
    log = run.folder.lines("fleet")
    own = {entry["client"]: entry["width"] for entry in log if entry["event"] in ("device", "back") and entry["width"]}
    last = {device["client"]: device for entry in log for device in entry.get("devices", [])}
    return {client: (width, last[client]["score"]) for client, width in own.items() if client in last}


def _fixed_widths(run: Run) -> dict[int, str]:
    variant, clients, seed = run.task().variant, range(len(run.folder.split())), run.config.seed
    first, later = (variant.widths_of(seed, round, clients) for round in (0, 1))
    if first != later:
        raise RunError(f"{run.folder.path}: its clients have no width of their own (variant '{variant.name}' draws one "
                       "every round): train with variant.fixed=true, or on a fleet with bits in the node configs")
    return {client: str(width) for client, width in enumerate(first)}
