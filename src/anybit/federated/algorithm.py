"""Algorithm 1 (FedAvg, FedAvg-KURE) and Algorithm 2 (FedAvg-APQN, -QAT, -MQAT) of the paper.

The variants differ in the loss alone: f(w), f(w) + λ·L_KURE(w), f(w + noise), f(Q(w, b)) or f(Q(w, b')).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from anybit.federated.cohort import Batch, Cohort
from anybit.federated.server import Server
from anybit.quant.grid import BITS

Tensors = Mapping[str, Tensor]
Loss = Callable[[Tensors, Tensor, Batch], tuple[Tensor, Tensor]]
"""(w, width, ξ) → (what is minimized, the mean loss on ξ that is reported)."""

ClientUpdate = Callable[[Tensors, Tensor, Iterable[Batch]], tuple[dict[str, Tensor], Tensor]]
MapClients = Callable[[ClientUpdate, Tensors, Cohort], tuple[dict[str, Tensor], Tensor]]
"""Run the client update for every client of the cohort: (deltas, losses), client first, losses (client, step)."""

Combine = Callable[[Tensors, Cohort, Tensor], dict[str, Tensor]]
"""(deltas, client first; cohort; weighting) → Δ_t."""

LOG_STEP = "log_step/"
"""Names of learned steps among the parameters: log(Δ/Δ_start) of one site, first dimension BITS."""


class State(NamedTuple):
    """What the server keeps between rounds."""

    w: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def client_update(w: Tensors, width: Tensor, batches: Iterable[Batch], loss: Loss,
                  lr: Mapping[str, float]) -> tuple[dict[str, Tensor], Tensor]:
    """One client: K steps of SGD from the server's w. Returns the delta w_K − w_0 and the loss of every step."""
    w_i, losses = dict(w), []                                           # w_{t,0} ← w_t: broadcast
    for xi in batches:                                                  # k = 0, …, K−1
        g, value = torch.func.grad(loss, has_aux=True)(w_i, width, xi)  # g ← ∇f*(w_{t,k}; ξ)
        w_i = {n: w_i[n] - lr[n] * xi.real * g[n] for n in w_i}         # w_{t,k+1} ← w_{t,k} − η_c·g
        losses.append(value)
    return {n: w_i[n] - w[n] for n in w}, torch.stack(losses)


def federated_round(state: State, cohort: Cohort, update: ClientUpdate, server: Server, map_clients: MapClients,
                    weighting: Tensor, combine: Combine | None = None) -> tuple[State, Tensor]:
    """One round: every client of the cohort in parallel, the mean of the deltas, the server's step."""
    deltas, losses = map_clients(update, state.w, cohort)
    delta = (combine or mean_delta)(deltas, cohort, weighting)          # Δ_t = 1/|S| Σ (w_{t,K} − w_{t,0})
    weights = {n: p for n, p in state.w.items() if not n.startswith(LOG_STEP)}
    optimizer, w = server.step(state.optimizer, weights, delta)         # w_{t+1} ← w_t + η_s·Δ_t
    steps = {n: p + delta[n] for n, p in state.w.items() if n.startswith(LOG_STEP)}
    return State({**w, **steps}, optimizer), losses


def mean_delta(deltas: Tensors, cohort: Cohort, weighting: Tensor) -> dict[str, Tensor]:
    """The weighted mean over clients. A learned Δ_b averages over the clients that trained at b, and rests without any."""
    mean = {}
    for name, delta in deltas.items():
        if name.startswith(LOG_STEP):
            bits = cohort.width_bits[:, 0 if name.endswith("weight_quantizer") else 1]
            trained = (bits[:, None] == torch.arange(BITS[0], BITS[-1] + 1, device=bits.device)).to(delta.dtype)
            count = trained.sum(0).clamp_min(1).reshape(-1, *[1] * (delta.dim() - 2))
            mean[name] = delta.sum(0) / count
        else:
            mean[name] = torch.tensordot(weighting, delta, dims=1)
    return mean


def client_weighting(cohort: Cohort, by_examples: bool = False) -> Tensor:
    """1/|S| for every client (the paper's), or in proportion to its examples."""
    share = torch.tensor(cohort.examples if by_examples else [1.0] * len(cohort.clients), dtype=torch.float32)
    return (share / share.sum()).to(cohort.index.device)
