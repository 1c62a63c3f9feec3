"""anybit: one federated model for every bit-width.

Names are loaded on first use, so that `anybit --help` does not wait for torch.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anybit.api import Fitted, Run, evaluate, fit
    from anybit.config import ClientOptions, ComputeOptions, Config, EvaluationOptions, PrivacyOptions, RangeOptions
    from anybit.data.clients import by_client
    from anybit.data.examples import Pipeline
    from anybit.errors import AnybitError, AnybitWarning
    from anybit.federated.metrics import Metric, accuracy
    from anybit.federated.sampling import SamplingOptions
    from anybit.federated.server import ServerOptimizer, ServerOptions
    from anybit.federated.variants import (
        Variant,
        apqn,
        baseline,
        carousel,
        cycled_widths,
        dealt_width,
        fixed_width,
        kure,
        mqat,
        qat,
        sampled_width,
    )
    from anybit.quant.grid import Width
    from anybit.quant.ranges import StepTable
    from anybit.quant.sites import SiteOptions, prepare, replace_batchnorm
    from anybit.training.course import Callback, Progress
    from anybit.training.evaluation import Score
    from anybit.training.loggers import CsvLogger, EarlyStopping, TensorBoardLogger, WandbLogger

_HOME = {
    "anybit.api": ("Fitted", "Run", "evaluate", "fit"),
    "anybit.config": ("ClientOptions", "ComputeOptions", "Config", "EvaluationOptions", "PrivacyOptions",
                      "RangeOptions"),
    "anybit.data.clients": ("by_client",),
    "anybit.data.examples": ("Pipeline",),
    "anybit.errors": ("AnybitError", "AnybitWarning"),
    "anybit.federated.metrics": ("Metric", "accuracy"),
    "anybit.federated.sampling": ("SamplingOptions",),
    "anybit.federated.server": ("ServerOptimizer", "ServerOptions"),
    "anybit.quant.grid": ("Width",),
    "anybit.quant.ranges": ("StepTable",),
    "anybit.quant.sites": ("SiteOptions", "prepare", "replace_batchnorm"),
    "anybit.federated.variants": ("Variant", "apqn", "baseline", "carousel", "cycled_widths", "dealt_width", "fixed_width",
                                  "kure", "mqat", "qat", "sampled_width"),
    "anybit.training.course": ("Callback", "Progress"),
    "anybit.training.evaluation": ("Score",),
    "anybit.training.loggers": ("CsvLogger", "EarlyStopping", "TensorBoardLogger", "WandbLogger"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AnybitError", "AnybitWarning", "Callback", "ClientOptions", "ComputeOptions", "Config", "CsvLogger", "EarlyStopping",
    "EvaluationOptions", "Fitted", "Metric", "Pipeline", "PrivacyOptions", "Progress", "RangeOptions", "Run",
    "SamplingOptions", "Score", "ServerOptimizer", "ServerOptions", "SiteOptions", "StepTable", "TensorBoardLogger",
    "Variant", "WandbLogger", "Width",
    "accuracy", "apqn", "baseline", "by_client", "carousel", "cycled_widths", "dealt_width", "evaluate", "fit",
    "fixed_width", "kure", "mqat", "prepare", "qat", "replace_batchnorm", "sampled_width",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'anybit' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    if isinstance(value, type) and name.endswith(("Options", "Config", "Pipeline")):
        value.__doc__ = _with_fields(value)
    globals()[name] = value
    return value


def _with_fields(options: type) -> str:
    """Return the docstring of a class with those of its fields, which Python does not keep, so that `help` shows them."""
    lines, name = [inspect.cleandoc(options.__doc__ or "")], ""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    except OSError:  # a program without its sources
        return lines[0]
    for node in tree.body if isinstance(tree, ast.ClassDef) else []:
        if isinstance(node, ast.AnnAssign):
            name = ast.unparse(node)
            lines.append(f"\n{name}")
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.append(textwrap.indent(inspect.cleandoc(str(node.value.value)), "    "))
    return "\n".join(lines)
