"""Algorithm 1 (FedAvg, FedAvg-KURE) and Algorithm 2 (FedAvg-APQN, -QAT, -MQAT) of the paper.

The variants differ in the loss alone: f(w), f(w) + λ·L_KURE(w), f(w + noise), f(Q(w, b)) or f(Q(w, b')).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.federated.cohort import Batch, Cohort
from anybit.federated.server import Server
from anybit.federated.state import Given, LogSteps, State, Trainable
from anybit.quant.grid import BITS
from anybit.tensors import Part, Tensors

Tree = TypeVar("Tree")

Loss = Callable[[Trainable, Given, Tensor, Batch], tuple[Tensor, Tensor]]
"""(w, given, width, ξ) → (what is minimized, the mean loss on ξ that is reported)."""

BoundLoss = Callable[[Trainable, Batch], tuple[Tensor, Tensor]]
"""The loss of one client: (w, ξ) → the same."""

LocalStep = Callable[[Tree, Batch], tuple[Tree, Tensor]]
"""One local step of one client, or of many side by side: (w, ξ) → (w after one step of SGD, the loss before it)."""

MapClients = Callable[[Callable[..., Any], "ClientStep", Trainable, Given, Cohort], Iterable[Part]]
"""An engine: run `client_update` with the given client step for every client of the cohort, in parts, in order."""

Combine = Callable[[Iterable[Part], Tensor, Tensor], tuple[Trainable, Tensor]]
"""(parts, the clients' bits, their weighting) → (Δ_t, losses)."""


def client_update(w: Tree, batches: Iterable[Batch], local_step: LocalStep[Tree]) -> tuple[Tree, Tensor]:
    """Train one client for K steps of SGD from the server's w; return the delta w_K − w_0 and the loss of every step.

    Nothing here looks inside the tensors, so many clients can go through it side by side, with the client as first
    dimension of all of them and a `local_step` that is mapped over it.
    """
    w_i, losses = w, []                                           # w_{t,0} ← w_t: broadcast
    for xi in batches:                                            # k = 0, …, K−1
        w_i, value = local_step(w_i, xi)                          # w_{t,k+1} ← w_{t,k} − η_c·∇f*(w_{t,k}; ξ)
        losses.append(value)
    return pytree.tree_map(torch.sub, w_i, w), torch.stack(losses, -1)


class Rates(NamedTuple):
    """How far a local step goes."""

    w: float
    """η_c."""
    log_steps: float
    """Of log Δ; also the most that a local step changes it."""
    clip: float | None = None
    """The longest gradient of the weights; none: any."""


def sgd_step(w: Trainable, given: Given, width: Tensor, xi: Batch, loss: Loss, rates: Rates) -> tuple[Trainable, Tensor]:
    """Return w − η_c·∇f*(w; ξ), and f(w; ξ). A padded batch has ξ.real = 0 and changes nothing."""
    gradient, value = torch.func.grad(loss, has_aux=True)(w, given, width, xi)
    return descended(w, clipped(gradient, rates.clip), rates, lambda p, rate, slope: p - rate * xi.real * slope), value


def sgd_step_alone(w: Trainable, xi: Batch, loss: BoundLoss, rates: Rates,
                   lay: Callable[[Tensor], Tensor]) -> tuple[Trainable, Tensor]:
    """Take `sgd_step` of one client outside vmap, on an unpadded batch, with parameters laid out in memory by `lay`.

    torch.func.grad always prepares for second derivatives, which forbids the fused backward of e.g. GroupNorm.
    """
    with torch.enable_grad():
        log_steps = LogSteps(*({n: p.detach().requires_grad_() for n, p in kind.items()} for kind in w.log_steps))
        leaves = Trainable({n: lay(p).detach().requires_grad_() for n, p in w.w.items()}, log_steps)
        objective, value = loss(leaves, xi)
        slots = (leaves.w, *leaves.log_steps)
        slopes = iter(torch.autograd.grad(objective, [p for slot in slots for p in slot.values()], materialize_grads=True))
    g, *of_steps = ({n: next(slopes) for n in slot} for slot in slots)
    gradient = clipped(Trainable(g, LogSteps(*of_steps)), rates.clip)
    return descended(leaves, gradient, rates, lambda p, rate, slope: torch.add(p.detach(), slope, alpha=-rate)), value


def descended(w: Trainable, g: Trainable, rates: Rates, step: Callable[[Tensor, float, Tensor], Tensor]) -> Trainable:
    """Return step(p, η, ∂/∂p) of every tensor, weights and log step sizes each at their rate."""
    return Trainable({n: step(p, rates.w, g.w[n]) for n, p in w.w.items()},
                     LogSteps(*({n: step(p, rates.log_steps, slopes[n]) for n, p in kind.items()}
                                for kind, slopes in zip(w.log_steps, g.log_steps, strict=True))))


def clipped(g: Trainable, most: float | None) -> Trainable:
    """Return g·min(1, most/‖g‖), ‖g‖ over all weights together; nothing where ‖g‖ is not finite. None: g as it is.

    The gradient of a learned step size lies within ±1 in any case: a local step changes it by its rate at most.
    """
    log_steps = LogSteps(*({n: slope.clamp(-1, 1) for n, slope in kind.items()} for kind in g.log_steps))
    if most is None:
        return Trainable(g.w, log_steps)
    norm = torch.stack([part.square().sum() for part in g.w.values()]).sum().sqrt()
    factor, finite = most / norm.clamp_min(most), torch.isfinite(norm)
    return Trainable({n: torch.where(finite, part * factor, 0.0) for n, part in g.w.items()},
                     pytree.tree_map(lambda slope: torch.where(finite, slope, 0.0), log_steps))


@dataclass(frozen=True)
class ClientStep:
    """A local step in two forms that compute the same."""

    mapped: Callable[[Trainable, Given, Tensor, Batch], tuple[Trainable, Tensor]]
    """For vmap, compile and capture: (w, given, width, ξ), all of them tensors."""
    alone: Callable[[Given, Tensor], LocalStep[Trainable]]
    """For one client, whose width the host knows: its local step, laid out once for all its batches."""


def federated_round(state: State, given: Given, cohort: Cohort, client_step: ClientStep, server: Server,
                    map_clients: MapClients, weighting: Tensor, combine: Combine | None = None) -> tuple[State, Tensor]:
    """Run one round: every client of the cohort in parallel, the mean of the deltas, the server's step."""
    parts = map_clients(client_update, client_step, state.trainable, given, cohort)
    delta, losses = (combine or mean_delta)(parts, cohort.width_bits, weighting)  # Δ_t = 1/|S| Σ (w_{t,K} − w_{t,0})
    return server_update(state, delta, server), losses            # w_{t+1} ← w_t + η_s·Δ_t


def server_update(state: State, delta: Trainable, server: Server) -> State:
    """Take the server optimizer's step on the weights; learned step sizes move by their mean delta."""
    optimizer, w = server.step(state.optimizer, state.w, delta.w)
    return state._replace(w=w, optimizer=optimizer,
                          log_steps=pytree.tree_map(torch.add, state.log_steps, delta.log_steps))


def _whole(total: Trainable, losses: Sequence[Tensor]) -> tuple[Trainable, Tensor]:
    """Take the parts as the whole cohort."""
    return total, torch.cat(list(losses))


def mean_delta(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor,
               together: Callable[..., tuple[Trainable, Tensor]] = _whole) -> tuple[Trainable, Tensor]:
    """Return (the weighted mean over clients, the losses), summed so that no more than one part is in memory.

    A learned Δ_b averages over the clients that trained at b, and rests without any.
    """
    total: Trainable | None = None
    losses = []
    for clients, deltas, value in parts:
        share = weighting[clients]
        here = Trainable(summed(deltas.w, share), LogSteps(*(summed(d, torch.ones_like(share)) for d in deltas.log_steps)))
        total = here if total is None else pytree.tree_map(torch.add, total, here)
        losses.append(value)
    sums, every = together(total, losses)
    return sums._replace(log_steps=mean_where_trained(sums.log_steps, width_bits)), every


def summed(deltas: Tensors, share: Tensor) -> dict[str, Tensor]:
    """Return Σ_i share_i·delta_i of every tensor."""
    return {name: torch.tensordot(share.to(delta.dtype), delta, dims=1) for name, delta in deltas.items()}


def mean_where_trained(sums: LogSteps, width_bits: Tensor) -> LogSteps:
    """Divide every summed Δ_b by the number of clients that trained at b (at least 1)."""
    def mean(steps: Tensors, bits: Tensor) -> dict[str, Tensor]:
        trained = (bits[:, None] == torch.arange(BITS[0], BITS[-1] + 1, device=bits.device))
        return {site: value / trained.to(value.dtype).sum(0).clamp_min(1).reshape(-1, *[1] * (value.dim() - 1))
                for site, value in steps.items()}
    return LogSteps(*(mean(steps, bits) for steps, bits in zip(sums, width_bits.unbind(1), strict=True)))


def client_weighting(cohort: Cohort, by_examples: bool = False) -> Tensor:
    """Return 1/|S| for every client (the paper's), or shares in proportion to its examples."""
    share = torch.tensor(cohort.examples if by_examples else [1.0] * len(cohort.clients), dtype=torch.float32)
    return (share / share.sum()).to(cohort.index.device)
