"""Server optimizers (Reddi et al., Adaptive Federated Optimization), which treat −Δ_t as the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from anybit.errors import ConfigError
from anybit.tensors import Tensors

Schedule = Literal["constant", "linear", "cosine"]
Delivered = Literal["last", "average"]


@dataclass(frozen=True)
class ServerOptions:
    """The server's optimizer. All of the paper's experiments use Adam with bias correction."""

    optimizer: Literal["sgd", "adam", "adagrad", "yogi"] = "adam"
    lr: float = 1e-3
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    mean: Literal["mean", "median", "trimmed"] = "mean"
    """Combination of the deltas: their mean (the paper's), or robustly the median or trimmed mean per coordinate."""
    trim: float = 0.2
    """Share of clients that the trimmed mean leaves out at either end."""
    schedule: Schedule | None = None
    """Course of the learning rate: constant, linear (down to 0 over the last rounds) or cosine (over all of them); none:
    the variant's choice, constant but for carousel."""
    decay: float = 0.3
    """Share of the rounds in which the linear schedule goes down."""
    average: float | None = None
    """β of an exponential average of the weights over the rounds, e.g. 0.998; 0: no average; none: the variant's choice."""
    deliver: Delivered | None = None
    """Weights that are evaluated and shipped: the last ones, or their average; none: the average where the learning rate
    does not go down and there is one."""

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ConfigError(f"trim = {self.trim}: must be at least 0 and below 0.5")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay = {self.decay}: must be above 0 and at most 1")
        if not 0 <= (self.average or 0) < 1:
            raise ConfigError(f"average = {self.average}: must be at least 0 and below 1")
        if self.deliver == "average" and self.average == 0:
            raise ConfigError("deliver = average: no average is kept; set average, e.g. to 0.99")


class Pace(NamedTuple):
    """Numbers of a round that change over the rounds; tensors, because a recorded round takes no others."""

    rate: Tensor
    """η_s."""
    keep: Tensor
    """β_t: weight of the old average in the new one."""


def pace(options: ServerOptions, round: int, rounds: int) -> Pace:
    """Return the numbers of the round that follows `round` earlier ones, t = round + 1 of R.

    β_t = min(β, (1 + t)/(10 + t)), as the first weights are worth little.
    """
    t, factor = round + 1, course(options.schedule or "constant", options.decay, round, rounds)
    keep = min(options.average or 0.0, (1 + t) / (10 + t))
    return Pace(*(torch.tensor(number, dtype=torch.float64) for number in (options.lr * factor, keep)))


def course(schedule: Schedule, decay: float, round: int, rounds: int) -> float:
    """Return the factor of a learning rate in the round that follows `round` earlier ones, t = round + 1 of R.

    constant: 1 · linear: min(1, (R − t + 1)/(decay·R)) · cosine: ½(1 + cos π(t − 1)/R).
    """
    if schedule == "linear":
        return max(0.0, min(1.0, (rounds - round) / (decay * rounds)))
    return (1 + math.cos(math.pi * round / rounds)) / 2 if schedule == "cosine" else 1.0


class Moments(NamedTuple):
    """State of the adaptive optimizers."""

    m: dict[str, Tensor]
    v: dict[str, Tensor]
    count: Tensor  # type: ignore[assignment]


@dataclass(frozen=True)
class Server:
    """An optimizer: init(w) → state; step(state, w, delta, η_s) → (state, w). The state is Moments, or () for SGD."""

    init: Callable[[Tensors], Any]
    step: Callable[[Any, Tensors, Tensors, Tensor], tuple[Any, dict[str, Tensor]]]


def server(options: ServerOptions) -> Server:
    """Make the optimizer that `options` describes."""
    if options.optimizer == "sgd":
        return Server(lambda w: (), lambda state, w, delta, rate: ((), {n: p + rate.to(p.dtype) * delta[n]
                                                                        for n, p in w.items()}))
    second = {"adam": _adam, "adagrad": _adagrad, "yogi": _yogi}[options.optimizer]

    def init(w: Tensors) -> Moments:
        m, v = ({n: torch.zeros_like(p) for n, p in w.items()} for _ in "mv")
        return Moments(m, v, torch.zeros((), dtype=torch.float64, device=next(iter(w.values())).device))

    def step(state: Moments, w: Tensors, delta: Tensors, rate: Tensor) -> tuple[Moments, dict[str, Tensor]]:
        new, out = Moments({}, {}, state.count + 1), {}
        for n in w:
            new.m[n] = options.beta1 * state.m[n] + (1 - options.beta1) * delta[n]
            new.v[n], m_hat, v_hat = second(options, new.count, new.m[n], state.v[n], delta[n])
            out[n] = w[n] + rate.to(w[n].dtype) * m_hat / (v_hat.sqrt() + options.eps)
        return new, out

    return Server(init, step)


def _adam(o: ServerOptions, count: Tensor, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (v, m̂, v̂) with v ← β₂v + (1−β₂)Δ² and both moments divided by 1 − βᵗ."""
    v = o.beta2 * v + (1 - o.beta2) * delta**2
    # In float64: βᵗ is close to 1 at first, and in float32 the difference would be off in the fourth digit.
    return v, m / (1 - o.beta1**count).to(m.dtype), v / (1 - o.beta2**count).to(v.dtype)


def _adagrad(o: ServerOptions, count: Tensor, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (v, m, v) with v ← v + Δ²."""
    v = v + delta**2
    return v, m, v


def _yogi(o: ServerOptions, count: Tensor, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (v, m, v) with v ← v − (1−β₂)Δ²·sign(v − Δ²)."""
    v = v - (1 - o.beta2) * delta**2 * torch.sign(v - delta**2)
    return v, m, v
