"""The environment of a run: versions and hardware, nothing that names a person or a path."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

EXTRAS = {"cli": ("typer", "rich"), "report": ("matplotlib", "jinja2"), "digits": ("scikit-learn",),
          "data": ("datasets", "pillow"), "export": ("onnx", "onnxruntime", "onnxscript", "ml_dtypes"),
          "executorch": ("executorch",), "sign": ("cryptography",), "flower": ("flwr", "ray")}


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment() -> dict[str, Any]:
    """Return the versions of the software, and the kind of machine."""
    return {"anybit": version("anybit") or "from its sources", "commit": commit(), "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "system": platform.system(),
            "machine": platform.machine(), "cpu": _cpu_name(), "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None}


@functools.cache
def commit() -> str | None:
    """Return the commit of anybit's checkout, with ', changed' if files differ from it; None without a checkout.

    Cached, because the code that runs stays the one that was loaded.
    """
    here = Path(__file__)
    try:
        # Only if this file is tracked: a virtual environment may lie inside another project's checkout.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--exclude=*", "--dirty=, changed")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    # Without fsmonitor: a checkout's settings may name any program as its file watcher.
    command = ["git", "-c", "core.fsmonitor=false", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _cpu_name() -> str:
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
