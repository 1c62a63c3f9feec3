"""Algorithm 1 (FedAvg, FedAvg-KURE) and Algorithm 2 (FedAvg-APQN, -QAT, -MQAT) of the paper.

The variants differ in the loss alone: f(w), f(w) + λ·L_KURE(w), f(w + noise), f(Q(w, b)) or f(Q(w, b')).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anybit.federated.cohort import Batch, Cohort
from anybit.federated.server import Server
from anybit.quant.grid import BITS

Tensors = Mapping[str, Tensor]
Loss = Callable[[Tensors, Tensors, Tensor, Batch], tuple[Tensor, Tensor]]
"""(w, steps, width, ξ) → (what is minimized, the mean loss on ξ that is reported)."""

ClientStep = Callable[[Tensors, Tensors, Tensor, Batch], tuple[dict[str, Tensor], Tensor]]
"""(w, steps, width, ξ) → (w after one step of SGD, the loss before it)."""

LOG_STEP = "log_step/"
"""Names of learned steps among the parameters: log(Δ/Δ_start) of one site, first dimension BITS."""


Part = tuple[slice | Tensor, dict[str, Tensor], Tensor]
"""Some clients of a cohort after their local training: (which, deltas with the client first, losses (client, step))."""

MapClients = Callable[[Callable[..., Any], ClientStep, Tensors, Tensors, Cohort], Iterable[Part]]
"""An engine: run `client_update` with the given client step for every client of the cohort, in parts, in order."""

Combine = Callable[[Iterable[Part], Tensor, Tensor], tuple[dict[str, Tensor], Tensor]]
"""(parts, the clients' bits, their weighting) → (Δ_t, losses)."""


class State(NamedTuple):
    """What the server keeps between rounds."""

    w: dict[str, Tensor]
    optimizer: dict[str, Tensor]


def client_update(w: Tensors, steps: Tensors, width: Tensor, batches: Iterable[Batch],
                  client_step: ClientStep) -> tuple[dict[str, Tensor], Tensor]:
    """One client: K steps of SGD from the server's w. Returns the delta w_K − w_0 and the loss of every step.

    Nothing here looks inside the tensors, so many clients can go through it side by side, with the client as first
    dimension of all of them and a `client_step` that is mapped over it.
    """
    w_i, losses = dict(w), []                                     # w_{t,0} ← w_t: broadcast
    for xi in batches:                                            # k = 0, …, K−1
        w_i, value = client_step(w_i, steps, width, xi)           # w_{t,k+1} ← w_{t,k} − η_c·∇f*(w_{t,k}; ξ)
        losses.append(value)
    return {n: w_i[n] - w[n] for n in w}, torch.stack(losses, -1)


def sgd_step(w: Tensors, steps: Tensors, width: Tensor, xi: Batch, loss: Loss, lr: Mapping[str, float],
             clip: float | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """w − η_c·∇f*(w; ξ), and f(w; ξ). A padded batch has ξ.real = 0 and changes nothing."""
    found, value = torch.func.grad(loss, has_aux=True)(w, steps, width, xi)
    g = clipped(found, clip)
    return {n: w[n] - lr[n] * xi.real * g[n] for n in w}, value


def clipped(gradients: Tensors, most: float | None) -> dict[str, Tensor]:
    """g·min(1, most/‖g‖), ‖g‖ over all weights together; nothing where ‖g‖ is not finite. None: as they are.

    That of a learned step lies within ±1 in any case: a local step changes it by its learning rate at most.
    """
    g = {n: g.clamp(-1, 1) if n.startswith(LOG_STEP) else g for n, g in gradients.items()}
    if most is None:
        return g
    norm = torch.stack([part.square().sum() for n, part in g.items() if not n.startswith(LOG_STEP)]).sum().sqrt()
    factor = most / norm.clamp_min(most)
    return {n: torch.where(torch.isfinite(norm), part if n.startswith(LOG_STEP) else part * factor, 0.0)
            for n, part in g.items()}


def sgd_step_alone(w: Tensors, steps: Tensors, width: Tensor, xi: Batch, loss: Loss, lr: Mapping[str, float],
                   lay: Callable[[Tensor], Tensor], clip: float | None = None) -> tuple[dict[str, Tensor], Tensor]:
    """`sgd_step` of one client outside vmap, on an unpadded batch, with parameters laid out in memory by `lay`.

    torch.func.grad always prepares for second derivatives, which forbids the fused backward of e.g. GroupNorm.
    """
    with torch.enable_grad():
        leaves = {n: lay(p).detach().requires_grad_() for n, p in w.items()}
        objective, value = loss(leaves, steps, width, xi)
        found = torch.autograd.grad(objective, list(leaves.values()), materialize_grads=True)
    g = clipped(dict(zip(leaves, found, strict=True)), clip)
    return {n: torch.add(p.detach(), g[n], alpha=-lr[n]) for n, p in leaves.items()}, value


@dataclass(frozen=True)
class LocalStep:
    """A client step in two forms that compute the same: one for vmap, compile and capture, one for a client alone."""

    mapped: ClientStep
    alone: ClientStep

    def __call__(self, w: Tensors, steps: Tensors, width: Tensor, xi: Batch) -> tuple[dict[str, Tensor], Tensor]:
        return self.mapped(w, steps, width, xi)


def federated_round(state: State, steps: Tensors, cohort: Cohort, client_step: ClientStep, server: Server,
                    map_clients: MapClients, weighting: Tensor, combine: Combine | None = None) -> tuple[State, Tensor]:
    """One round: every client of the cohort in parallel, the mean of the deltas, the server's step."""
    parts = map_clients(client_update, client_step, state.w, steps, cohort)
    delta, losses = (combine or mean_delta)(parts, cohort.width_bits, weighting)  # Δ_t = 1/|S| Σ (w_{t,K} − w_{t,0})
    return server_update(state, delta, server), losses            # w_{t+1} ← w_t + η_s·Δ_t


def server_update(state: State, delta: Tensors, server: Server) -> State:
    """The server's optimizer on the weights; learned steps move by their mean delta."""
    weights = {n: p for n, p in state.w.items() if not n.startswith(LOG_STEP)}
    optimizer, w = server.step(state.optimizer, weights, delta)
    learned = {n: p + delta[n] for n, p in state.w.items() if n.startswith(LOG_STEP)}
    return State({**w, **learned}, optimizer)


def _whole(total: dict[str, Tensor], losses: list[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The parts were the whole cohort."""
    return total, torch.cat(losses)


def mean_delta(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor,
               together: Callable[..., tuple[dict[str, Tensor], Tensor]] = _whole) -> tuple[dict[str, Tensor], Tensor]:
    """(the weighted mean over clients, the losses), summed part by part so that no more than one part is in memory.

    A learned Δ_b averages over the clients that trained at b, and rests without any.
    """
    total: dict[str, Tensor] = {}
    losses = []
    for clients, deltas, value in parts:
        share = weighting[clients]
        for name, delta in deltas.items():
            each = torch.ones_like(share) if name.startswith(LOG_STEP) else share
            here = torch.tensordot(each.to(delta.dtype), delta, dims=1)
            total[name] = total[name] + here if name in total else here
        losses.append(value)
    total, every = together(total, losses)
    for name in total:
        if name.startswith(LOG_STEP):
            total[name] = total[name] / _trained_at(name, width_bits, total[name])
    return total, every


def _trained_at(name: str, width_bits: Tensor, delta: Tensor) -> Tensor:
    """How many clients of the cohort trained at each of BITS (at least 1), in the shape of a step table."""
    bits = width_bits[:, 0 if name.endswith("weight_quantizer") else 1]
    trained = (bits[:, None] == torch.arange(BITS[0], BITS[-1] + 1, device=bits.device)).to(delta.dtype)
    return trained.sum(0).clamp_min(1).reshape(-1, *[1] * (delta.dim() - 1))


def client_weighting(cohort: Cohort, by_examples: bool = False) -> Tensor:
    """1/|S| for every client (the paper's), or in proportion to its examples."""
    share = torch.tensor(cohort.examples if by_examples else [1.0] * len(cohort.clients), dtype=torch.float32)
    return (share / share.sum()).to(cohort.index.device)
