"""Algorithm 1 (FedAvg, FedAvg-KURE) and Algorithm 2 (FedAvg-APQN, -QAT, -MQAT) of the paper.

The variants differ in the loss alone: f(w), f(w) + λ·L_KURE(w), f(w + noise), f(Q(w, b)) or f(Q(w, b')).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.federated.client import ClientOptions, Local, near_start, optimized
from anybit.federated.cohort import Batch, Cohort
from anybit.federated.server import Pace, ServerOptimizer
from anybit.federated.state import Given, LogSteps, State, Trainable
from anybit.quant.ranges import all_bits
from anybit.tensors import Part, Tensors, Tree

Loss = Callable[[Trainable, Given, Batch], tuple[Tensor, Tensor]]
"""(w, given, ξ) → (the objective f*, the mean loss on ξ, which is reported)."""

BoundLoss = Callable[[Trainable, Batch], tuple[Tensor, Tensor]]
"""Loss of one client: (w, ξ) → the same."""

LocalStep = Callable[[Tree, Batch], tuple[Tree, Tensor]]
"""Local step of one client, or of many side by side: (w, ξ) → (w after one step of SGD, the loss before it).

w is a tree: the trained tensors alone, or beside what the client's optimizer keeps (`Local`)."""

MapClients = Callable[[Callable[..., Any], "ClientStep", Trainable, Given, Cohort], Iterable[Part]]
"""Engine: runs `client_update` with the client step for every client of the cohort, in parts, in order."""

Projection = Callable[[dict[str, Tensor], Tensors], dict[str, Tensor]]
"""(w after the server's step, the step sizes of the round) → w that is kept."""

Combine = Callable[[Iterable[Part], Tensor, Tensor], tuple[Trainable, Tensor]]
"""(parts, the bits of every client and local step, the clients' weighting) → (Δ_t, losses)."""


def unprojected(w: dict[str, Tensor], step_sizes: Tensors) -> dict[str, Tensor]:
    """Keep w as it is."""
    return w


def client_update(w: Tree, batches: Iterable[Batch], local_step: LocalStep[Tree]) -> tuple[Tree, Tensor]:
    """Train one client for K local steps from the server's w; return the delta w_K − w_0 and the loss of every step.

    Many clients can train side by side, with the client as first dimension of all tensors and a mapped `local_step`.
    """
    w_i, losses = w, []                                           # w_{t,0} ← w_t: broadcast
    for xi in batches:                                            # k = 0, …, K−1
        w_i, value = local_step(w_i, xi)                          # w_{t,k+1} ← w_{t,k} − η_c·∇f*(w_{t,k}; ξ)
        losses.append(value)
    return pytree.tree_map(torch.sub, w_i, w), torch.stack(losses, -1)


class Rates(NamedTuple):
    """Learning rates of a local step."""

    w: float
    """η_c."""
    log_steps: float
    """Rate of log Δ; also the largest change of log Δ in one local step."""
    clip: float | None = None
    """Largest norm of the weights' gradient; none: unlimited."""


def sgd_step(w: Trainable, given: Given, xi: Batch, loss: Loss, rates: Rates) -> tuple[Trainable, Tensor]:
    """Return w − η_c·∇f*(w; ξ) and f(w; ξ). A padded batch has ξ.real = 0 and changes nothing."""
    gradient, value = torch.func.grad(loss, has_aux=True)(w, given, xi)
    return descended(w, clipped(gradient, rates.clip), rates, lambda p, rate, slope: p - rate * xi.real * slope), value


def sgd_step_alone(w: Trainable, xi: Batch, loss: BoundLoss, rates: Rates,
                   lay: Callable[[Tensor], Tensor]) -> tuple[Trainable, Tensor]:
    """Return `sgd_step` of one client outside vmap, on an unpadded batch."""
    w, gradient, value = gradient_alone(w, xi, loss, lay)
    return descended(w, clipped(gradient, rates.clip), rates, lambda p, rate, g: torch.add(p, g, alpha=-rate)), value


def optimizer_step(state: Local, given: Given, xi: Batch, loss: Loss, options: ClientOptions) -> tuple[Local, Tensor]:
    """Return the client after a step of its optimizer, and f(w; ξ). A padded batch changes nothing of either."""
    gradient, value = torch.func.grad(loss, has_aux=True)(state.trained, given, xi)
    gradient = clipped(near_start(gradient, state, options.prox), options.clip)
    new = optimized(state, gradient, xi.local_step + 1, options, *given.pace or (1.0,))
    return pytree.tree_map(lambda p, new: new if new is p else torch.where(xi.real > 0, new, p), state, new), value


def optimizer_step_alone(state: Local, xi: Batch, loss: BoundLoss, options: ClientOptions, pace: tuple[Tensor, ...],
                         lay: Callable[[Tensor], Tensor]) -> tuple[Local, Tensor]:
    """Return `optimizer_step` of one client outside vmap, on an unpadded batch."""
    w, gradient, value = gradient_alone(state.trained, xi, loss, lay)
    state = state._replace(trained=w)
    gradient = clipped(near_start(gradient, state, options.prox), options.clip)
    return optimized(state, gradient, xi.local_step + 1, options, *pace or (1.0,)), value


def gradient_alone(w: Trainable, xi: Batch, loss: BoundLoss,
                   lay: Callable[[Tensor], Tensor]) -> tuple[Trainable, Trainable, Tensor]:
    """Return (w, ∇f*(w; ξ), f(w; ξ)) of one client outside vmap; `lay` puts parameters into memory order.

    Faster than torch.func.grad, which prepares for second derivatives and so forbids the fused backward of GroupNorm.
    """
    with torch.enable_grad():
        log_steps = LogSteps(*({n: p.detach().requires_grad_() for n, p in kind.items()} for kind in w.log_steps))
        leaves = Trainable({n: lay(p).detach().requires_grad_() for n, p in w.w.items()}, log_steps)
        objective, value = loss(leaves, xi)
        slots = (leaves.w, *leaves.log_steps)
        slopes = iter(torch.autograd.grad(objective, [p for slot in slots for p in slot.values()], materialize_grads=True))
    g, *g_log_steps = ({n: next(slopes) for n in slot} for slot in slots)
    return pytree.tree_map(torch.detach, leaves), Trainable(g, LogSteps(*g_log_steps)), value


def descended(w: Trainable, g: Trainable, rates: Rates, step: Callable[[Tensor, float, Tensor], Tensor]) -> Trainable:
    """Return step(p, η, ∂/∂p) of every tensor, with the rate η of weights or of log step sizes."""
    return Trainable({n: step(p, rates.w, g.w[n]) for n, p in w.w.items()},
                     LogSteps(*({n: step(p, rates.log_steps, slopes[n]) for n, p in kind.items()}
                                for kind, slopes in zip(w.log_steps, g.log_steps, strict=True))))


def clipped(g: Trainable, most: float | None) -> Trainable:
    """Return g·min(1, most/‖g‖), ‖g‖ over all weights together; 0 if ‖g‖ is not finite. most = none: g itself.

    Gradients of log step sizes are always clipped to ±1, so that a local step changes them by their rate at most.
    """
    log_steps = LogSteps(*({n: slope.clamp(-1, 1) for n, slope in kind.items()} for kind in g.log_steps))
    if most is None:
        return Trainable(g.w, log_steps)
    norm = torch.stack([slope.square().sum() for slope in g.w.values()]).sum().sqrt()
    factor, finite = most / norm.clamp_min(most), torch.isfinite(norm)
    return Trainable({n: torch.where(finite, slope * factor, 0.0) for n, slope in g.w.items()},
                     pytree.tree_map(lambda slope: torch.where(finite, slope, 0.0), log_steps))


def unchanged(tree: Any) -> Any:
    """Return the tree itself."""
    return tree


@dataclass(frozen=True)
class ClientStep:
    """A local step in two forms of the same computation."""

    mapped: Callable[[Any, Given, Batch], tuple[Any, Tensor]]
    """Form for vmap, compile and capture: (w, given, ξ), all of them tensors."""
    alone: Callable[[Given], LocalStep[Any]]
    """Form for one client: given → its local step, planned once for all its batches of a width."""
    begin: Callable[[Trainable], Any] = unchanged
    """What local steps start from: the server's w, or that and what the client's optimizer keeps."""
    end: Callable[[Any], Trainable] = unchanged
    """The part of its change over the round that is the delta."""


class RoundInputs(NamedTuple):
    """Inputs of a round beside the state, laid out on the host."""

    given: Given
    cohort: Cohort
    weighting: Tensor
    pace: Pace
    noise: Trainable = Trainable({})
    """Noise of privacy; empty without it."""


def federated_round(state: State, inputs: RoundInputs, client_step: ClientStep, server: ServerOptimizer,
                    map_clients: MapClients, combine: Combine | None = None,
                    project: Projection = unprojected) -> tuple[State, Tensor]:
    """Run one round: all clients of the cohort in parallel, the mean of their deltas, the server's step."""
    cohort, given = inputs.cohort, inputs.given.at(state.w)
    parts = map_clients(client_update, client_step, state.trainable, given, cohort)
    # Δ_t = 1/|S| Σ (w_{t,K} − w_{t,0})
    delta, losses = (combine or mean_delta)(parts, cohort.width_bits, inputs.weighting)
    return server_update(state, delta, server, inputs.pace, given, project), losses


def server_update(state: State, delta: Trainable, server: ServerOptimizer, pace: Pace, given: Given,
                  project: Projection = unprojected) -> State:
    """Return the state after the server optimizer's step on the weights; log step sizes move by their mean delta."""
    optimizer, w = server.step(state.optimizer, state.w, delta.w, pace.rate)       # w_{t+1} ← w_t + η_s·Δ_t
    w = project(w, given.step_sizes)
    average = {n: w[n] + pace.keep.to(mean.dtype) * (mean - w[n]) for n, mean in state.average.items()}
    return State(w, pytree.tree_map(torch.add, state.log_steps, delta.log_steps), optimizer, average)


def mean_delta(parts: Iterable[Part], width_bits: Tensor, weighting: Tensor,
               together: Callable[..., tuple[Trainable, Tensor]] | None = None) -> tuple[Trainable, Tensor]:
    """Return (weighted mean over clients, losses), with one part in memory at a time.

    A learned Δ_b averages over the clients that trained at b. together: (sums, losses) of `parts` → of the whole cohort.
    """
    total: Any = None
    losses = []
    for clients, deltas, value in parts:
        share = weighting[clients]
        sums = Trainable(summed(deltas.w, share), LogSteps(*(summed(d, torch.ones_like(share)) for d in deltas.log_steps)))
        total = sums if total is None else pytree.tree_map(torch.add, total, sums)
        losses.append(value)
    total, all_losses = together(total, losses) if together else (total, torch.cat(losses))
    return total._replace(log_steps=mean_where_trained(total.log_steps, width_bits)), all_losses


def summed(deltas: Tensors, share: Tensor) -> dict[str, Tensor]:
    """Return Σ_i share_i·delta_i of every tensor."""
    return {name: torch.tensordot(share.to(delta.dtype), delta, dims=1) for name, delta in deltas.items()}


def mean_where_trained(sums: LogSteps, width_bits: Tensor) -> LogSteps:
    """Divide every summed log Δ_b by the number of clients that trained at b (at least 1)."""
    def mean(steps: Tensors, bits: Tensor) -> dict[str, Tensor]:
        trained = (bits[:, :, None] == all_bits(bits.device)).any(1)
        return {site: value / trained.to(value.dtype).sum(0).clamp_min(1).reshape(-1, *[1] * (value.dim() - 1))
                for site, value in steps.items()}
    return LogSteps(*(mean(steps, bits) for steps, bits in zip(sums, width_bits.unbind(2), strict=True)))


def client_weighting(cohort: Cohort, by_examples: bool = False) -> Tensor:
    """Return 1/|S| for every client (the paper's), or shares in proportion to their examples."""
    share = torch.tensor(cohort.examples if by_examples else [1.0] * len(cohort.clients), dtype=torch.float32)
    return (share / share.sum()).to(cohort.index.device)
