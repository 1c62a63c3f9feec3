"""Export of what `anybit.fit` returned: the same artifacts and checks as of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anybit.api import Fitted
from anybit.export.exporting import Artifact, Exporter, Runtime
from anybit.export.report import refuse, write_report
from anybit.export.subject import from_fitted
from anybit.quant.grid import FLOAT, Width


def export_fitted(fitted: Fitted, out: Path, widths: Sequence[Width], runtime: Runtime) -> list[Artifact]:
    """One artifact per width, with export.json and the model card beside them."""
    exporter = Exporter(from_fitted(fitted, any(width.activations != FLOAT for width in widths)), out)
    artifacts = {(str(width), runtime): exporter.export(width, runtime) for width in widths}
    write_report(exporter, artifacts, None, {})
    refuse(list(artifacts.values()))
    return list(artifacts.values())
