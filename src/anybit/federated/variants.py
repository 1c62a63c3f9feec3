"""The paper's variants of FedAvg: transform of the forward pass, widths of the clients, penalties, rules of step sizes.

A new variant is a function that returns a `Variant`; nothing has to be registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anybit.errors import ConfigError
from anybit.quant.grid import FLOAT, Grid, SiteKinds, Transform, Width, check_bits, pseudo_noise, rounding
from anybit.quant.modules import Observer
from anybit.quant.penalty import kurtosis_gap
from anybit.quant.ranges import RangeRule
from anybit.randomness import generator
from anybit.tensors import Tensors

WidthPolicy = Callable[[int, int, Sequence[int]], list[Width]]
"""(seed, round, clients) → the width of each client in that round."""

StepRule = Literal["mse", "minmax", "cover", "rule", "table"]
"""Step rule at evaluation: estimate from the trained model (mse, minmax, cover), rescale from the training bit-width
(rule), or take the table fixed at the start of the training (table)."""


@dataclass(frozen=True)
class Weights:
    """Arguments of a penalty: all parameters, the quantized weights among them, and the observers' statistics by site."""

    parameters: Tensors
    quantized: Tensors
    observed: Tensors


Penalty = Callable[[Weights], Tensor]


@dataclass(frozen=True)
class Variant:
    """One way for clients to train."""

    name: str
    sites: SiteKinds = "W"
    transform: Transform | None = None
    bits: tuple[int, ...] = (FLOAT,)
    """Bit-widths at which it trains."""
    widths: WidthPolicy | None = None
    """Width of each client; none: full precision."""
    penalties: tuple[tuple[float, Penalty], ...] = ()
    """(λ, P) of every penalty: the client's loss gets Σ λ·P."""
    observer: Observer | None = None
    """Statistic of every activation site, for the penalties."""
    start: RangeRule = "minmax"
    """Step rule at the start of the training."""
    evaluate: StepRule = "mse"
    """Step rule at evaluation, as in the paper's tables."""
    dropout: float = 0.0
    """Dropout before the last layer."""

    def widths_of(self, seed: int, round: int, clients: Sequence[int]) -> list[Width]:
        """Return the width of each client of a cohort."""
        return self.widths(seed, round, clients) if self.widths else [Width(FLOAT, FLOAT)] * len(clients)


def fixed_width(width: Width) -> WidthPolicy:
    """Let all clients train at the same width."""
    return lambda seed, round, clients: [width] * len(clients)


def sampled_width(sites: SiteKinds, bits: Sequence[int], keep: bool = False) -> WidthPolicy:
    """Draw b' ~ U[B] for every client, anew in every round; keep: once for the whole training."""
    def policy(seed: int, round: int, clients: Sequence[int]) -> list[Width]:
        draws = (generator(seed, "width", 0 if keep else round, client).integers(len(bits)) for client in clients)
        return [Width.of(sites, bits[int(i)]) for i in draws]
    return policy


def weight_decay_penalty(w: Weights) -> Tensor:
    """Return ½·‖w‖² over all parameters: its gradient is w."""
    return 0.5 * torch.stack([(p**2).sum() for p in w.parameters.values()]).sum()


def _fold_kurtosis_gap(seen: Tensor, x: Tensor, rows: Tensor, grid: Grid) -> Tensor:
    return seen + torch.stack([kurtosis_gap(x, rows), torch.ones((), device=x.device)])


def kure_penalty(sites: SiteKinds) -> Penalty:
    """Make L_KURE: the mean of |K − 1.8|² over the quantized tensors."""
    def penalty(w: Weights) -> Tensor:
        gaps = [kurtosis_gap(p) for p in w.quantized.values()] if "W" in sites else []
        gaps += [seen[0] / seen[1].clamp_min(1) for seen in w.observed.values()] if "A" in sites else []
        return torch.stack(gaps).mean()
    return penalty


def baseline(dropout: float = 0.0, weight_decay: float = 0.0) -> Variant:
    """Make FedAvg; step sizes for its quantized evaluation are found after the training."""
    if not 0 <= dropout < 1:
        raise ConfigError(f"variant.dropout = {dropout}: must be at least 0 and below 1")
    decay = ((weight_decay, weight_decay_penalty),) if weight_decay else ()
    return Variant("baseline", dropout=dropout, penalties=decay)


def kure(sites: SiteKinds = "W", scale: float = 0.1) -> Variant:
    """Make FedAvg with λ·L_KURE in the client's loss."""
    observer = Observer(torch.zeros(2), _fold_kurtosis_gap) if "A" in sites else None
    return Variant("kure", sites, penalties=((scale, kure_penalty(sites)),), observer=observer)


def apqn(bits: int = 4, sites: SiteKinds = "W") -> Variant:
    """Make FedAvg with pseudo-quantization noise U[−Δ_b/2, Δ_b/2] of one bit-width in the forward pass."""
    return Variant("apqn", sites, pseudo_noise, _quantized_bits([bits]), fixed_width(Width.of(sites, bits)))


def qat(bits: int = 4, sites: SiteKinds = "W", start: RangeRule = "minmax") -> Variant:
    """Make FedAvg with Q(·, b) of one bit-width in the forward pass; step sizes of other bit-widths are rescaled from it."""
    return Variant("qat", sites, rounding, _quantized_bits([bits]), fixed_width(Width.of(sites, bits)), start=start,
                   evaluate="rule")


def mqat(bits: Sequence[int] = (2, 3, 4, 6, 8, 32), sites: SiteKinds = "W", start: RangeRule = "mse",
         fixed: bool = False) -> Variant:
    """Make FedAvg with Q(·, b'), b' ~ U[B] per client and round; fixed: once per client (the paper's MQAT*)."""
    return Variant("mqat*" if fixed else "mqat", sites, rounding, _quantized_bits(bits),
                   sampled_width(sites, bits, keep=fixed), start=start, evaluate="table")


def _quantized_bits(bits: Sequence[int]) -> tuple[int, ...]:
    for b in bits:
        check_bits(b)
    if not any(b != FLOAT for b in bits):
        raise ConfigError(f"variant.bits = {list(bits)}: at least one bit-width from 2…8 is needed")
    return tuple(bits)
