"""Export: one artifact per wanted width and runtime, each written, run, compared and reported."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from anybit.export.archive import read_archive, write_archive
from anybit.export.artifact import Artifact, Runtime
from anybit.export.bench import latency
from anybit.export.graph import DEFAULT_OPSET
from anybit.export.onnx_model import OnnxExporter
from anybit.export.reference import outputs, reference
from anybit.export.subject import Subject, check_width
from anybit.export.verify import int8_is_exact, kernels, missing_kernels, onnx_outputs, verdict
from anybit.files.writing import write_bytes, writing
from anybit.quant.grid import FLOAT, Width, quantize

Operands = Literal["auto", "uint8", "int8"]
SUFFIX: dict[Runtime, str] = {"onnx": "onnx", "executorch": "pte", "archive": "safetensors"}
REJECTED = ".rejected"
WHERE = "free some space, or choose another folder with --out"


@dataclass(frozen=True)
class Options:
    """How artifacts are made."""

    opset: int = DEFAULT_OPSET
    """ONNX opset: 21 has native 4-bit weights, 25 native 2-bit weights; below, bit streams."""
    operands: Operands = "auto"
    """Weights of integer kernels as uint8 (runs everywhere) or int8 (fastest on x86); auto: int8 on an x86 machine that
    multiplies them exactly."""
    exact: bool = False
    """No 8-bit output quantizers on convolutions: ConvInteger instead of QLinearConv, slower."""
    licence: str = "other"
    """Of the model, for its card."""

    @property
    def signed(self) -> bool:
        return self.operands == "int8" or (self.operands == "auto" and platform.machine() in ("x86_64", "AMD64")
                                           and int8_is_exact())


@dataclass(frozen=True)
class Exporter:
    """Writes artifacts of one subject into one folder."""

    subject: Subject
    folder: Path
    options: Options = Options()

    @cached_property
    def _onnx(self) -> OnnxExporter:
        pipeline = self.subject.data.pipeline
        metadata = {"steps": self.subject.steps, "mean": str(list(pipeline.mean or ())),
                    "std": str(list(pipeline.std or ())), "classes": ",".join(self.subject.data.class_names)}
        return OnnxExporter(self.subject, self.options.opset, self.options.signed, self.options.exact, metadata)

    @cached_property
    def fp32(self) -> Path:
        """The float model in ONNX, against which sizes and latencies are measured."""
        return self._written("fp32.onnx", self._onnx.model(Width(FLOAT, FLOAT)).proto.SerializeToString())

    def export(self, width: Width, runtime: Runtime = "onnx") -> Artifact:
        """Write and verify the artifact of one width."""
        check_width(width)
        self._ready(self._path(width, runtime))
        if runtime == "onnx":
            return self._export_onnx(width)
        if runtime == "archive":
            return self._export_archive(width)
        from anybit.export.executorch import export_executorch

        with writing(self._path(width, runtime), WHERE):
            return self._kept(export_executorch(self.subject, self._path(width, runtime), width))

    def _export_onnx(self, width: Width) -> Artifact:
        model = self._onnx.model(width)
        path = self._written(self._path(width, "onnx").name, model.proto.SerializeToString())
        found = kernels(path)
        judged = verdict(self.subject, reference(self.subject, width), reference(self.subject, width, model.added),
                         onnx_outputs(path, self.subject), missing_kernels(found, model.kernels))
        if judged.problem and model.kernels and self.options.signed and not int8_is_exact():
            judged = judged._replace(problem=f"{judged.problem} (this processor saturates sums of uint8 by int8 products: "
                                             "use --operands uint8)")
        integer = {kind: n for kind, n in found.items() if any(kind.startswith(wanted) for wanted in model.kernels)}
        return self._kept(Artifact(path.name, str(width), "onnx", path.stat().st_size, self.fp32.stat().st_size,
                                   self._counts(width), judged, model.storage, integer, model.added.words(),
                                   model.in_float, self.subject.untrained(width), latency(path, self.subject)))

    def _export_archive(self, width: Width) -> Artifact:
        """Verified by reading it back: the same fake-quant model, with weights from the file."""
        path = self._path(width, "archive")
        with writing(path, WHERE):
            write_archive(path, self.subject, width)
        weights, _ = read_archive(path)
        plain = reference(self.subject, width)
        loaded = reference(self.subject, width)
        loaded.load_state_dict(weights)
        judged = verdict(self.subject, plain, plain, outputs(loaded, self.subject))
        if not all(torch.equal(weights[name], value) for name, value in _exact(self.subject, width)):
            judged = judged._replace(problem="its weights are not those of the fake-quant model")
        fp32 = sum(t.numel() * t.element_size() for t in self.subject.model.state_dict().values())
        stored = {str(q.bits): f"{q.bits}-bit stream" for q in self.subject.quantized_weights(width).values()}
        return self._kept(Artifact(path.name, str(width), "archive", path.stat().st_size, fp32, self._counts(width),
                                   judged, stored, warning=self.subject.untrained(width)))

    def _counts(self, width: Width) -> dict[str, int]:
        counts: dict[str, int] = {}
        for weight in self.subject.quantized_weights(width).values():
            counts[str(weight.bits)] = counts.get(str(weight.bits), 0) + weight.codes.size
        return counts

    def _path(self, width: Width, runtime: Runtime) -> Path:
        return self.folder / f"model.{str(width).lower()}.{SUFFIX[runtime]}"

    def _ready(self, path: Path) -> None:
        """Make the folder, and drop what an earlier export left under this name."""
        with writing(path, WHERE):
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in (path, path.with_name(path.name + REJECTED)):
                old.unlink(missing_ok=True)

    def _written(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        with writing(path, WHERE):
            write_bytes(path, content)
        return path

    def _kept(self, artifact: Artifact) -> Artifact:
        """A rejected file stays for inspection, under a name that nobody deploys by mistake."""
        if not artifact.rejected:
            return artifact
        with writing(self.folder / artifact.file, WHERE):
            (self.folder / artifact.file).rename(self.folder / (artifact.file + REJECTED))
        return replace(artifact, file=artifact.file + REJECTED)


def _exact(subject: Subject, width: Width) -> Iterator[tuple[str, torch.Tensor]]:
    w = subject.w()
    for name in subject.quantized_weights(width):
        yield name, quantize(w[name], subject.grid(f"{name}_quantizer", width))


def parse_widths(texts: Sequence[str]) -> list[Width]:
    """Widths as written, each once."""
    return list(dict.fromkeys(check_width(Width.parse(text)) for text in texts))
