"""What is no error and hardly meant: pixels of 0 to 255, probabilities as logits, idle weights, last batches of a few."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from anybit.config import Config
from anybit.errors import AnybitWarning
from anybit.federated.metrics import cross_entropy
from anybit.federated.state import trainable_weights
from anybit.inputs import Inputs, called, device_of, leaves, selected
from anybit.quant.calibrate import activation_ranges
from anybit.quant.checks import in_float
from anybit.quant.sites import SiteOptions, prepare
from anybit.tensors import picked
from anybit.training.task import Task

LARGE = 20.0
"""The size from which inputs are far from what a layer's initial weights are made for, about 1."""
_EXAMPLES, _FEW = 64, 4
_LEFT_OVER = 1 / 8
"""Share of a batch up to which a last one is small."""


def warn_of_scale(task: Task, config: Config) -> None:
    """Warn of float inputs far above 1, unless the model scales them before the first layer that is quantized."""
    inputs = task.data.pipeline(picked(task.data.train.x, slice(_EXAMPLES)))
    for name, x in leaves(inputs).items():
        if (words := unscaled(x)) and _reaches_a_layer(task.model, config.sites, inputs, x):
            what = "inputs" if isinstance(inputs, Tensor) else f"inputs '{name}'"
            warnings.warn(f"{what} {words}", AnybitWarning, stacklevel=2)


@torch.no_grad()
def warn_of_probabilities(task: Task, config: Config) -> None:
    """Warn of a softmax before cross-entropy, which has one of its own: what is left is a fraction of the gradient."""
    if task.loss is not cross_entropy:
        return
    inputs = task.data.pipeline(picked(task.data.train.x, slice(_EXAMPLES)))
    prepared = prepare(task.model, options=config.sites).eval().to(device_of(inputs))
    outputs = selected(called(prepared, inputs), task.output)
    off = (outputs.float().sum(1) - 1).abs().max()
    if outputs.shape[1] > 1 and float(outputs.min()) >= 0 and float(off) < 1e-3:
        warnings.warn("the model's outputs are probabilities (none is negative, and they sum to 1), which cross-entropy "
                      "takes for logits: it learns slowly; leave the softmax out", AnybitWarning, stacklevel=2)


def warn_of_unused(task: Task, config: Config) -> None:
    """Warn of weights that the loss of training does not depend on, as those of a second head, unless they stay in float.

    The model is asked in the mode in which clients train it: an auxiliary head may be for training alone.
    """
    examples = task.data.train
    batch = examples.rows(torch.arange(min(_FEW, len(examples)), device=examples.y.device))
    inputs = task.data.pipeline(batch.x)
    prepared = prepare(task.model, options=config.sites).to(device_of(inputs))
    kept = in_float(prepared, config.sites.full_precision)
    weights = {name: p for name, p in prepared.named_parameters() if p.requires_grad and id(p) not in kept}
    loss = task.loss(selected(called(prepared, inputs), task.output), batch.y).mean()
    if not loss.requires_grad:
        return
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    unused = [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        warnings.warn(f"the loss does not depend on '{unused[0]}'{more}: what is not trained keeps its initial values, and "
                      "ONNX refuses to round it; drop it from the model, or name it in full_precision",
                      AnybitWarning, stacklevel=2)


def warn_of_leftovers(task: Task, config: Config) -> None:
    """Warn of last batches of a few examples, which move the weights as far as full ones, where most clients have them."""
    size = config.client.batch_size
    left = [len(index) % size for index in task.split if len(index) > size]
    few = [count for count in left if 0 < count <= size * _LEFT_OVER]
    if not config.client.even and 2 * len(few) > len(task.split):
        warnings.warn(f"{len(few)} of {len(task.split)} clients have last batches of {max(few)} examples or fewer, which "
                      f"move the weights as far as {size} do: client.batches=even makes batches of one size",
                      AnybitWarning, stacklevel=2)


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
