"""What a run was made with: versions and hardware, nothing that names a person or a path."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
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
    return {"anybit": version("anybit") or "from its sources", "commit": commit(), "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "system": platform.system(),
            "machine": platform.machine(), "cpu": _cpu_name(), "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


@functools.cache
def commit() -> str | None:
    """The commit of anybit's own checkout, and whether files differ from it; none if it is installed without one.

    Asked once: the code that runs stays the one that was loaded.
    """
    here = Path(__file__)
    try:
        # Only if this file is tracked: a virtual environment may lie inside somebody else's checkout.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--exclude=*", "--dirty=, changed")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    # Without the file watcher that a checkout's own settings may name, which is a program.
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or "unknown"
