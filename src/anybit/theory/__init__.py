"""Theorem 3.1 on the convergence of FedAvg-APQN, -QAT and -MQAT: pure arithmetic, with the paper's symbols.

With server SGD, all clients in every round and K local steps each, for L-smooth client losses,

    min_t ‖∇F(w_t)‖² ≤ (F(w_1) − F(w*)) / (T·η_s·η_c·A)  +  η_c/(η_s·A) · (B·σ_l² + Γ·K·σ_g² + H·L²·D·R²)

    A = K/4 − 2L·η_s·η_c·K²                       Γ = 24η_s·η_c·K²·L² + L·η_s²·K
    B = 4η_s·η_c·K²·L² + L·η_s²·(2K² + K/6)       H = 4η_s·K/(3η_c) + 6L·η_s²·K²

if η_c ≤ 1/(10LK) and η_c ≤ 1/(8LKη_s). The proof bounds the mean over t, which is at least the minimum, and in
expectation over batches, noise and widths.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from anybit.errors import ConfigError

Method = Literal["apqn", "qat", "mqat"]
"""The weights' treatment in the forward pass: noise of one step size, rounding at one bit-width, rounding at several."""


@dataclass(frozen=True)
class Setting:
    """The constants of the assumptions and of the algorithm."""

    L: float
    """Smoothness: ‖∇F_s(x) − ∇F_s(y)‖ ≤ L·‖x − y‖ for every client s."""
    K: int
    """Local steps."""
    eta_c: float
    eta_s: float
    sigma_l: float = 0.0
    """E‖∇f_s(w, ξ) − ∇F_s(w)‖² ≤ σ_l²: mini-batches within a client."""
    sigma_g: float = 0.0
    """1/S Σ_s ‖∇F_s(w) − ∇F(w)‖² ≤ σ_g²: clients among each other."""
    noise: float = 0.0
    """D·R², the bound on E‖r‖² (Lemma 3); if coordinates have different step sizes: Σ_d R_d²."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in ("L", "K", "eta_c", "eta_s") and not 0 < value < math.inf:
                raise ConfigError(f"{name} = {value}: must be above 0")
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name} = {value}: must be at least 0")


@dataclass(frozen=True)
class Coefficients:
    """A, B, Γ and H of the theorem."""

    A: float
    B: float
    Gamma: float
    H: float


@dataclass(frozen=True)
class Condition:
    """One of the theorem's two conditions on the client learning rate."""

    formula: str
    limit: float
    holds: bool


@dataclass(frozen=True)
class Bound:
    """The right-hand side of the theorem, term by term."""

    optimization: float
    """(F(w_1) − F(w*))/(T·η_s·η_c·A): the only term that rounds make smaller."""
    local_variance: float
    """η_c/(η_s·A)·B·σ_l²."""
    client_drift: float
    """η_c/(η_s·A)·Γ·K·σ_g²."""
    quantization: float
    """η_c/(η_s·A)·H·L²·D·R²: the error floor of quantization-aware training."""

    @property
    def total(self) -> float:
        return sum(self.terms().values())

    @property
    def floor(self) -> float:
        """The limit of the bound for T → ∞."""
        return self.total - self.optimization

    def terms(self) -> dict[str, float]:
        return asdict(self)


def radius(method: Method, steps: Sequence[float]) -> float:
    """Return R of Lemma 3, with E[r_d²] ≤ R²: Δ_b/√12 for APQN, Δ_b/2 for QAT, max_b Δ_b/2 for MQAT.

    >>> radius("qat", [0.5]), radius("mqat", [0.5, 0.25])
    (0.25, 0.25)
    """
    if not steps or min(steps) < 0:
        raise ConfigError(f"steps = {list(steps)}: at least one step size is needed, and none may be below 0")
    if method == "mqat":
        return max(steps) / 2
    if len(steps) != 1:
        raise ConfigError(f"{method} trains at one bit-width, but {len(steps)} step sizes were given")
    return steps[0] / math.sqrt(12) if method == "apqn" else steps[0] / 2


def noise_energy(method: Method, groups: Iterable[tuple[int, Sequence[float]]]) -> float:
    """Return Σ_d R_d² over groups (number of weights, their step sizes Δ_b); with one step size it is D·R²."""
    return sum(count * radius(method, steps) ** 2 for count, steps in groups)


def coefficients(s: Setting) -> Coefficients:
    """Return A, B, Γ and H.

    >>> round(coefficients(Setting(L=1, K=4, eta_c=0.0225, eta_s=1)).A, 12)
    0.28
    """
    return Coefficients(
        A=s.K / 4 - 2 * s.L * s.eta_s * s.eta_c * s.K**2,
        B=4 * s.eta_s * s.eta_c * s.K**2 * s.L**2 + s.L * s.eta_s**2 * (2 * s.K**2 + s.K / 6),
        Gamma=24 * s.eta_s * s.eta_c * s.K**2 * s.L**2 + s.L * s.eta_s**2 * s.K,
        H=4 * s.eta_s * s.K / (3 * s.eta_c) + 6 * s.L * s.eta_s**2 * s.K**2)


def conditions(s: Setting) -> tuple[Condition, Condition]:
    """Return η_c ≤ 1/(10LK), used by Lemma 4, and η_c < 1/(8LKη_s), which is A > 0.

    The paper writes ≤ in both. At equality of the second, A = 0 and the bound divides by it, so it is strict here.
    """
    local, server = 1 / (10 * s.L * s.K), 1 / (8 * s.L * s.K * s.eta_s)
    return (Condition("η_c ≤ 1/(10·L·K)", local, s.eta_c <= local),
            Condition("η_c < 1/(8·L·K·η_s)", server, s.eta_c < server and coefficients(s).A > 0))


def largest_eta_c(s: Setting) -> str:
    """Return the largest admissible η_c in words: a number, or the number it has to stay below."""
    local, server = conditions(s)
    return f"{local.limit:.6g}" if local.limit < server.limit else f"any below {server.limit:.6g}, where A = 0"


def violation(s: Setting) -> str | None:
    """Describe the violated conditions on the learning rates and how to fix them, or return None."""
    broken = [f"{c.formula} = {c.limit:.6g}" for c in conditions(s) if not c.holds]
    if not broken:
        return None
    return (f"eta_c = {s.eta_c:g}: Theorem 3.1 needs {' and '.join(broken)} (L = {s.L:g}, K = {s.K}, "
            f"eta_s = {s.eta_s:g}; A = {coefficients(s).A:.4g}): the largest admissible eta_c is {largest_eta_c(s)}")


def check(s: Setting) -> None:
    """Raise an error unless both conditions hold."""
    if problem := violation(s):
        raise ConfigError(problem)


def bound(s: Setting, gap: float, rounds: int) -> Bound:
    """Return the theorem's right-hand side for `rounds` = T and `gap` = F(w_1) − F(w*)."""
    check(s)
    if gap < 0 or rounds < 1:
        raise ConfigError(f"gap = {gap}, rounds = {rounds}: the gap must be at least 0, and the rounds at least 1")
    c = coefficients(s)
    share = s.eta_c / (s.eta_s * c.A)
    return Bound(optimization=gap / (rounds * s.eta_s * s.eta_c * c.A),
                 local_variance=share * c.B * s.sigma_l**2,
                 client_drift=share * c.Gamma * s.K * s.sigma_g**2,
                 quantization=share * c.H * s.L**2 * s.noise)


def irreducible(s: Setting) -> float:
    """Return 16/3·L²·D·R², the limit of the quantization term for η_c → 0 and the least of all learning rates."""
    return 16 / 3 * s.L**2 * s.noise


def drift_bound(s: Setting, gradient: float) -> float:
    """Return the bound of Lemma 4, for every k < K, with `gradient` = ‖∇F(w_t)‖²; it needs η_c ≤ 1/(10LK) alone:

        1/S Σ_s E‖w_{t,k}^s − w_t‖² ≤ 4K·η_c²·(σ_l² + 6K·σ_g²) + 32K²·η_c²·L²·D·R² + 24K²·η_c²·‖∇F(w_t)‖²
    """
    local, _ = conditions(s)
    if not local.holds:
        raise ConfigError(f"eta_c = {s.eta_c:g}: Lemma 4 needs {local.formula}; the largest admissible eta_c is "
                          f"{local.limit:.6g}")
    scale = s.K * s.eta_c**2
    return (4 * scale * (s.sigma_l**2 + 6 * s.K * s.sigma_g**2) + 32 * scale * s.K * s.L**2 * s.noise
            + 24 * scale * s.K * gradient)
