"""The client's loss: what a variant makes of the user's model, data and loss function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.data.examples import Data
from anybit.errors import ConfigError
from anybit.federated.algorithm import LOG_STEP, Loss, Tensors
from anybit.federated.cohort import Batch
from anybit.federated.variants import Variant, Weights
from anybit.quant.grid import limits
from anybit.quant.ranges import StepTable, all_bits
from anybit.quant.single_client import Alone
from anybit.quant.sites import bind, observed, quantizers, weight_sites

PerExample = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) → one value per example."""

STRENGTHS = "penalty strengths"
"""The λ of the penalties among the steps, where runs side by side differ in them."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log p(target), per example: the default loss."""
    return F.cross_entropy(outputs, targets, reduction="none")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """100 where the largest output is the target's, else 0: the default metric, in percent."""
    return 100.0 * (outputs.argmax(1) == targets)


def client_loss(prepared: nn.Module, variant: Variant, data: Data, loss: PerExample,
                step_scale: Mapping[str, Tensor], bf16: bool = False, alone: Alone | None = None) -> Loss:
    """f*(w; ξ) at a width: mean loss over the real rows of the batch with quantized tensors, plus the penalties.

    With bf16, layers compute in bfloat16 (autocast); weights, their quantization and the loss stay in float32. With
    `alone` for one client outside any transform, which is cheaper.
    """
    parameter_of = weight_sites(prepared)

    def value(w: Tensors, steps: Tensors, width: Tensor, xi: Batch) -> tuple[Tensor, Tensor]:
        parameters = {n: p for n, p in w.items() if not n.startswith(LOG_STEP)}
        if step_scale:
            steps = {**steps, **_learned_steps(w, steps, step_scale)}
        inputs = data.pipeline.augmented(data.train.x[xi.index], xi.key, xi.step)
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
            if alone is not None:
                outputs, watched = alone(parameters, steps, width, inputs, rows=xi.rows, key=xi.key, count=xi.step)
            else:
                tensors = parameters | bind(prepared, steps, width, rows=xi.rows, key=xi.key, count=xi.step)
                outputs = torch.func.functional_call(prepared, tensors, (inputs,))
                watched = observed(tensors)
        each = loss(outputs.float() if bf16 else outputs, data.train.y[xi.index])
        if each.shape != xi.rows.shape:
            raise ConfigError(f"loss must return one value per example, shape {tuple(xi.rows.shape)}, but returned "
                              f"{tuple(each.shape)}: use reduction='none'")
        mean = (each * xi.rows).sum() / xi.rows.sum().clamp_min(1)
        seen = Weights(parameters, {site: parameters[name] for site, name in parameter_of.items()}, watched)
        strengths = steps.get(STRENGTHS, [strength for strength, _ in variant.penalties])
        return (mean + sum((strengths[i] * penalty(seen) for i, (_, penalty) in enumerate(variant.penalties)),
                           mean.new_zeros(())), mean.detach())

    return value


def _learned_steps(w: Tensors, steps: Tensors, scale: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Δ = Δ_start·exp(s), with the gradient of s = log(Δ/Δ_start) scaled."""
    out = {}
    for name, log_step in w.items():
        if name.startswith(LOG_STEP):
            site, now = name.removeprefix(LOG_STEP), log_step.detach()
            out[site] = steps[site] * torch.exp(now + scale[site] * (log_step - now))
    return out


def learned_step_scale(prepared: nn.Module, w: Tensors, features: Mapping[str, Tensor],
                       table: StepTable) -> dict[str, Tensor]:
    """Per site and bit-width g/Δ_start², so that at the start s moves as Δ does in LSQ.

    There δΔ = −η·g·∂L/∂Δ with g = 1/√(N·high), N the size of the weight or of one image's activation; with
    Δ = Δ_start·exp(s) that is δs = −η·(g/Δ²)·∂L/∂s. Δ_start, as 1/Δ² would run away with a step that shrinks.
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
