"""The client's loss f*, from a variant and the user's model, data and loss function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anybit.data.examples import Data
from anybit.errors import ConfigError
from anybit.federated.algorithm import BoundLoss, Loss
from anybit.federated.cohort import Batch
from anybit.federated.metrics import PerExample
from anybit.federated.state import Given, Trainable
from anybit.federated.variants import Variant, Weights
from anybit.inputs import Inputs, device_of, selected
from anybit.quant.grid import Width, limits
from anybit.quant.ranges import StepTable, all_bits
from anybit.quant.single_client import ModelAtWidth, SingleClientModel
from anybit.quant.sites import all_parameters, bind, call, observed, quantizers, weight_sites
from anybit.tensors import Tensors


def client_loss(prepared: nn.Module, variant: Variant, data: Data, loss: PerExample,
                step_scale: Tensors, bf16: bool = False, output: str | int | None = None) -> Loss:
    """Make f*(w; ξ) at a width: the mean loss over the real rows of the batch with quantized tensors, plus penalties.

    With bf16, layers compute in bfloat16 (autocast); weights, their quantization and the loss stay in float32. output: the
    key or position of the model's output, where it returns several.
    """
    def value(w: Trainable, given: Given, xi: Batch) -> tuple[Tensor, Tensor]:
        def forward(step_sizes: Tensors, inputs: Inputs) -> tuple[Any, dict[str, Tensor]]:
            tensors = w.w | bind(prepared, step_sizes, xi.width, rows=xi.rows, key=xi.key, count=xi.local_step)
            return call(prepared, tensors, inputs), observed(tensors)
        return objective(w, given, xi, forward)

    objective = _objective(weight_sites(prepared), variant, data, loss, step_scale, bf16, output)
    return value


def client_loss_alone(model: SingleClientModel, variant: Variant, data: Data, loss: PerExample, step_scale: Tensors,
                      bf16: bool = False, output: str | int | None = None) -> Callable[[Given], BoundLoss]:
    """Make the same for one client outside vmap, at less cost: given → its f*(w; ξ)."""
    def bound(given: Given) -> BoundLoss:
        @functools.cache
        def planned(width: Width) -> ModelAtWidth:
            return model.at(width, given.step_sizes, step_scale)

        def value(w: Trainable, xi: Batch) -> tuple[Tensor, Tensor]:
            at_width = planned(Width(*xi.width.tolist()))

            def forward(step_sizes: Tensors, inputs: Inputs) -> tuple[Any, dict[str, Tensor]]:
                return at_width(w.w, step_sizes, inputs, rows=xi.rows, key=xi.key, count=xi.local_step)
            return objective(w, given, xi, forward)
        return value

    objective = _objective(model.parameter_of, variant, data, loss, step_scale, bf16, output)
    return bound


Forward = Callable[[Tensors, Inputs], tuple[Any, dict[str, Tensor]]]
"""(step sizes, inputs) → (outputs, statistics of the observers)."""


def _objective(parameter_of: Mapping[str, str], variant: Variant, data: Data, loss: PerExample, step_scale: Tensors,
               bf16: bool, output: str | int | None) -> Callable[[Trainable, Given, Batch, Forward], tuple[Tensor, Tensor]]:
    """Make (w, given, ξ, forward) → (mean loss + Σ λ·penalty, mean loss)."""
    def value(w: Trainable, given: Given, xi: Batch, forward: Forward) -> tuple[Tensor, Tensor]:
        step_sizes = {**given.step_sizes, **_learned_steps(w, given, step_scale)} if step_scale else given.step_sizes
        batch = data.train.rows(xi.index)
        inputs = data.pipeline.augmented(batch.x, xi.key, xi.local_step)
        with torch.autocast(device_of(inputs).type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            returned, watched = forward(step_sizes, inputs)
        outputs = selected(returned, output)
        losses = loss(outputs.float() if bf16 else outputs, batch.y)
        if losses.shape != xi.rows.shape:
            further = losses.dim() > 1 and losses.shape[0] == xi.rows.shape[0]
            fix = "take the mean over the other dimensions, .flatten(1).mean(1)" if further else "use reduction='none'"
            raise ConfigError(f"loss must return one value per example, shape {tuple(xi.rows.shape)}, but returned "
                              f"{tuple(losses.shape)}: {fix}")
        mean = (losses * xi.rows).sum() / xi.rows.sum().clamp_min(1)
        seen = Weights(w.w, {site: w.w[name] for site, name in parameter_of.items() if name in w.w}, watched)
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
    out, every = {}, all_parameters(prepared, w)
    for name, site in quantizers(prepared).items():
        if site.transform is None or name in table.start_rms:
            continue
        size = float(every[weight_sites(prepared)[name]].numel() if site.kind == "weights" else features[name])
        steps = table.steps[name]
        high = limits(all_bits(steps.device), site.grid)[1].reshape(-1, *[1] * (steps.dim() - 1))
        out[name] = (size * high) ** -0.5 / steps.square().clamp_min(torch.finfo(steps.dtype).tiny)
    return out
