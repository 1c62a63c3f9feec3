"""Export of a model from `anybit.fit`: the same artifacts and checks as of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from anybit.config import Config
from anybit.export.artifact import Artifact, Runtime
from anybit.export.choosing import export_widths
from anybit.export.exporting import Exporter, Options
from anybit.export.report import refuse, write_report
from anybit.export.subject import from_fitted
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import StepTable
from anybit.training.task import Task


def export_fitted(model: nn.Module, steps: StepTable, task: Task, config: Config, out: Path, widths: Sequence[Width],
                  runtime: Runtime, min_accuracy: float | None = None, privacy: str | None = None) -> list[Artifact]:
    """Write one artifact per width, with export.json and the model card, which tells the promise of privacy, beside them."""
    activations = any(width.activations != FLOAT for width in widths)
    subject = replace(from_fitted(model, steps, task, config, activations), privacy=privacy)
    exporter = Exporter(subject, out, Options(min_accuracy=min_accuracy))
    exports = export_widths(exporter, widths, runtime)
    write_report(exporter, exports.artifacts, None, {}, exports.refused)
    refuse(list(exports.artifacts.values()))
    exports.raise_refused()
    return list(exports.artifacts.values())
