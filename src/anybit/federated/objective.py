"""The client's loss f*, from a variant and the user's model, data and loss function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.data.examples import Data
from anybit.errors import ConfigError
from anybit.federated.algorithm import BoundLoss, Loss
from anybit.federated.cohort import Batch
from anybit.federated.state import Given, Trainable
from anybit.federated.variants import Variant, Weights
from anybit.quant.grid import Width, limits
from anybit.quant.ranges import StepTable, all_bits
from anybit.quant.single_client import ModelAtWidth, SingleClientModel
from anybit.quant.sites import bind, observed, quantizers, weight_sites
from anybit.tensors import Tensors

PerExample = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one value per example."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return −log p(target) per example: the default loss."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 100 where the largest output is the target's, else 0: the default metric, in percent."""
    return 100.0 * (outputs.argmax(1) == targets)


def client_loss(prepared: nn.Module, variant: Variant, data: Data, loss: PerExample,
                step_scale: Tensors, bf16: bool = False) -> Loss:
    """Make f*(w; ξ) at a width: the mean loss over the real rows of the batch with quantized tensors, plus penalties.

    With bf16, layers compute in bfloat16 (autocast); weights, their quantization and the loss stay in float32.
    """
    def value(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
        def forward(step_sizes: Tensors, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            tensors = w.w | bind(prepared, step_sizes, xi.width, rows=xi.rows, key=xi.key, count=xi.local_step)
            return torch.func.functional_call(prepared, tensors, (inputs,)), observed(tensors)
        return objective(w, given, xi, forward)

    objective = _objective(weight_sites(prepared), variant, data, loss, step_scale, bf16)
    return value


def client_loss_alone(model: SingleClientModel, variant: Variant, data: Data, loss: PerExample, step_scale: Tensors,
                      bf16: bool = False) -> Callable[[Given], BoundLoss]:
    """Make the same for one client outside vmap, at less cost: given → its f*(w; ξ)."""
    def bound(given: Given) -> BoundLoss:
        @functools.cache
        def planned(width: Width) -> ModelAtWidth:
            return model.at(width, given.step_sizes, step_scale)

        def value(w: Trainable, xi: Batch) -> tuple[Tensor, Tensor]:
            at_width = planned(Width(*xi.width.tolist()))

            def forward(step_sizes: Tensors, inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
                return at_width(w.w, step_sizes, inputs, rows=xi.rows, key=xi.key, count=xi.local_step)
            return objective(w, given, xi, forward)
        return value

    objective = _objective(model.parameter_of, variant, data, loss, step_scale, bf16)
    return bound


Forward = Callable[[Tensors, Tensor], tuple[Tensor, dict[str, Tensor]]]
"""(step sizes, inputs) → (outputs, statistics of the observers)."""


def _objective(parameter_of: Mapping[str, str], variant: Variant, data: Data, loss: PerExample, step_scale: Tensors,
               bf16: bool) -> Callable[[Trainable, Given, Batch, Forward], tuple[Tensor, Tensor]]:
    """Make (w, given, ξ, forward) → (mean loss + Σ λ·penalty, mean loss)."""
    def value(w: Trainable, given: Given, xi: Batch, forward: Forward) -> tuple[Tensor, Tensor]:
        step_sizes = {**given.step_sizes, **_learned_steps(w, given, step_scale)} if step_scale else given.step_sizes
        batch = data.train.rows(xi.index)
        inputs = data.pipeline.augmented(batch.x, xi.key, xi.local_step)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            outputs, watched = forward(step_sizes, inputs)
        losses = loss(outputs.float() if bf16 else outputs, batch.y)
        if losses.shape != xi.rows.shape:
            raise ConfigError(f"loss must return one value per example, shape {tuple(xi.rows.shape)}, but returned "
                              f"{tuple(losses.shape)}: use reduction='none'")
        mean = (losses * xi.rows).sum() / xi.rows.sum().clamp_min(1)
        seen = Weights(w.w, {site: w.w[name] for site, name in parameter_of.items()}, watched)
        penalties = (strength * penalty(seen) for strength, (_, penalty)
                     in zip(given.strengths, variant.penalties, strict=True))
        return mean + sum(penalties, mean.new_zeros(())), mean.detach()

    return value


def strengths(variant: Variant, like: Tensor) -> tuple[Tensor, ...]:
    """Return λ of the variant's penalties, in the type and on the device of `like`."""
    return tuple(like.new_tensor(strength) for strength, _ in variant.penalties)


def _learned_steps(w: Trainable, given: Given, scale: Tensors) -> dict[str, Tensor]:
    """Return Δ = Δ_start·exp(s), with the gradient of s = log(Δ/Δ_start) scaled."""
    return {site: given.step_sizes[site] * torch.exp(s.detach() + scale[site] * (s - s.detach()))
            for site, s in w.log_steps.by_site().items()}


def learned_step_scale(prepared: nn.Module, w: Tensors, features: Mapping[str, Tensor],
                       table: StepTable) -> dict[str, Tensor]:
    """Return g/Δ_start² per site and bit-width, so that at the start s moves as Δ does in LSQ.

    LSQ has δΔ = −η·g·∂L/∂Δ with g = 1/√(N·high), N the size of the weight or of one image's activation; with
    Δ = Δ_start·exp(s) this is δs = −η·(g/Δ²)·∂L/∂s. Δ_start replaces Δ, as 1/Δ² would explode when Δ shrinks.
    """
    out = {}
    for name, site in quantizers(prepared).items():
        if site.transform is None:
            continue
        size = float(w[weight_sites(prepared)[name]].numel() if site.kind == "weights" else features[name])
        steps = table.steps[name]
        high = limits(all_bits(steps.device), site.grid)[1].reshape(-1, *[1] * (steps.dim() - 1))
        out[name] = (size * high) ** -0.5 / steps.square().clamp_min(torch.finfo(steps.dtype).tiny)
    return out
