"""Packages that only an export needs, imported when it does."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from anybit.errors import MissingExtra


def need(module: str, extra: str = "export", purpose: str = "an ONNX artifact") -> Any:
    """Import a module, or raise a MissingExtra with the package to install."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(module.partition(".")[0], extra, purpose) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence exporters, which print and warn about other packages; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()),
              contextlib.redirect_stdout(io.StringIO())):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
