"""What a model must not do in a pass: be another network than its own, write to its inputs, draw numbers, mix examples."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anybit.config import Config
from anybit.engines.stacked import attention
from anybit.errors import AnybitWarning, ModelError
from anybit.inputs import Inputs, called, described, device_of, leaves, mapped, selected, shapes
from anybit.quant.sites import call, prepare, quantizers, weight_sites
from anybit.tensors import Tensors, picked
from anybit.training.task import Task

_BY_CLASS = (": does forward look at the class of a layer, as in type(m) is nn.Linear or isinstance(m, nn.GRU)? Go by its "
             "name or its place instead")


def check_weights(prepared: nn.Module, inputs: Inputs, output: str | int | None) -> None:
    """Raise where a weight is used outside of the layers that round it: with these cut off, no gradient may reach it."""
    sites, parameters = quantizers(prepared, "weights"), dict(prepared.named_parameters())
    weights = {name: parameters[name] for name in weight_sites(prepared).values()}
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    try:
        for site in sites.values():
            site.shortcut = torch.detach
        for weight in frozen:
            weight.requires_grad_()
        with torch.enable_grad():
            outputs = selected(called(prepared, mapped(inputs, torch.clone)), output)
        found = torch.autograd.grad(outputs.sum(), [*weights.values()], allow_unused=True) if outputs.requires_grad else ()
    finally:
        for site in sites.values():
            site.shortcut = None
        for weight in frozen:
            weight.requires_grad_(False)
    for name, gradient in zip(weights, found, strict=False):
        if gradient is not None:
            raise ModelError(f"weight '{name}' is also used outside of its layer, as in F.linear(x, layer.weight), where "
                             "nothing would round it: use a layer that shares it (decoder.weight = encoder.weight), or name "
                             "it in full_precision")


@contextmanager
def taking(model: nn.Module, inputs: Inputs, others: Inputs | None = None, replaced: bool = True) -> Iterator[None]:
    """Explain why a model does not take inputs.

    others: of the clients, where these are of the test set · replaced: what is called is the model with layers that round.
    """
    try:
        yield
    except (RuntimeError, TypeError, IndexError) as error:
        if replaced and _takes(model, inputs):
            raise ModelError(f"the model takes inputs of shape {described(inputs)}, but not with its layers replaced by "
                             f"those that round ({str(error).splitlines()[0]}){_BY_CLASS}") from error
        hint = _shape_hint(model, inputs)
        if others is not None and shapes(inputs) != shapes(others):
            test, clients = (", ".join(str(tuple(shape)) for shape in shapes(each).values()) for each in (inputs, others))
            hint = f": test inputs have shape {test}, the clients' have {clients}"
        raise ModelError(f"the model does not take inputs of shape {described(inputs)} "
                         f"({str(error).splitlines()[0]}){hint}") from error


@torch.no_grad()
def _takes(model: nn.Module, inputs: Inputs) -> bool:
    with suppress(Exception):
        for own in (copy.deepcopy(model), copy.deepcopy(model).eval()):
            called(own, mapped(inputs, torch.clone))
        return True
    return False


@torch.no_grad()
def check_itself(model: nn.Module, inputs: Inputs, outputs: Tensor, output: str | int | None) -> None:
    """Raise where a model is another network once its layers are replaced by those that round, as it will be trained."""
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)  # it has zeros at padded positions, which training does not
        own = selected(called(copy.deepcopy(model).eval(), mapped(inputs, torch.clone)), output)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    known = own[own.isfinite()]  # what holds NaN is named elsewhere
    scale = float(known.abs().amax()) if known.numel() else 0.0
    if own.shape != outputs.shape or not torch.allclose(own, outputs, rtol=1e-2, atol=1e-3 * scale, equal_nan=True):
        raise ModelError(f"the model has other outputs with its layers replaced by those that round{_BY_CLASS}")


def _shape_hint(model: nn.Module, x: Inputs) -> str:
    """Guess what is wrong: parameters of another type, or the shape of images, by the channels of the first convolution."""
    other = next((p.dtype for p in model.parameters() if p.is_floating_point() and p.dtype != torch.float32), None)
    if other is not None:
        return f": its parameters are {str(other).removeprefix('torch.')}; give model.float()"
    if isinstance(x, Tensor) and x.dtype == torch.int64 and not any(isinstance(m, nn.Embedding) for m in model.modules()):
        return ": whole numbers that no embedding reads? give x.astype('float32')"
    channels = next((layer.in_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    if channels is None or not isinstance(x, Tensor):
        return ""
    if x.dim() == 4 and x.shape[3] == channels != x.shape[1]:
        return ": channels last? give x.transpose(0, 3, 1, 2), of a tensor x.permute(0, 3, 1, 2)"
    return ": no channel? give x[:, None]" if x.dim() == 3 and channels == 1 else ""


def check_apart(together: Tensor, alone: Tensor) -> None:
    """Raise unless an example has the same outputs in a batch and alone, as a device sees it."""
    if alone.shape == together.shape and together.isfinite().all():
        off = float((together - alone).abs().max()) if together.numel() else 0.0
        if not off <= 1e-2 * max(float(together.abs().max()), 1e-3):
            raise ModelError("the model mixes the examples of a batch: alone, an example has outputs that differ by "
                             f"{off:.3g} (an RNN without batch_first=True, a mean over dimension 0, or statistics of the "
                             "batch?); use what looks at one example, like GroupNorm or LayerNorm")


@torch.no_grad()
def outputs_of(model: nn.Module, inputs: Inputs, output: str | int | None) -> Tensor:
    return selected(_called_on_copy(model, inputs), output)


def _called_on_copy(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model on a copy of the inputs, and raise where it writes to them, as the next pass would see other data."""
    copied = mapped(inputs, torch.clone)
    versions = _versions(copied)
    outputs = called(model, copied)
    pairs = zip(leaves(inputs).values(), leaves(copied).values(), strict=True)
    # Writes through x.data have no version.
    if _versions(copied) != versions or any(not torch.equal(old, new) and not old.isnan().any() for old, new in pairs):
        raise ModelError("the model's forward changes its input in place (x -= …, x.relu_()), so that the next pass sees "
                         "other data: write x = x - …, or clone it first")
    return outputs


def _versions(inputs: Inputs) -> list[int]:
    """Return torch's count of writes to each tensor, which sees those that change no value; those of inference have none."""
    return [0 if x.is_inference() else x._version for x in leaves(inputs).values()]


@torch.no_grad()
def check_repeatable(model: nn.Module, config: Config, inputs: Inputs) -> None:
    """Raise where a forward pass in training draws its own numbers or changes buffers or inputs; warn of dropout at rest.

    All would escape: draws are keyed so that a resume repeats them, what a client's pass writes is kept nowhere, and inputs
    are the data of the next pass.
    """
    prepared = prepare(model, options=config.sites)
    mine = dict(model.named_buffers())
    before = {name: copy.deepcopy(value) for name, value in prepared.named_buffers() if name in mine}
    device, numbers, python = device_of(inputs), np.random.get_state(), random.getstate()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        states = _random_states(device)
        try:
            _called_on_copy(prepared, inputs)
        finally:
            drawn = states != _random_states(device)
            np.random.set_state(numbers)
            random.setstate(python)
    if drawn:
        raise ModelError("the model's forward draws its own random numbers (F.dropout, torch.rand?), which no resume can "
                         "repeat: use nn.Dropout as a module of the model, or set it to 0 (in a Hugging Face config "
                         "attention_probs_dropout_prob or attention_dropout)")
    for name, value in prepared.named_buffers():
        if name in before and not torch.equal(value, before[name]):
            raise ModelError(f"the model's forward changes its buffer '{name}', which clients do not send and the trained "
                             "model would not have: drop it, or freeze its module with .eval()")
    resting = [name for name, module in model.named_modules()
               if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 and not module.training]
    if resting and not model.training:
        warnings.warn(f"the model is in evaluation mode: it trains without its dropout ('{resting[0]}'"
                      f"{', …' if len(resting) > 1 else ''}); call model.train() before", AnybitWarning, stacklevel=2)


@torch.no_grad()
def check_mapped(task: Task, config: Config) -> None:
    """Raise where the stacked engine cannot compute the model."""
    if reason := unmapped(task, config):
        raise ModelError("engine 'stacked' computes all clients in one program, which this model does not allow "
                         f"({reason}): use engine 'sequential' or 'processes'")


def unmapped(task: Task, config: Config) -> str:
    """Return why vmap, by which the stacked engine computes its clients, does not get through the model; empty if it does.

    It is asked where the data are, which a sweep has on its device already.
    """
    data = task.data
    prepared = prepare(task.model, options=config.sites).to(data.train.y.device)
    two = [pytree.tree_map(lambda leaf: torch.stack([leaf] * 2), tree)
           for tree in (dict(prepared.named_parameters()), data.pipeline(picked(data.train.x, slice(1))))]

    def summed(w: Tensors, fixed: Tensors, x: Inputs) -> Tensor:
        outputs = pytree.tree_leaves(selected(call(prepared, {**w, **fixed}, x), task.output))
        return torch.stack([leaf.float().sum() for leaf in outputs]).sum()

    trained = {name: p for name, p in two[0].items() if p.is_floating_point()}
    fixed = {name: p for name, p in two[0].items() if name not in trained}
    try:
        with attention(data.train.y.device):
            torch.func.vmap(torch.func.grad(summed))(trained, fixed, two[1])
    except RuntimeError as error:
        text = str(error).splitlines()[0][:200]
        known = {"data-dependent": "its forward decides by values of tensors, as in 'if mask.all()'",
                 "saved tensor hooks": "its forward is computed again for the gradient, by torch.utils.checkpoint"}
        return next((reason for part, reason in known.items() if part in text), text)
    return ""


def _random_states(device: torch.device) -> list[object]:
    """Return what all generators will draw from, to be compared."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    kind, keys, *numbers = np.random.get_state()
    return [*(state.numpy().tobytes() for state in states), random.getstate(), kind, np.asarray(keys).tobytes(), *numbers]
