"""The recorded evaluation: a model that no longer scores what its run says is not exported."""

from __future__ import annotations

import math
from collections.abc import Iterable

from anybit.errors import RunError
from anybit.export.reference import metric, metric_scale, outputs, reference
from anybit.export.subject import Subject
from anybit.export.verify import ERROR
from anybit.federated.metrics import meaning_in
from anybit.quant.grid import FLOAT, Width
from anybit.training.run import Run

POINTS = 1.0
FLIPPED = 0.05
"""Share of decisions that another machine may change. The grid of evaluation.json is computed in float32, at worst with
TF32's 10 bits of mantissa, from the same weights and step sizes; only examples whose two best classes nearly tie, or whose
activations fall to the other side of a rounding boundary, can change, and of trained models far fewer than these do."""


def tolerance(examples: int) -> float:
    """Return the points by which numerics alone may change a metric in percent, a mean over so many examples.

    Changed decisions are as often gains as losses, so that their sum has a deviation of √(share · examples) decisions: four
    of these, or one point if that is more.
    """
    return max(POINTS, 400 * math.sqrt(FLIPPED / max(examples, 1)))


def check_recorded(subject: Subject, run: Run, widths: Iterable[Width]) -> None:
    """Raise if the model scores other than evaluation.json says, at the widths it holds and the run's own step sizes."""
    evaluation = run.evaluation
    recorded, scored = evaluation["grid"][evaluation["own"]], meaning_in(evaluation)
    for width in dict.fromkeys(widths):
        if str(width) not in recorded or (subject.measured and width.activations != FLOAT):
            continue
        result = outputs(reference(subject, width), subject)
        then, now = float(recorded[str(width)]["metric"]), metric(subject, result)
        allowed = tolerance(len(subject.data.test)) if scored.unit == "%" else ERROR * metric_scale(subject, result)
        if not abs(now - then) <= allowed and (math.isfinite(now) or math.isfinite(then)):
            path, kept = run.folder.path, run.folder.checkpoints()
            anew = f", or delete all three, and 'anybit resume {path}' makes them anew from {kept[-1].name}" if kept else ""
            raise RunError(f"{path}: at {width} its {scored.name} is {scored.text(now)}, but evaluation.json "
                           f"says {scored.text(then)}: model.safetensors, steps.json or evaluation.json is damaged or was "
                           f"edited, or the test set is another one; restore them{anew}")
