"""Packages that only an export needs, imported when it does."""

from __future__ import annotations

import importlib
from typing import Any

from anybit.errors import MissingExtra


def need(module: str, extra: str = "export", purpose: str = "an ONNX artifact") -> Any:
    """The module, or a MissingExtra that names the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from None
