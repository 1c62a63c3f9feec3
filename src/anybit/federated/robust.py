"""Robust means: a few wrong clients cannot move them far.

Per coordinate: median and trimmed mean (Yin et al., Byzantine-Robust Distributed Learning). Of whole deltas, which keeps
together what a client learned: the geometric median (Pillutla et al., Robust Aggregation for Federated Learning) and
Multi-Krum (Blanchard et al., Machine Learning with Adversaries).
"""

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
from anybit.tensors import Part, Tensors

ITERATIONS = 50
"""Of Weiszfeld's algorithm."""


def combiner(options: ServerOptions) -> Combine:
    """Return `mean_delta`, or a robust form with equal clients.

    Learned Δ_b: an order statistic per coordinate, over the clients that trained at b.
    """
    if options.mean == "mean":
        return mean_delta
    trim = options.trim if options.mean == "trimmed" else 0.5

    def combine(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor) -> tuple[Trainable, Tensor]:
        # Order statistics need all clients at once, and an engine may use a part's memory again for the next.
        parts = [(clients, pytree.tree_map(torch.clone, deltas), losses) for clients, deltas, losses in parts]
        deltas: Trainable = pytree.tree_map(lambda *tensors: torch.cat(tensors), *(deltas for _, deltas, _ in parts))
        log_steps = LogSteps(*({site: _middle_where_trained(steps, bits, trim) for site, steps in kind.items()}
                               for kind, bits in zip(deltas.log_steps, width_bits.unbind(2), strict=True)))
        return Trainable(_middle(deltas.w, options), log_steps), torch.cat([losses for _, _, losses in parts])
    return combine


def _middle(deltas: Tensors, options: ServerOptions) -> dict[str, Tensor]:
    """Return the robust mean of deltas, whose first dimension is the client."""
    if options.mean in ("median", "trimmed"):
        middle = median if options.mean == "median" else functools.partial(trimmed_mean, trim=options.trim)
        return {name: middle(delta) for name, delta in deltas.items()}
    products = torch.stack([(rows := delta.flatten(1).double()) @ rows.T for delta in deltas.values()]).sum(0)
    weights = geometric_weights(products) if options.mean == "geometric" else krum_weights(products, options.trim)
    return {name: torch.tensordot(weights.to(delta), delta, 1) for name, delta in deltas.items()}


def geometric_weights(products: Tensor) -> Tensor:
    """Return the weights a of the geometric median Σ a_i·δ_i = argmin_x Σ ‖δ_i − x‖, from the inner products ⟨δ_i, δ_j⟩.

    Weiszfeld: a_i ∝ 1/‖δ_i − x‖, again and again, with ‖δ_i − x‖² = G_ii − 2·(G·a)_i + aᵀ·G·a.
    """
    weights = torch.full_like(products[0], 1 / len(products))
    least = 1e-6 * products.diagonal().sqrt().median().clamp_min(1e-30)
    for _ in range(ITERATIONS):
        squares = products.diagonal() - 2 * products @ weights + weights @ products @ weights
        nearness = 1 / squares.clamp_min(0).sqrt().clamp_min(least)
        weights = nearness / nearness.sum()
    return weights


def krum_weights(products: Tensor, trim: float) -> Tensor:
    """Weigh all clients but f = ⌊trim·n⌋ equally: those with the least sum of squares to their n − f − 2 nearest."""
    count, wrong = len(products), int(trim * len(products))
    squares = products.diagonal()[:, None] + products.diagonal() - 2 * products
    nearest = squares.sort(1).values[:, 1:max(2, count - wrong - 1)]
    rank = nearest.sum(1).argsort().argsort()
    return (rank < count - wrong).to(products.dtype) / (count - wrong)


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
