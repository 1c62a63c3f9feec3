"""Reports of an export: export.json, the model card, and the tables of the command line."""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from anybit.environment import environment, version
from anybit.errors import AnybitWarning, Rejected
from anybit.export.artifact import Artifact, Runtime
from anybit.export.bench import Cost
from anybit.export.card import model_card
from anybit.export.earlier import FLOAT_MODEL, earlier_artifacts, earlier_files, left_files, model_digest
from anybit.export.exporting import Exporter, where
from anybit.export.fleet import Fleet, expected
from anybit.export.reference import metric, outputs, reference
from anybit.federated.metrics import Meaning, meaning
from anybit.files.reading import read_bytes, read_json
from anybit.files.verification import EXPORT, PAGE
from anybit.files.writing import write_bytes, write_json, writing
from anybit.quant.grid import FLOAT, Width

Artifacts = Mapping[tuple[str, Runtime], Artifact]
Table = tuple[list[str], list[list[str]]]


def write_report(exporter: Exporter, artifacts: Artifacts, fleet: Fleet | None, costs: Mapping[str, Cost],
                 refused: Mapping[str, str] = {}) -> dict[str, Any]:
    """Write export.json and the model card; return the former. refused: {width or device: why it has no artifact}.

    Both also tell of what earlier exports of the same model left in the folder.
    """
    subject, model = exporter.subject, model_digest(exporter.subject)
    compared = [FLOAT_MODEL] if any(a.runtime == "onnx" for a in artifacts.values()) \
        and (exporter.folder / FLOAT_MODEL).exists() else []  # under another name if it was rejected
    exported = [*artifacts.values(), *earlier_artifacts(exporter.folder, model, list(artifacts.values()))]
    full = metric(subject, outputs(reference(subject, Width(FLOAT, FLOAT)), subject))
    report: dict[str, Any] = {
        **meaning(subject.evaluator.metric).recorded(), "full_precision": full,
        "steps": subject.steps, "model": model, "test_examples": len(subject.data.test),
        "options": {**asdict(exporter.options), **({"signed": exporter.options.signed} if compared else {})},
        "artifacts": [_recorded(a) for a in exported],
        "environment": {**environment(), "onnxruntime": version("onnxruntime"), "executorch": version("executorch")}}
    if refused:
        report["refused"] = dict(refused)
    if fleet is not None:
        devices = [{key: value for key, value in asdict(d).items() if value not in (None, ())} for d in fleet.device]
        report["fleet"] = {"devices": devices, "expected": expected(fleet, artifacts)}
    if costs:
        report["bench"] = {file: asdict(cost) for file, cost in costs.items()}
    card = model_card(subject, exported, exporter.options.licence, list(refused.values())).encode()
    names = (*(n for a in exported for n in (a.file, *a.files)), *costs, *compared, *earlier_files(exporter.folder, model))
    if others := {name: left for name, left in left_files(exporter.folder).items() if name not in names}:
        report["others"] = others  # or the next export would not know them
    if strange := [name for name, left in others.items() if left.get("model") != model]:
        warnings.warn(f"{exporter.folder} still holds {', '.join(strange)} of another model: remove what is not to be "
                      "delivered", AnybitWarning, stacklevel=2)
    report["sha256"] = {**_digests(exporter.folder, names), "README.md": hashlib.sha256(card).hexdigest()}
    with writing(exporter.folder / EXPORT, where()):
        write_json(exporter.folder / EXPORT, report)
        write_bytes(exporter.folder / "README.md", card)
    return report


def record_page(folder: Path, page: Path) -> dict[str, Any]:
    """Put the digests of a page's files into export.json, in place of those of an earlier one; return it."""
    report = read_json(folder / EXPORT)
    others = {name: digest for name, digest in report["sha256"].items() if not name.startswith(f"{PAGE}/")}
    names = sorted(f"{PAGE}/{path.name}" for path in page.iterdir() if path.is_file())
    report["sha256"] = {**others, **_digests(folder, names)}
    with writing(folder / EXPORT, where()):
        write_json(folder / EXPORT, report)
    return cast(dict[str, Any], report)


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    return {name: hashlib.sha256(read_bytes(folder / name)).hexdigest() for name in dict.fromkeys(names)}


def refuse(artifacts: Sequence[Artifact]) -> None:
    """Raise an error if artifacts were rejected, with the reasons."""
    if problems := [f"{a.file}: {a.verdict.problem}" for a in artifacts if a.rejected]:
        raise Rejected("; ".join(problems))


def _recorded(artifact: Artifact) -> dict[str, Any]:
    """Return what export.json says of an artifact: what is known alone."""
    content = {**asdict(artifact), "verdict": _known(artifact.verdict._asdict()), "rejected": artifact.rejected}
    return {key: value for key, value in content.items() if value
            or key not in ("files", "footprint", "minimum_onnxruntime", "known_wrong")}


def _known(verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in verdict.items() if value is not None and str(value) != "nan"}


def _ms(artifact: Artifact) -> str:
    return f"{artifact.latency.median:.2f}" if artifact.latency else "–"


def artifact_rows(artifacts: Sequence[Artifact], metric: Meaning) -> Table:
    """Return a table with one row per artifact."""
    rows = [[a.file, f"{a.bytes:,}", f"{a.fp32_bytes / a.bytes:.1f}×",
             metric.text(a.verdict.artifact) if a.verified else "not run",
             metric.text(a.verdict.evaluation), f"{a.verdict.agreement:.4f}" if a.verified else "–", _ms(a),
             ", ".join(f"{n} {kind}" for kind, n in a.kernels.items()) or "float"]
            for a in artifacts]
    return ["artifact", "bytes", "smaller", metric.head, "evaluation", "agreement", "ms", "kernels"], rows


def fleet_rows(fleet: Fleet, artifacts: Artifacts, metric: Meaning) -> Table:
    """Return a table with one row per class of devices."""
    rows = []
    for device in fleet.device:
        a = artifacts[str(Width.parse(device.width)), device.runtime]
        rows.append([device.name, device.width, device.runtime, f"{device.count:,}", f"{a.bytes:,}",
                     metric.text(a.verdict.artifact), _ms(a), f"{a.verdict.agreement:.4f}"])
    return ["device", "width", "runtime", "count", "bytes", metric.head, "ms", "agreement"], rows


def footprint_rows(artifacts: Sequence[Artifact]) -> Table:
    """Return what C artifacts take on a device, one row each."""
    rows = [[a.file, f"{f.flash:,}" if f.flash else "not compiled", f"{f.weights:,}", f"{f.ram:,}", f"{f.arena:,}",
             f"{sum(f.macs.values()):,}"] for a in artifacts if (f := a.footprint)]
    return ["artifact", "flash", "constants", "RAM", "arena", "multiply-accumulates"], rows


def cost_rows(costs: Mapping[str, Cost]) -> Table:
    """Return load time, latency and memory, the float model first; '×' is the speed relative to it."""
    base, rows = next(iter(costs.values())).batches, []
    for file, cost in costs.items():
        latencies = [[f"{spent.median:.2f}", f"{spent.p95:.2f}", f"{base[size].median / spent.median:.2f}"]
                     for size, spent in cost.batches.items()]
        rows.append([file, f"{cost.load_ms:.1f}", *itertools.chain(*latencies), f"{cost.peak_mib:.1f}"])
    return ["file", "load ms", *(f"batch {n}: {key}" for n in base for key in ("median", "p95", "×")), "peak MiB"], rows
