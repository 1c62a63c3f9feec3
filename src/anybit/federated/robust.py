"""Robust means: a few wrong clients cannot move them far (Yin et al., Byzantine-Robust Distributed Learning)."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.federated.algorithm import Combine, mean_delta
from anybit.federated.server import ServerOptions
from anybit.federated.state import LogSteps, Trainable
from anybit.quant.ranges import all_bits
from anybit.tensors import Part


def combiner(options: ServerOptions) -> Combine:
    """Return `mean_delta`, or its robust form: an order statistic per coordinate with equal clients.

    Of a learned Δ_b, over the clients that trained at b.
    """
    if options.mean == "mean":
        return mean_delta
    trim = 0.5 if options.mean == "median" else options.trim
    middle = median if options.mean == "median" else functools.partial(trimmed_mean, trim=options.trim)

    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[Trainable, Tensor]:
        # Order statistics need all clients at once, and an engine may use a part's memory again for the next.
        parts = [(clients, pytree.tree_map(torch.clone, deltas), losses) for clients, deltas, losses in parts]
        deltas: Trainable = pytree.tree_map(lambda *tensors: torch.cat(tensors), *(deltas for _, deltas, _ in parts))
        log_steps = LogSteps(*({site: _middle_where_trained(steps, bits, trim) for site, steps in kind.items()}
                               for kind, bits in zip(deltas.log_steps, width_bits.unbind(2), strict=True)))
        return (Trainable({n: middle(delta) for n, delta in deltas.w.items()}, log_steps),
                torch.cat([losses for _, _, losses in parts]))
    return combine


def _middle_where_trained(steps: Tensor, bits: Tensor, trim: float) -> Tensor:
    """Return the trimmed mean of log Δ_b (trim = 0.5: the median) over the clients that trained at b; 0 where none did."""
    trained = (bits[:, :, None] == all_bits(bits.device)).any(1).reshape(*steps.shape[:2], *[1] * (steps.dim() - 2))
    ordered = torch.where(trained, steps, torch.inf).sort(0).values  # those that did not train come last
    count = trained.sum(0, keepdim=True)
    cut = torch.minimum((trim * count.double()).long(), (count - 1).clamp_min(0) // 2)
    place = torch.arange(len(steps), device=steps.device).reshape(-1, *[1] * (steps.dim() - 1))
    kept = (place >= cut) & (place < count - cut)
    return torch.where(kept, ordered, 0.0).sum(0) / kept.sum(0).clamp_min(1)


def median(delta: Tensor) -> Tensor:
    """Return the median per coordinate over the first dimension; of an even number, the mean of the middle two."""
    ordered, count = delta.sort(0).values, delta.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(delta: Tensor, trim: float) -> Tensor:
    """Return the mean per coordinate without the ⌊trim·n⌋ lowest and highest."""
    cut, count = int(trim * delta.shape[0]), delta.shape[0]
    return torch.mean(delta.sort(0).values[cut:count - cut], 0)
