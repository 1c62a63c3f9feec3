"""Earlier exports into the same folder: what they wrote of the same model stays in export.json and in the card."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anybit.errors import AnybitError
from anybit.export.artifact import Artifact
from anybit.export.subject import Subject
from anybit.export.verify import Verdict
from anybit.files.holding import own_folder
from anybit.files.reading import read_bytes, read_json
from anybit.files.safetensors import to_bytes
from anybit.files.verification import EXPORT, PAGE, belongs
from anybit.schema import read

FLOAT_MODEL = "fp32.onnx"
Left = dict[str, Any]
"""The "model" and the "sha256" of a file that an earlier export left."""
_NUMBERS = ("evaluation", "reference", "artifact", "agreement", "control")


def model_digest(subject: Subject) -> str:
    """Return the SHA-256 of the weights and of their step sizes: two subjects of the same are one model."""
    steps = {f"{name}/steps": subject.table.steps[f"{name}_quantizer"] for name in subject.matrices}
    return hashlib.sha256(to_bytes({**subject.model.state_dict(), **steps}, {})).hexdigest()


def earlier_artifacts(folder: Path, model: str, now: Sequence[Artifact]) -> list[Artifact]:
    """Return the artifacts of earlier exports of this model, without those made anew and those whose files have changed."""
    report = _earlier(folder, model)
    if not isinstance(report.get("artifacts"), list):
        return []
    known = [artifact for entry in report["artifacts"] if (artifact := _artifact(entry))]
    written = {name for a in now for name in (a.file, *a.files)}
    return [a for a in known if (a.width, a.runtime) not in {(b.width, b.runtime) for b in now}
            and all(name not in written and _same(folder, name, report.get("sha256")) for name in (a.file, *a.files))]


def earlier_files(folder: Path, model: str) -> list[str]:
    """Return the other files that earlier exports of this model left and nobody changed: the float model, the page."""
    digests = _earlier(folder, model).get("sha256")
    names = digests if isinstance(digests, Mapping) else ()
    return [name for name in names if (name == FLOAT_MODEL or name.startswith(f"{PAGE}/")) and _same(folder, name, digests)]


def left_files(folder: Path) -> dict[str, Left]:
    """Return {file: what is known of it} of what earlier exports of any model left, and nobody changed."""
    report = _report(folder)
    others, digests = (known if isinstance(known := report.get(key), Mapping) else {} for key in ("others", "sha256"))
    last = {name: {"model": report.get("model"), "sha256": digest} for name, digest in digests.items()}
    return {name: entry for name, entry in {**others, **last}.items() if name != "README.md" and isinstance(entry, dict)
            and _same(folder, name, {name: entry.get("sha256")})}


def _earlier(folder: Path, model: str) -> Mapping[str, Any]:
    report = _report(folder)
    return report if report.get("model") == model else {}


def _report(folder: Path) -> Mapping[str, Any]:
    report = read_json(folder / EXPORT) if (folder / EXPORT).is_file() else None
    return report if isinstance(report, dict) else {}


def _artifact(entry: Any) -> Artifact | None:
    try:
        fields = {key: value for key, value in entry.items() if key not in ("verdict", "rejected")}
        numbers = {name: float(entry["verdict"].get(name, math.nan)) for name in _NUMBERS}
        artifact: Artifact = read(Artifact, {**fields, "verdict": Verdict(**{**entry["verdict"], **numbers})})
    except (AnybitError, AttributeError, KeyError, TypeError, ValueError):  # of another version, or edited
        return None
    return artifact


def _same(folder: Path, name: str, digests: Any) -> bool:
    path = own_folder(folder / PAGE) / Path(name).name if "/" in name else folder / name
    return (isinstance(digests, Mapping) and belongs(name) and path.is_file()
            and hashlib.sha256(read_bytes(path)).hexdigest() == digests.get(name))
