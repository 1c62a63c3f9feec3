"""Means that a few wrong clients cannot move far (Yin et al., Byzantine-Robust Distributed Learning)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from anybit.federated.algorithm import Combine, mean_delta
from anybit.federated.server import ServerOptions
from anybit.federated.state import Trainable
from anybit.tensors import Part


def combiner(options: ServerOptions) -> Combine:
    """Choose how the deltas of a cohort become one, as the server's options say."""
    if options.mean == "mean":
        return mean_delta
    return robust_delta(median if options.mean == "median" else lambda delta: trimmed_mean(delta, options.trim))


def robust_delta(middle: Callable[[Tensor], Tensor]) -> Combine:
    """Combine every weight by `middle`, clients counting equally; a learned Δ_b by its own mean, as `mean_delta` does.

    Order statistics need all clients at once, so the parts are gathered first.
    """
    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[Trainable, Tensor]:
        everyone = list(parts)
        learned = [(clients, deltas._replace(w={}), losses) for clients, deltas, losses in everyone]
        delta, losses = mean_delta(learned, width_bits, weighting)
        gathered = {n: torch.cat([deltas.w[n] for _, deltas, _ in everyone]) for n in everyone[0][1].w}
        return delta._replace(w={n: middle(deltas) for n, deltas in gathered.items()}), losses
    return combine


def median(delta: Tensor) -> Tensor:
    """Take the median per coordinate over the first dimension; of an even number, the mean of the middle two."""
    ordered, count = delta.sort(0).values, delta.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(delta: Tensor, trim: float) -> Tensor:
    """Average per coordinate without the ⌊trim·n⌋ lowest and highest."""
    cut, count = int(trim * delta.shape[0]), delta.shape[0]
    return torch.mean(delta.sort(0).values[cut:count - cut], 0)
