"""Settings of local training, and the optimizers of a client beyond plain SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from anybit.errors import ConfigError, at_least, positive
from anybit.federated.server import Schedule
from anybit.federated.state import LogSteps, Trainable
from anybit.schema import check_types


@dataclass(frozen=True)
class ClientOptions:
    """Local training. The state of the optimizer is reset in every round."""

    lr: float = 0.05
    """Learning rate η_c; for AdamW about 1e-3."""
    batch_size: int = 64
    """Examples per local step, at most."""
    batches: Literal["even", "full"] | None = None
    """Batches of examples that are no multiple of `batch_size`: even (as many batches, whose sizes differ by one at most) or
    full (a last batch of what is left over, as data loaders do: two examples then move the weights as far as 64); none:
    even."""
    epochs: int = 1
    """Passes through a client's examples in a round."""
    local_steps: int | None = None
    """Local steps of every client in a round, over as many epochs as that takes; none: as `epochs` says."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """Optimizer of the weights."""
    momentum: float = 0.0
    """Momentum μ of SGD: m ← μ·m + g, w ← w − η_c·m."""
    nesterov: bool = False
    """Step along g + μ·m instead of m."""
    weight_decay: float = 0.0
    """λ, as in torch: SGD adds λ·w to the gradient (L2), AdamW takes w ← (1 − η_c·λ)·w first (decoupled)."""
    beta1: float = 0.9
    """β₁ of AdamW's mean of gradients."""
    beta2: float = 0.999
    """β₂ of AdamW's mean of squares."""
    eps: float = 1e-8
    """ε of AdamW: w ← w − η_c·m̂/(√v̂ + ε)."""
    prox: float = 0.0
    """μ of FedProx: the objective gets μ/2·‖w − w_t‖², the distance from the weights at the start of the round."""
    schedule: Schedule = "constant"
    """Schedule of the learning rates over the rounds: constant, linear (down to 0 over the last rounds) or cosine."""
    decay: float = 0.3
    """Share of the rounds, at the end, in which the linear schedule falls."""
    step_lr: float = 0.01
    """Learning rate of learned step sizes (plain SGD), and the most that one local step can change log Δ."""
    clip: float | None = None
    """Largest norm of a local step's gradient, without learned step sizes and weight decay: larger ones are clipped,
    non-finite ones count as 0."""

    def __post_init__(self) -> None:
        check_types(self)
        at_least(1, batch_size=self.batch_size, epochs=self.epochs, local_steps=self.local_steps)
        at_least(0, weight_decay=self.weight_decay, prox=self.prox)
        positive(lr=self.lr, step_lr=self.step_lr, eps=self.eps, clip=self.clip)
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: must be at least 0 and below 1")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay = {self.decay}: must be above 0 and at most 1")
        if self.local_steps is not None and self.epochs != ClientOptions.epochs:
            raise ConfigError(f"local_steps = {self.local_steps}, epochs = {self.epochs}: set one of the two")
        if self.optimizer == "adamw" and self.momentum:
            raise ConfigError(f"momentum = {self.momentum}: is SGD's; AdamW has beta1")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov: needs momentum, e.g. 0.9")

    @property
    def even(self) -> bool:
        """True if the batches of an epoch have one size."""
        return self.batches != "full"

    @property
    def plain(self) -> bool:
        """Plain SGD at a constant rate, whose step needs no state."""
        return (self.optimizer == "sgd" and self.schedule == "constant"
                and not (self.momentum or self.weight_decay or self.prox))

    def steps_of(self, examples: int) -> int:
        """Return K, the local steps of a client with so many examples."""
        return self.local_steps or self.epochs * -(-examples // self.batch_size)

    def passes(self, examples: float) -> float:
        """Return how often a client with so many examples goes through them in a round."""
        return self.epochs if self.local_steps is None else self.local_steps / -(-examples // self.batch_size)


class Local(NamedTuple):
    """A client within a round: what it trains, and what its optimizer keeps. Its change over a round has the same form."""

    trained: Trainable
    slots: tuple[dict[str, Tensor], ...] = ()
    """m of SGD with momentum; m and v of AdamW. All 0 at the start of a round, so that their change is they themselves."""
    start: dict[str, Tensor] = {}  # noqa: RUF012 (never changed)
    """w_t, where the objective looks at it."""


def begun(w: Trainable, options: ClientOptions) -> Local:
    """Return a client at the start of a round; the client may be the first dimension of all tensors."""
    kept = 2 if options.optimizer == "adamw" else 1 if options.momentum else 0
    slots = tuple({n: torch.zeros_like(p) for n, p in w.w.items()} for _ in range(kept))
    return Local(w, slots, dict(w.w) if options.prox else {})


def near_start(g: Trainable, state: Local, prox: float) -> Trainable:
    """Return the gradient with that of μ/2·‖w − w_t‖² in it: g + μ·(w − w_t)."""
    return g._replace(w={n: slope + prox * (state.trained.w[n] - state.start[n]) if prox else slope
                         for n, slope in g.w.items()})


def optimized(state: Local, g: Trainable, t: Tensor, options: ClientOptions, pace: Any) -> Local:
    """Return the client after local step t = 1, 2, … along the gradient g, at `pace` times its learning rates."""
    w, slots = {}, tuple(dict[str, Tensor]() for _ in state.slots)
    rule = _adamw if options.optimizer == "adamw" else _sgd
    for n, p in state.trained.w.items():
        rate = _at(options.lr * pace, p)
        w[n], *kept = rule(p, g.w[n], [slot[n] for slot in state.slots], rate, t, options)
        for slot, value in zip(slots, kept, strict=True):
            slot[n] = value
    log_steps = LogSteps(*({n: p - _at(options.step_lr * pace, p) * slopes[n] for n, p in kind.items()}
                           for kind, slopes in zip(state.trained.log_steps, g.log_steps, strict=True)))
    return Local(Trainable(w, log_steps), slots, state.start)


def _at(number: Any, like: Tensor) -> Any:
    return number.to(like.dtype) if isinstance(number, Tensor) else number


def _sgd(p: Tensor, g: Tensor, slots: list[Tensor], rate: Any, t: Tensor, o: ClientOptions) -> list[Tensor]:
    """Return (w − η·m, m) with m ← μ·m + g + λ·w; without momentum (w − η·(g + λ·w),)."""
    g = g + o.weight_decay * p if o.weight_decay else g
    if not slots:
        return [p - rate * g]
    m = o.momentum * slots[0] + g
    return [p - rate * (g + o.momentum * m if o.nesterov else m), m]


def _adamw(p: Tensor, g: Tensor, slots: list[Tensor], rate: Any, t: Tensor, o: ClientOptions) -> list[Tensor]:
    """Return ((1 − ηλ)·w − η·m̂/(√v̂ + ε), m, v)."""
    m, v = o.beta1 * slots[0] + (1 - o.beta1) * g, o.beta2 * slots[1] + (1 - o.beta2) * g**2
    # In float64, as on the server: 1 − βᵗ is small at first.
    m_hat, v_hat = (x / (1 - beta ** t.double()).to(x.dtype) for x, beta in ((m, o.beta1), (v, o.beta2)))
    return [p - rate * o.weight_decay * p - rate * m_hat / (v_hat.sqrt() + o.eps), m, v]
