"""The variants of FedAvg: transform of the forward pass, widths, penalties, grids, rules of step sizes.

The paper's, and carousel, which is our own.

A new variant is a function that returns a `Variant`; nothing has to be registered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from anybit.errors import ConfigError
from anybit.federated.cohort import StepWidths, same_width
from anybit.quant.grid import FLOAT, Grid, SiteKinds, Transform, Width, check_bits, pseudo_noise, rounding
from anybit.quant.modules import Observer
from anybit.quant.penalty import kurtosis_gap
from anybit.quant.ranges import RangeRule
from anybit.randomness import generator
from anybit.tensors import Tensors

WidthPolicy = Callable[[int, int, Sequence[int]], list[Width]]
"""(seed, round, clients) → the width of each client in that round."""

WidthsOf = Literal["steps", "clients", "cohort"]
"""Drawing from a list of bit-widths: every local step in turn, every client, or the clients of a cohort in turn."""

StepRule = Literal["mse", "minmax", "cover", "rule", "table"]
"""Step rule at evaluation: estimate from the trained model (mse, minmax, cover), rescale from the training bit-width
(rule), or take the table fixed at the start of the training (table)."""


@dataclass(frozen=True)
class Weights:
    """Arguments of a penalty: all parameters that are trained, the quantized weights among them, and the observers'
    statistics by site."""

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
    step_widths: StepWidths = same_width
    """Width of every local step of a client of some width."""
    penalties: tuple[tuple[float, Penalty], ...] = ()
    """(λ, P) of every penalty: the client's loss gets Σ λ·P."""
    observer: Observer | None = None
    """Statistic of every activation site, for the penalties."""
    dropout: float = 0.0
    """Dropout before the last layer."""
    evaluate: StepRule = "mse"
    """Step rule at evaluation, as in the paper's tables."""
    start: RangeRule = "minmax"
    """Step rule of weights at the start of the training."""
    choices: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Its choice of other settings that a config leaves open (see `config.chosen`), e.g. {"sites.weight_grid": "narrow"}."""
    endless: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The same where nobody knows when a training ends, on a fleet of devices; empty: as anywhere."""

    def __post_init__(self) -> None:
        if self.sites not in get_args(SiteKinds):
            raise ConfigError(f"sites = {self.sites!r}: use 'W' (weights), 'A' (activations) or 'WA' (both)")

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


def dealt_width(sites: SiteKinds, bits: Sequence[int]) -> WidthPolicy:
    """Deal the list of bit-widths out to the cohort, shuffled anew in every round, and again where the cohort is longer."""
    def policy(seed: int, round: int, clients: Sequence[int]) -> list[Width]:
        return [Width.of(sites, b) for b in _shuffled(bits, len(clients), generator(seed, "deal", round))]
    return policy


def cycled_widths(weights: Sequence[int], activations: Sequence[int] = (FLOAT,)) -> StepWidths:
    """Let the local steps of a client go through shuffled lists of bit-widths, of those that its own width reaches.

    A device with b-bit hardware can compute on every coarser grid. Weights and activations have lists of their own.
    """
    def policy(seed: int, round: int, client: int, width: Width, count: int) -> list[Width]:
        columns = []
        for purpose, bits, most in zip(("cycle weights", "cycle activations"), (weights, activations), width, strict=True):
            within = [b for b in bits if b <= most] or [most]
            columns.append(_shuffled(within, count, generator(seed, purpose, round, client)))
        return [Width(*pair) for pair in zip(*columns, strict=True)]
    return policy


def _shuffled(bits: Sequence[int], count: int, draw: np.random.Generator) -> list[int]:
    """Return the first `count` of fresh permutations of a list, one after another."""
    out: list[int] = []
    while len(out) < count:
        out += [bits[int(i)] for i in draw.permutation(len(bits))]
    return out[:count]


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


def carousel(bits: Sequence[int] = (2, 3, 4, 6, 8, 32), sites: SiteKinds = "W", activation_bits: Sequence[int] | None = None,
             widths: WidthsOf = "steps", cap: bool = False, start: RangeRule = "mse") -> Variant:
    """Make our own method: every local step at another width, on a grid without bias, in ranges that follow the weights.

    bits: list of which every client goes through shuffled copies; what stands in it twice is trained twice as often ·
    activation_bits: the same for activations, where `sites` has them, with step sizes that are learned; none: `bits` ·
    widths: "clients" and "cohort" are its rivals, one width per client from the same list · cap: every client keeps a
    largest width, and goes through those up to it.
    """
    weights = _quantized_bits(bits) if "W" in sites else (FLOAT,)
    activations = (FLOAT,) if "A" not in sites else _quantized_bits(
        bits if activation_bits is None else activation_bits, "bits" if activation_bits is None else "activation_bits")
    if cap and widths != "steps":
        raise ConfigError(f"variant.cap: with widths = '{widths}' a client has one width, and no use for a cap")
    listed = weights if "W" in sites else activations
    policies: dict[WidthsOf, WidthPolicy] = {
        "steps": sampled_width(sites, sorted({*listed}), keep=True) if cap else fixed_width(Width(FLOAT, FLOAT)),
        "clients": sampled_width(sites, listed), "cohort": dealt_width(sites, listed)}
    choices = {"sites.weight_grid": "centred", "ranges.project": True, "ranges.follow": True, "server.schedule": "linear",
               **({"sites.activation_grid": "auto", "sites.quantize_image": False, "ranges.learned": True}
                  if "A" in sites else {})}
    return Variant("carousel", sites, rounding, tuple(sorted({*weights, *activations})), policies[widths],
                   cycled_widths(weights, activations) if widths == "steps" else same_width, start=start,
                   evaluate="table", choices=choices,
                   endless={**choices, "server.schedule": "constant", "server.average": 0.99})


def _quantized_bits(bits: Sequence[int], setting: str = "bits") -> tuple[int, ...]:
    if isinstance(bits, str) or not isinstance(bits, Sequence):
        raise ConfigError(f"variant.{setting} = {bits!r}: give a list, as in {setting}=(2, 4, 8)")
    for b in bits:
        check_bits(b)
    if not any(b != FLOAT for b in bits):
        raise ConfigError(f"variant.{setting} = {list(bits)}: at least one bit-width from 2…8 is needed")
    return tuple(bits)
