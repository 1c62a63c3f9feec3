"""Export: one artifact per wanted width and runtime, each written, run, compared and reported."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from anybit.errors import AnybitError, ModelError, option
from anybit.export.archive import archive_outputs, read_archive, write_archive
from anybit.export.artifact import Artifact, Runtime
from anybit.export.bench import latency
from anybit.export.c.export import CExporter
from anybit.export.earlier import FLOAT_MODEL
from anybit.export.executorch import export_executorch
from anybit.export.floor import Floor
from anybit.export.graph import DEFAULT_OPSET, reason
from anybit.export.onnx_model import OnnxExporter
from anybit.export.reference import outputs, reference
from anybit.export.runtimes import known_wrong, minimum_onnxruntime
from anybit.export.subject import Subject, check_width
from anybit.export.verify import int8_is_exact, kernels, missing_kernels, onnx_outputs, verdict
from anybit.files.writing import write_bytes, writing
from anybit.quant.grid import FLOAT, Width, quantize

Operands = Literal["auto", "uint8", "int8"]
Operators = Literal["standard", "matmulnbits"]
SUFFIX: dict[Runtime, str] = {"onnx": "onnx", "executorch": "pte", "archive": "safetensors", "c": "c"}
REJECTED = ".rejected"


def where() -> str:
    """Say what helps a disk that refuses a file."""
    return f"free some space, or choose another folder with {option('out')}"


@dataclass(frozen=True)
class Options:
    """The options of an export."""

    opset: int = DEFAULT_OPSET
    """ONNX opset: 21 has native 4-bit weights, 25 native 2-bit weights; below, bit streams."""
    operands: Operands = "auto"
    """Weights of integer kernels as uint8 (runs everywhere) or int8 (fastest on x86); auto: int8 on an x86 machine that
    multiplies them exactly."""
    exact: bool = False
    """No 8-bit output quantizers on convolutions: ConvInteger instead of QLinearConv, slower."""
    licence: str = "other"
    """The license of the model, for its card."""
    verify: bool = True
    """Compile and run C artifacts on this machine; without it they are only written."""
    min_accuracy: float | None = None
    """The worst metric that is exported; none: half of what full precision gains over chance; 0: anything."""
    operators: Operators = "standard"
    """matmulnbits: linear layers of 4-bit weights in an operator that ONNX Runtime alone has and that never unpacks them."""

    @property
    def signed(self) -> bool:
        return self.operands == "int8" or (self.operands == "auto" and platform.machine() in ("x86_64", "AMD64")
                                           and int8_is_exact())


@dataclass(frozen=True)
class Exporter:
    """A writer of artifacts of one subject into one folder."""

    subject: Subject
    folder: Path
    options: Options = Options()

    @cached_property
    def _onnx(self) -> OnnxExporter:
        pipeline = self.subject.data.pipeline
        metadata = {"mean": str(list(pipeline.mean or ())),
                    "std": str(list(pipeline.std or ())), "classes": ",".join(self.subject.data.class_names)}
        if self.subject.from_bytes:  # before mean and std, if there are any
            metadata["scale"] = "1/255"
        return OnnxExporter(self.subject, self.options.opset, self.options.signed, self.options.exact,
                            self.options.operators == "matmulnbits", metadata)

    @cached_property
    def _c(self) -> CExporter:
        return CExporter(self.subject, self.options.verify)

    @cached_property
    def floor(self) -> Floor:
        return Floor(self.subject, self.options.min_accuracy)

    @cached_property
    def fp32(self) -> Path:
        """The float model in ONNX, against which sizes and latencies are measured."""
        width = Width(FLOAT, FLOAT)
        path, content = self._path(width, "onnx"), self._onnx.model(width).proto.SerializeToString()
        with writing(path, where()):
            write_bytes(path, content)
        return path

    def _path(self, width: Width, runtime: Runtime) -> Path:
        if (width, runtime) == (Width(FLOAT, FLOAT), "onnx"):
            return self.folder / FLOAT_MODEL
        return self.folder / f"model.{str(width).lower()}.{SUFFIX[runtime]}"

    def export(self, width: Width, runtime: Runtime = "onnx") -> Artifact:
        """Write and verify the artifact of one width; nothing is left of one that could not be run."""
        check_width(width)
        rounds_shortcuts = any(getattr(part, "round_shortcuts", False) for part in self.subject.model.modules())
        if rounds_shortcuts and width.activations != FLOAT:
            raise ModelError(f"{width}: artifacts do not round what shortcuts carry (model.round_shortcuts); export widths "
                             "of weights alone, like W4")
        path = self._path(width, runtime)
        with writing(path, where()):
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in (path, path.with_suffix(".h")) if runtime == "c" else (path,):
                for name in (old.name, old.name + REJECTED):
                    old.with_name(name).unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(prefix=".export.", dir=self.folder) as draft, _explained(width, runtime):
                artifact = self._drafted(Path(draft) / path.name, width, runtime)
                # A rejected one stays for inspection, under a name that nobody deploys by mistake.
                suffix = REJECTED if artifact.rejected else ""
                for name in (artifact.file, *artifact.files):
                    os.replace(Path(draft) / name, self.folder / (name + suffix))
        return replace(artifact, file=artifact.file + suffix, files=[name + suffix for name in artifact.files])

    def _drafted(self, path: Path, width: Width, runtime: Runtime) -> Artifact:
        if runtime == "onnx":
            return self._export_onnx(path, width)
        if runtime == "archive":
            return self._export_archive(path, width)
        return self._c.export(path, width) if runtime == "c" else export_executorch(self.subject, path, width)

    def _export_onnx(self, path: Path, width: Width) -> Artifact:
        model = self._onnx.model(width)
        write_bytes(path, model.proto.SerializeToString())
        executed = kernels(path)
        judged = verdict(self.subject, width, reference(self.subject, width), reference(self.subject, width, model.added),
                         onnx_outputs(path, self.subject), missing_kernels(executed, model.kernels))
        if judged.problem and model.kernels and self.options.signed and not int8_is_exact():
            judged = judged._replace(problem=f"{judged.problem} (this processor saturates sums of uint8 by int8 products: "
                                             "use --operands uint8)")
        integer = {kind: n for kind, n in executed.items() if kind.startswith(tuple(model.kernels))}
        full = path if width == Width(FLOAT, FLOAT) else self.fp32
        return Artifact(path.name, str(width), "onnx", path.stat().st_size, full.stat().st_size, self._counts(width),
                        judged, model.storage, integer, model.added.words(), model.in_float, self.subject.untrained(width),
                        latency(path, self.subject), known_wrong=known_wrong(model.storage.values()),
                        minimum_onnxruntime=minimum_onnxruntime(self.options.opset, model.storage.values()))

    def _export_archive(self, path: Path, width: Width) -> Artifact:
        """Verify the archive by running the file alone; one without a graph, by its weights in the fake-quant model."""
        write_archive(path, self.subject, width, lambda: self._c.trace)
        weights, facts = read_archive(path)
        plain, lacking = reference(self.subject, width), []
        if "graph" in facts:
            result, problem = archive_outputs(path, self.subject)
        else:
            lacking = [f"it has weights and no graph, so that no reader runs it: {facts['no_graph']}"]
            loaded = reference(self.subject, width)
            loaded.load_state_dict(weights)
            result, problem = outputs(loaded, self.subject), ""
        judged = verdict(self.subject, width, plain, plain, result, problem)
        w, quantized = self.subject.w(), self.subject.quantized_weights(width)
        if not all(torch.equal(weights[name], quantize(w[name], self.subject.grid(f"{name}_quantizer", width)))
                   for name in quantized):
            judged = judged._replace(problem="its weights are not those of the fake-quant model")
        stored = {str(q.bits): f"{q.bits}-bit stream" for q in quantized.values()}
        return Artifact(path.name, str(width), "archive", path.stat().st_size, self.subject.float_bytes, self._counts(width),
                        judged, stored, warning=self.subject.untrained(width), known_wrong=lacking)

    def _counts(self, width: Width) -> dict[str, int]:
        counts: dict[str, int] = {}
        for weight in self.subject.quantized_weights(width).values():
            counts[str(weight.bits)] = counts.get(str(weight.bits), 0) + weight.codes.size
        return counts


@contextmanager
def _explained(width: Width, runtime: Runtime) -> Iterator[None]:
    """Turn any failure of an exporter or a runtime into one line; the layer, where it is known, is in theirs."""
    try:
        yield
    except (AnybitError, OSError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(f"{width} for {runtime} cannot be made or does not run, so nothing is kept: "
                         f"{reason(error)}") from error


def parse_widths(texts: Sequence[str]) -> list[Width]:
    """Parse widths and drop repeated ones."""
    return list(dict.fromkeys(check_width(Width.parse(text)) for text in texts))
