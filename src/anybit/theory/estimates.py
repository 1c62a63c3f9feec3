"""L, σ_l, σ_g and F(w_1) − F(w*) of a real task, measured on training data in full precision.

The theorem needs them for all w; they are measured at two points, the initial and the trained weights, and on a sample
of clients. L, σ_l and σ_g are therefore estimated from below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anybit.config import Config
from anybit.errors import ConfigError
from anybit.federated.cohort import Batch, build_cohort
from anybit.federated.objective import client_loss, strengths
from anybit.federated.state import Given, Trainable
from anybit.quant.grid import FLOAT, Width
from anybit.quant.sites import prepare, quantizers
from anybit.randomness import generator
from anybit.tensors import Tensors
from anybit.training.machine import pick_device
from anybit.training.task import Task

SAMPLED_CLIENTS = 10
"""Clients whose gradients are measured."""
SMOOTHNESS_CLIENTS, SMOOTHNESS_STEPS = 3, 8
"""Clients and iterations of the power iteration for L."""
_REACH = 1e-3
"""The distance of the power iteration, relative to ‖w‖: small against the weights, large against float32's rounding."""


@dataclass(frozen=True)
class Known:
    """Constants that are known better than they can be estimated."""

    L: float | None = None
    sigma_l: float | None = None
    sigma_g: float | None = None
    gap: float | None = None
    eta_s: float | None = None


@dataclass(frozen=True)
class Estimates:
    """The constants and their sources in words."""

    L: float
    sigma_l: float
    sigma_g: float
    gap: float
    gradient: float
    """‖∇F(w)‖² at the trained weights, with ∇F as the mean over the sampled clients."""
    sources: dict[str, str]


@dataclass(frozen=True)
class ClientView:
    """The measurements of one client at one w."""

    loss: float
    gradient: Tensor
    variance: float
    """Σ ‖∇f_s(w, ξ) − ∇F_s(w)‖² / (batches − 1): the variance of independent batches of this size."""


class Probe:
    """The clients of a task in full precision: no quantization, no dropout, penalties included."""

    def __init__(self, task: Task, config: Config) -> None:
        self.task, self.config, self.device = task, config, pick_device("auto")
        prepared = prepare(task.model.to(self.device), options=config.sites).eval()
        for site in quantizers(prepared, "activations").values():
            site.observer = task.variant.observer
        self.loss = client_loss(prepared, task.variant, task.data.to(self.device), task.loss, {}, output=task.output)
        self.given = Given({}, strengths(task.variant, next(task.model.parameters()).detach()))

    def clients(self) -> list[int]:
        """Sample clients by the run's seed."""
        order = generator(self.config.seed, "bound").permutation(len(self.task.split))
        return [int(client) for client in order[:SAMPLED_CLIENTS]]

    def view(self, w: Tensors, client: int) -> ClientView:
        """Measure loss, gradient and the variance of mini-batch gradients of one client, over one epoch."""
        an_epoch = replace(self.config.client, epochs=1, local_steps=None)
        batches = build_cohort(self.config.seed, 0, [client], [Width(FLOAT, FLOAT)], self.task.split,
                               an_epoch).to(self.device).batches(0)
        share = torch.tensor([float(xi.rows.sum()) for xi in batches])
        share /= share.sum()
        values, gradients = zip(*(self._gradient(w, xi) for xi in batches), strict=True)
        mean = torch.tensordot(share.to(self.device), torch.stack(gradients), dims=1)
        spread = sum(float((g - mean).double().square().sum()) for g in gradients)
        return ClientView(float((share * torch.stack(values)).sum()), mean, spread / max(len(batches) - 1, 1))

    def _gradient(self, w: Tensors, xi: Batch) -> tuple[Tensor, Tensor]:
        loss = torch.func.grad_and_value(lambda p: self.loss(Trainable(p), self.given, xi)[0])
        gradient, value = loss(dict(w))
        return value.detach().cpu(), flat(gradient)


def estimate(probe: Probe, first: Tensors, last: Tensors, given: Known) -> Estimates:
    """Estimate the constants at w_1 = `first` and at the trained weights `last`, unless they are given."""
    clients, population = probe.clients(), len(probe.task.split)
    before, after = ([probe.view(w, client) for client in clients] for w in (first, last))
    smoothness = given.L if given.L is not None else _smoothness(probe, clients, before, after, first, last)
    local = max(view.variance for view in before + after) ** 0.5
    between = max(_between(views, population) for views in (before, after)) ** 0.5
    gap = sum(view.loss for view in before) / len(before) if given.gap is None else given.gap
    if gap < 0:
        raise ConfigError(f"F(w_1) = {gap:.4g} is below 0, so that F(w*) ≥ 0 does not hold: give --gap F(w_1) − F(w*)")
    return Estimates(smoothness, local if given.sigma_l is None else given.sigma_l,
                     between if given.sigma_g is None else given.sigma_g, gap,
                     float(_mean_gradient(after).double().square().sum()), _sources(given, len(clients), population))


def _sources(given: Known, clients: int, population: int) -> dict[str, str]:
    where = f"{clients} of {population} clients, at the initial and the trained weights"
    text = {"L": "estimated from below: the largest ‖∇F_s(x) − ∇F_s(y)‖/‖x − y‖ seen, between initial and trained "
                 f"weights ({clients} clients) and by power iteration around the trained ones "
                 f"({min(SMOOTHNESS_CLIENTS, clients)} clients)",
            "sigma_l": f"estimated: root of the largest variance of a client's mini-batch gradients, {where}",
            "sigma_g": f"estimated: root of the mean ‖∇F_s − ∇F‖², {where}",
            "gap": f"F(w_1) over {clients} clients, with F(w*) ≥ 0"}
    return {name: "given" if getattr(given, name) is not None else source for name, source in text.items()}


def _mean_gradient(views: Sequence[ClientView]) -> Tensor:
    return torch.stack([view.gradient for view in views]).mean(0)


def _between(views: Sequence[ClientView], clients: int) -> float:
    """Return 1/S Σ_s ‖∇F_s − ∇F‖²; from a sample, divided by its size minus one, so that it is not too small."""
    mean, count = _mean_gradient(views), len(views)
    spread = sum(float((view.gradient - mean).double().square().sum()) for view in views)
    return spread / (count if count == clients else max(count - 1, 1))


def _smoothness(probe: Probe, clients: Sequence[int], before: Sequence[ClientView], after: Sequence[ClientView],
                first: Tensors, last: Tensors) -> float:
    """Return the largest computed quotient ‖∇F_s(x) − ∇F_s(y)‖/‖x − y‖, which is at most L."""
    chord = float((flat(last) - flat(first)).norm())
    pairs = zip(before, after, strict=True)
    quotients = [float((b.gradient - a.gradient).norm()) / chord for a, b in pairs if chord > 0]
    for client, view in list(zip(clients, after, strict=True))[:SMOOTHNESS_CLIENTS]:
        distance, direction = _REACH * float(flat(last).norm().clamp_min(1)), view.gradient
        for _ in range(SMOOTHNESS_STEPS):
            if not float(direction.norm()) > 0:
                break
            away = distance * direction / direction.norm()
            direction = probe.view(_moved(last, away), client).gradient - view.gradient
            quotients.append(float(direction.norm()) / float(away.norm()))
    largest = max(quotients, default=0.0)
    if not largest > 0:
        raise ConfigError("L cannot be estimated, because the gradient is the same everywhere: give it with --L")
    return largest


def flat(tensors: Tensors) -> Tensor:
    """Return all parameters as one vector, in the order of their names."""
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def _moved(w: Tensors, away: Tensor) -> dict[str, Tensor]:
    parts = torch.split(away, [w[name].numel() for name in sorted(w)])
    return {name: w[name] + part.reshape(w[name].shape) for name, part in zip(sorted(w), parts, strict=True)}
