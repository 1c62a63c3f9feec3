"""An exported file and what was measured of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from anybit.export.bench import Latency
from anybit.export.verify import Verdict

Runtime = Literal["onnx", "executorch", "archive"]


@dataclass(frozen=True)
class Artifact:
    """One exported file and what was measured of it."""

    file: str
    width: str
    runtime: Runtime
    bytes: int
    fp32_bytes: int
    """Of the float model in the same runtime."""
    weights: dict[str, int]
    """{bits: quantized weights of so many bits}."""
    verdict: Verdict
    storage: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    """Integer kernels in the runtime's optimized graph."""
    added: list[str] = field(default_factory=list)
    """What is on a grid beyond training, here and in the reference."""
    in_float: dict[str, str] = field(default_factory=dict)
    warning: str = ""
    latency: Latency | None = None

    @property
    def rejected(self) -> bool:
        return bool(self.verdict.problem)
