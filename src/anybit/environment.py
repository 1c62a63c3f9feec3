"""What a run was made with: versions and hardware, nothing that names a person or a path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

import numpy as np
import torch

EXTRAS = {"cli": ("typer", "rich"), "report": ("matplotlib", "jinja2"), "digits": ("scikit-learn",),
          "data": ("datasets", "pillow"), "export": ("onnx", "onnxruntime", "onnxscript", "ml_dtypes"),
          "executorch": ("executorch",), "flower": ("flwr", "ray")}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """Versions of what computes, and the machine's kind."""
    return {"anybit": version("anybit") or "from its sources", "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "system": platform.system(),
            "machine": platform.machine(), "cpu": _cpu_name(), "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
