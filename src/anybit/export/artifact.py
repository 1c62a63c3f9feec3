"""The record of an exported file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from anybit.export.bench import Latency
from anybit.export.verify import Verdict

Runtime = Literal["onnx", "executorch", "archive"]


@dataclass(frozen=True)
class Artifact:
    """One exported file and its measurements."""

    file: str
    width: str
    runtime: Runtime
    bytes: int
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

    @property
    def rejected(self) -> bool:
        return bool(self.verdict.problem)
