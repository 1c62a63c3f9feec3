"""Robust means: a few wrong clients cannot move them far (Yin et al., Byzantine-Robust Distributed Learning)."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.federated.algorithm import Combine, mean_delta
from anybit.federated.server import ServerOptions
from anybit.federated.state import Trainable
from anybit.tensors import Part


def combiner(options: ServerOptions) -> Combine:
    """Return `mean_delta`, or its robust form: an order statistic per weight with equal clients; log step sizes as there."""
    if options.mean == "mean":
        return mean_delta
    middle = median if options.mean == "median" else functools.partial(trimmed_mean, trim=options.trim)

    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[Trainable, Tensor]:
        # Order statistics need all clients at once, and an engine may use a part's memory again for the next.
        parts = [(clients, pytree.tree_map(torch.clone, deltas), losses) for clients, deltas, losses in parts]
        learned = [(clients, deltas._replace(w={}), losses) for clients, deltas, losses in parts]
        delta, losses = mean_delta(learned, width_bits, weighting)
        gathered = {n: torch.cat([deltas.w[n] for _, deltas, _ in parts]) for n in parts[0][1].w}
        return delta._replace(w={n: middle(deltas) for n, deltas in gathered.items()}), losses
    return combine


def median(delta: Tensor) -> Tensor:
    """Return the median per coordinate over the first dimension; of an even number, the mean of the middle two."""
    ordered, count = delta.sort(0).values, delta.shape[0]
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def trimmed_mean(delta: Tensor, trim: float) -> Tensor:
    """Return the mean per coordinate without the ⌊trim·n⌋ lowest and highest."""
    cut, count = int(trim * delta.shape[0]), delta.shape[0]
    return torch.mean(delta.sort(0).values[cut:count - cut], 0)
