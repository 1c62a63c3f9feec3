"""Server optimizers (Reddi et al., Adaptive Federated Optimization), which treat −Δ_t as the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anybit.errors import ConfigError, at_least, positive
from anybit.federated.own import Course, check_name, factor, not_at_hand
from anybit.schema import check_types
from anybit.tensors import Tensors

Schedule = Literal["constant", "linear", "cosine"]
Delivered = Literal["last", "average"]
OPTIMIZERS = ("sgd", "adam", "adagrad", "yogi")
WARMUP = 10
"""Rounds in which a learning rate of anybit's choice rises."""


@dataclass(frozen=True)
class ServerOptions:
    """The server's optimizer. All of the paper's experiments use Adam with bias correction."""

    optimizer: str = "adam"
    """sgd (with momentum: FedAvgM), adam, adagrad, yogi, or 'module:function', a function of these options that returns a
    ServerOptimizer."""
    lr: float | None = None
    """Learning rate η_s; none: 1 for SGD and for your own optimizer; for adaptive ones 1e-2 up to 100 rounds, 1e-3 from
    2,000, and log-log interpolated in between."""
    eps: float = 1e-8
    """ε of the adaptive optimizers: w ← w + η_s·m/(√v + ε)."""
    beta1: float = 0.9
    """β₁ of the adaptive optimizers: m ← β₁·m + (1 − β₁)·Δ_t."""
    beta2: float = 0.999
    """β₂ of Adam and Yogi."""
    momentum: float = 0.0
    """β of SGD: m ← β·m + Δ_t, w ← w + η_s·m."""
    mean: Literal["mean", "median", "trimmed", "geometric", "krum"] = "mean"
    """How deltas are combined: their mean (the paper's), or a robust one: the median or trimmed mean per coordinate, the
    geometric median, or the mean of those closest to each other (Multi-Krum)."""
    trim: float = 0.2
    """Share of clients that the trimmed mean leaves out at each end, and Krum altogether."""
    schedule: str | None = None
    """Schedule of the learning rate: constant, linear (down to 0 over the last rounds), cosine (over all of them), or
    'module:function', (rounds before, rounds) → factor; none: the variant's choice, constant except for carousel."""
    decay: float = 0.3
    """Share of the rounds, at the end, in which the linear schedule falls."""
    warmup: int | None = None
    """Rounds at the start in which the learning rate rises to its height, in equal parts: the first steps of an adaptive
    optimizer move every weight by η_s, whatever its gradient; none: 10 (at most a quarter of the rounds) for adaptive ones
    whose `lr` and `schedule` are anybit's choice, else 0."""
    average: float | None = None
    """β of an exponential average of the weights over the rounds, e.g. 0.998; 0: no average; none: the variant's choice."""
    deliver: Delivered | None = None
    """Weights that are evaluated and shipped: the last ones, or their average; none: the average, if there is one and the
    learning rate does not fall."""

    def __post_init__(self) -> None:
        check_types(self)
        check_name("optimizer", self.optimizer, OPTIMIZERS)
        check_name("schedule", self.schedule, get_args(Schedule))
        positive(lr=self.lr, eps=self.eps)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum = {self.momentum}: must be at least 0 and below 1")
        if self.momentum and self.optimizer in OPTIMIZERS and self.optimizer != "sgd":
            raise ConfigError(f"momentum = {self.momentum}: is SGD's; {self.optimizer} has beta1")
        if not 0 <= self.trim < 0.5:
            raise ConfigError(f"trim = {self.trim}: must be at least 0 and below 0.5")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay = {self.decay}: must be above 0 and at most 1")
        at_least(0, warmup=self.warmup)
        if not 0 <= (self.average or 0) < 1:
            raise ConfigError(f"average = {self.average}: must be at least 0 and below 1")
        if self.deliver == "average" and self.average == 0:
            raise ConfigError("deliver = average: no average is kept; set average, e.g. to 0.99")

    @property
    def adaptive(self) -> bool:
        """True if its steps do not grow with the deltas."""
        return self.optimizer in OPTIMIZERS and self.optimizer != "sgd"

    def rise(self, rounds: int) -> int:
        """Return the rounds in which η_s rises, of so many."""
        if self.warmup is not None:
            return self.warmup
        ours = self.lr is None and self.adaptive and self.schedule in (None, *get_args(Schedule))
        return min(WARMUP, max(1, rounds // 4)) if ours else 0

    def rate(self, rounds: int) -> float:
        """Return η_s of a training of so many rounds."""
        if self.lr is not None:
            return self.lr
        if not self.adaptive:
            return 1.0
        share = math.log(rounds / 100) / math.log(2000 / 100)
        return float(f"{10 ** -(2 + min(max(share, 0.0), 1.0)):.1e}")


class Pace(NamedTuple):
    """Numbers of a round that change over the rounds; tensors, because a recorded round takes no others."""

    rate: Tensor
    """η_s."""
    keep: Tensor
    """β_t: weight of the old average in the new one."""


def pace(options: ServerOptions, round: int, rounds: int, own: Course | None = None) -> Pace:
    """Return the numbers of the round that follows `round` earlier ones, t = round + 1 of R. own: the user's schedule.

    η_t = η_s·min(1, t/warmup)·schedule. β_t = min(β, (1 + t)/(10 + t)), as the first weights are worth little.
    """
    t = round + 1
    keep = min(options.average or 0.0, (1 + t) / (10 + t))
    part = factor(own, round, rounds) if own else course(options.schedule, options.decay, round, rounds)
    part *= min(1.0, t / max(1, options.warmup or 0))
    return Pace(*(torch.tensor(number, dtype=torch.float64) for number in (options.rate(rounds) * part, keep)))


def course(schedule: str | None, decay: float, round: int, rounds: int) -> float:
    """Return the factor of a learning rate in the round that follows `round` earlier ones, t = round + 1 of R.

    constant: 1 · linear: min(1, (R − t + 1)/(decay·R)) · cosine: ½(1 + cos π(t − 1)/R).
    """
    if schedule == "linear":
        return max(0.0, min(1.0, (rounds - round) / (decay * rounds)))
    if schedule == "cosine":
        return (1 + math.cos(math.pi * round / rounds)) / 2
    if schedule not in (None, "constant"):
        raise not_at_hand("server.schedule", schedule)
    return 1.0


class Momentum(NamedTuple):
    """State of SGD with momentum."""

    m: dict[str, Tensor]


class Moments(NamedTuple):
    """State of the adaptive optimizers."""

    m: dict[str, Tensor]
    v: dict[str, Tensor]
    count: Tensor  # type: ignore[assignment]


@dataclass(frozen=True)
class ServerOptimizer:
    """An optimizer: init(w) → state; step(state, w, delta, η_s) → (state, w), in operations on tensors alone.

    The state is a tree of tensors in dicts and (named) tuples, of the same form after every step; () where there is none.
    """

    init: Callable[[Tensors], Any]
    step: Callable[[Any, Tensors, Tensors, Tensor], tuple[Any, dict[str, Tensor]]]


def server(options: ServerOptions) -> ServerOptimizer:
    """Make the optimizer that `options` describes."""
    if options.optimizer not in OPTIMIZERS:
        raise not_at_hand("server.optimizer", options.optimizer)
    if options.optimizer == "sgd":
        return _heavy_ball(options.momentum) if options.momentum else ServerOptimizer(lambda w: (), _sgd)
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

    return ServerOptimizer(init, step)


def _sgd(state: tuple[()], w: Tensors, delta: Tensors, rate: Tensor) -> tuple[tuple[()], dict[str, Tensor]]:
    return (), {n: p + rate.to(p.dtype) * delta[n] for n, p in w.items()}


def _heavy_ball(momentum: float) -> ServerOptimizer:
    def step(state: Momentum, w: Tensors, delta: Tensors, rate: Tensor) -> tuple[Momentum, dict[str, Tensor]]:
        m = {n: momentum * state.m[n] + delta[n] for n in w}
        return Momentum(m), _sgd((), w, m, rate)[1]

    return ServerOptimizer(lambda w: Momentum({n: torch.zeros_like(p) for n, p in w.items()}), step)


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
