"""The record of an exported file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from anybit.export.bench import Latency
from anybit.export.verify import Verdict
from anybit.quant.grid import FLOAT, Width

Runtime = Literal["onnx", "executorch", "archive", "c"]


@dataclass(frozen=True)
class LayerCost:
    """What one layer of a C artifact takes: a module of the model and the calls of C that it became."""

    name: str
    weights: int
    """Bytes of its packed weight in flash."""
    ram: int
    """Bytes of the arena while it runs: its input, output and scratch, and what waits for later layers."""
    macs: int
    microseconds: float | None
    """Processor time per example on the exporting machine; none: not run."""


@dataclass(frozen=True)
class Footprint:
    """What a C artifact takes on a device, in bytes, and its work."""

    flash: int | None
    """Code and constants, compiled for the exporting machine; none: not compiled."""
    weights: int
    """All constants: packed weights, scales, biases, norms."""
    ram: int
    """Static memory: the arena and one unpacked row, which some processors do without."""
    arena: int
    macs: dict[str, int]
    """{layer: multiply-accumulates per example}."""
    layers: list[LayerCost] = field(default_factory=list)
    """In the order in which they run."""


@dataclass(frozen=True)
class Artifact:
    """One exported file and its measurements."""

    file: str
    width: str
    runtime: Runtime
    bytes: int
    """Of the file; of C, what it takes in flash."""
    fp32_bytes: int
    """Size of the float model in the same runtime."""
    weights: dict[str, int]
    """{bits: number of weights quantized to them}."""
    verdict: Verdict
    storage: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    """Integer kernels in the runtime's optimized graph."""
    added: list[str] = field(default_factory=list)
    """Quantizers beyond those of the training, here and in the reference."""
    in_float: dict[str, str] = field(default_factory=dict)
    warning: str = ""
    latency: Latency | None = None
    files: list[str] = field(default_factory=list)
    """Further files that belong to it."""
    footprint: Footprint | None = None
    minimum_onnxruntime: str = ""
    """The oldest release of ONNX Runtime that is known to run it."""
    known_wrong: list[str] = field(default_factory=list)
    """Runtimes that are known not to compute it, in words."""

    @property
    def rejected(self) -> bool:
        return bool(self.verdict.problem)

    @property
    def verified(self) -> bool:
        """False of a file that was written and not run."""
        return not math.isnan(self.verdict.artifact)


def no_smaller(artifacts: Sequence[Artifact]) -> list[str]:
    """Say which artifacts are no smaller than one of more bits: what unpacks the weights of a tiny model is larger."""
    said, kept = list[str](), [(Width.parse(a.width), a) for a in artifacts if not a.rejected]
    for width, a in kept:
        wider = [b for other, b in kept if b.runtime == a.runtime and FLOAT > other.weights > width.weights
                 and other.activations == width.activations]
        smallest = min(wider, key=lambda b: b.bytes, default=None)
        if smallest and a.bytes >= smallest.bytes:
            said.append(f"`{a.file}` is no smaller than `{smallest.file}` ({a.bytes:,} against {smallest.bytes:,} bytes): "
                        f"what unpacks its weights ({', '.join(a.storage.values())}) takes more than fewer bits of "
                        f"{sum(a.weights.values()):,} weights save")
    return said
