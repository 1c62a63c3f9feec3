"""The widths of an export: what is above the floor, and for each device of a fleet the best that meets its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from anybit.errors import ConfigError, RunError
from anybit.export.artifact import Artifact, Runtime
from anybit.export.exporting import Exporter
from anybit.export.fleet import Device, Fleet
from anybit.export.floor import Floor
from anybit.export.reference import metric, outputs, reference
from anybit.federated.metrics import meaning
from anybit.files.reading import read_json
from anybit.files.verification import EXPORT
from anybit.files.writing import writing
from anybit.quant.grid import Width

KB = 1024


@dataclass
class Exports:
    """All artifacts of an export, and why others do not exist."""

    artifacts: dict[tuple[str, Runtime], Artifact] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """{width or device: why it has no artifact}."""
    fleet: Fleet | None = None
    """The devices that have an artifact, each with its width."""

    def raise_refused(self) -> None:
        """Raise an error if something that was asked for does not exist."""
        if self.refused:
            raise RunError("; ".join(self.refused.values()))


def check_folder(folder: Path) -> None:
    """Raise if a folder has a README.md or export.json that no export wrote: it would be replaced."""
    report = read_json(folder / EXPORT) if (folder / EXPORT).is_file() else None
    ours = isinstance(report, dict) and "artifacts" in report
    for name in () if ours else (EXPORT, "README.md"):
        if (folder / name).exists():
            raise RunError(f"{folder / name} is not of an export, and would be replaced: choose another folder")


def export_widths(exporter: Exporter, widths: Sequence[Width], runtime: Runtime) -> Exports:
    """Export every width that is above the floor; raise if none is."""
    if not widths:
        raise ConfigError("no width is given: name some, e.g. W4")
    check_folder(exporter.folder)
    refused = {str(width): why for width in widths if (why := exporter.floor.refusal(width))}
    exports = Exports(refused=refused)
    if len(refused) == len(widths):
        exports.raise_refused()
    exports.artifacts = {(str(w), runtime): exporter.export(w, runtime) for w in widths if str(w) not in refused}
    return exports


def export_fleet(exporter: Exporter, fleet: Fleet, own: Sequence[Width]) -> Exports:
    """Export what each device of a fleet gets; raise if none gets anything. own: the widths where a device names none."""
    check_folder(exporter.folder)
    exports, devices, tried = Exports(), [], dict[tuple[str, Runtime], Artifact]()
    for device in fleet.device:
        problems = dict[str, str]()
        chosen = _chosen(exporter, device, candidates(device, own), tried, problems)
        if chosen is None:
            why = "; ".join(f"{width}: {problem}" for width, problem in problems.items())
            exports.refused[device.name] = f"device '{device.name}': no width fits ({why})"
        else:
            exports.artifacts[chosen.width, device.runtime] = chosen
            devices.append(replace(device, width=chosen.width, widths=()))
    for key, artifact in tried.items():
        if key not in exports.artifacts:
            with writing(exporter.folder, "remove the artifacts that no device gets"):
                for name in (artifact.file, *artifact.files):
                    (exporter.folder / name).unlink(missing_ok=True)
    if not devices:
        exports.raise_refused()
    exports.fleet = Fleet(tuple(devices))
    return exports


def candidates(device: Device, own: Sequence[Width]) -> list[Width]:
    """Return the widths that a device may get; ExecuTorch computes in 8 bits alone."""
    if device.width or device.widths:
        return Width.parse_all([device.width] if device.width else device.widths)
    return [Width(8, 8)] if device.runtime == "executorch" else list(own)


def _chosen(exporter: Exporter, device: Device, widths: Sequence[Width], tried: dict[tuple[str, Runtime], Artifact],
            problems: dict[str, str]) -> Artifact | None:
    """Return the artifact of the best width that fits: the first in the order of their metrics."""
    floor = exporter.floor if device.min_accuracy is None else Floor(exporter.subject, device.min_accuracy)
    for width in _best_first(exporter, widths):
        if why := floor.refusal(width):
            problems[str(width)] = why.removeprefix(f"{width} is not exported: ").replace("--min-accuracy", "min_accuracy")
            continue
        key = (str(width), device.runtime)
        artifact = tried[key] = tried.get(key) or exporter.export(width, device.runtime)
        # One that was asked for by name and is wrong is the export's own error, as without a fleet.
        if (artifact.rejected and device.width) or not (lacks := list(_lacks(device, artifact))):
            return artifact
        problems[str(width)] = " and ".join(lacks)
    return None


def _best_first(exporter: Exporter, widths: Sequence[Width]) -> list[Width]:
    """Order widths from the best metric to the worst, the wider of two equal ones first."""
    widest = sorted(widths, key=lambda w: (w.weights, w.activations), reverse=True)
    sign = {"higher": -1, "lower": 1, None: 0}[meaning(exporter.subject.evaluator.metric).better]
    if len(widest) == 1 or not sign:
        return widest
    scores: Mapping[Width, float] = {w: metric(exporter.subject, outputs(reference(exporter.subject, w), exporter.subject))
                                     for w in widest}
    return sorted(widest, key=lambda w: sign * scores[w])


def _lacks(device: Device, artifact: Artifact) -> Iterator[str]:
    """Name the limits that an artifact breaks."""
    if artifact.rejected:
        yield artifact.verdict.problem
    ram = artifact.footprint.ram if artifact.footprint else 0
    for limit, taken, what in ((device.flash_kb, artifact.bytes, "flash_kb"), (device.ram_kb, ram, "ram_kb")):
        if limit is not None and taken > KB * limit:
            yield f"{taken / KB:.1f} KB, more than {what} = {limit:g}"
