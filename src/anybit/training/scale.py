"""The scale of inputs: a model hardly learns from pixels of 0 to 255, and nothing else says so."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from anybit.config import Config
from anybit.errors import AnybitWarning
from anybit.federated.state import trainable_weights
from anybit.inputs import Inputs, leaves
from anybit.quant.calibrate import activation_ranges
from anybit.quant.sites import SiteOptions
from anybit.tensors import picked
from anybit.training.task import Task

LARGE = 20.0
"""The size from which inputs are far from what a layer's initial weights are made for, about 1."""
_EXAMPLES = 64


def warn_of_scale(task: Task, config: Config) -> None:
    """Warn of float inputs far above 1, unless the model scales them before the first layer that is quantized."""
    inputs = task.data.pipeline(picked(task.data.train.x, slice(_EXAMPLES)))
    for name, x in leaves(inputs).items():
        if (words := unscaled(x)) and _reaches_a_layer(task.model, config.sites, inputs, x):
            what = "inputs" if isinstance(inputs, Tensor) else f"inputs '{name}'"
            warnings.warn(f"{what} {words}", AnybitWarning, stacklevel=2)


def unscaled(x: Tensor) -> str:
    """Say what floats look like that are far above 1: pixels as bytes, or anything else; empty where they are not."""
    if not x.is_floating_point() or not x.numel():
        return ""
    high, size = float(x.max()), float(x.double().square().mean().sqrt())
    if float(x.min()) >= 0 and LARGE < high <= 255 and (x.dim() > 2 or bool((x == x.round()).all())):
        return "look like 0…255: divide them by 255, or give uint8, which is scaled"
    return "" if size <= LARGE else (f"are large (root mean square {size:.3g}), and models learn from values of about 1: "
                                     "scale them, e.g. with pipeline=anybit.Pipeline(mean, std)")


def _reaches_a_layer(model: nn.Module, sites: SiteOptions, inputs: Inputs, x: Tensor) -> bool:
    """Tell if a layer sees the largest of these inputs as it is."""
    seen = activation_ranges(model, sites, trainable_weights(model), inputs)
    return any(bool(r.high == x.max()) for r in seen.values())
