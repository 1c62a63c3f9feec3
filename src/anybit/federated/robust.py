"""Means that a few wrong clients cannot move far (Yin et al., Byzantine-Robust Distributed Learning)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from anybit.federated.algorithm import LOG_STEP, Combine, Part, mean_delta
from anybit.federated.server import ServerOptions


def combiner(options: ServerOptions) -> Combine:
    """How the deltas of a cohort become one, as the server's options say."""
    if options.mean == "mean":
        return mean_delta
    return robust_delta(median if options.mean == "median" else lambda delta: trimmed_mean(delta, options.trim))


def robust_delta(middle: Callable[[Tensor], Tensor]) -> Combine:
    """Every weight by `middle`, clients counting equally; a learned Δ_b by its own mean, over those that trained at b.

    Order statistics need all clients at once, so the parts are gathered first.
    """
    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        everyone = list(parts)
        learned = [(clients, {n: d for n, d in deltas.items() if n.startswith(LOG_STEP)}, losses)
                   for clients, deltas, losses in everyone]
        steps, losses = mean_delta(learned, width_bits, weighting)
        names = [n for n in everyone[0][1] if not n.startswith(LOG_STEP)]
        return {**{n: middle(torch.cat([deltas[n] for _, deltas, _ in everyone])) for n in names}, **steps}, losses
    return combine


def median(delta: Tensor) -> Tensor:
    """Per coordinate over the first dimension; of an even number, the mean of the middle two."""
    ordered, count = delta.sort(0).values, delta.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(delta: Tensor, trim: float) -> Tensor:
    """Per coordinate: the mean without the ⌊trim·n⌋ lowest and highest."""
    cut, count = int(trim * delta.shape[0]), delta.shape[0]
    return torch.mean(delta.sort(0).values[cut:count - cut], 0)
