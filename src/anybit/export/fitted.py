"""Export from Python: of a model from `anybit.fit`, and of a run whose model and data have names."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from anybit.config import Config
from anybit.errors import AnybitWarning
from anybit.export.artifact import Artifact, Runtime
from anybit.export.choosing import export_widths
from anybit.export.exporting import Exporter, Options
from anybit.export.recorded import check_recorded
from anybit.export.report import refuse, write_report
from anybit.export.subject import from_fitted, from_run
from anybit.files.holding import own_folder
from anybit.quant.grid import FLOAT, Width
from anybit.quant.ranges import StepTable
from anybit.training.run import Run
from anybit.training.task import Task


def export_fitted(model: nn.Module, steps: StepTable, task: Task, config: Config, out: Path, widths: Sequence[Width],
                  runtime: Runtime, min_accuracy: float | None = None, privacy: str | None = None) -> list[Artifact]:
    """Write one artifact per width, with export.json and the model card, which tells the promise of privacy, beside them."""
    activations = any(width.activations != FLOAT for width in widths)
    subject = replace(from_fitted(model, steps, task, config, activations), privacy=privacy)
    return _exported(Exporter(subject, out, Options(min_accuracy=min_accuracy)), widths, runtime)


def export_run(run: Run, out: Path | None, widths: Sequence[Width], runtime: Runtime,
               min_accuracy: float | None = None) -> list[Artifact]:
    """Do the same for a finished run, by default into its folder `export`; raise if it scores other than it says."""
    subject = from_run(run, activations=any(width.activations != FLOAT for width in widths))
    check_recorded(subject, run, widths)
    folder = out or own_folder(run.folder.path / "export")
    return _exported(Exporter(subject, folder, Options(min_accuracy=min_accuracy)), widths, runtime)


def _exported(exporter: Exporter, widths: Sequence[Width], runtime: Runtime) -> list[Artifact]:
    exports = export_widths(exporter, widths, runtime)
    write_report(exporter, exports.artifacts, None, {}, exports.refused)
    for artifact in exports.artifacts.values() if runtime == "archive" else ():
        for words in artifact.known_wrong:
            warnings.warn(f"{artifact.file}: {words}", AnybitWarning, stacklevel=3)
    refuse(list(exports.artifacts.values()))
    exports.raise_refused()
    return list(exports.artifacts.values())
