"""Numbers on a grid: the quantizer Q, pseudo-quantization noise, and step sizes of one range at several bit-widths.

Bit-widths are tensors, so that clients with different widths share one computation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anybit.errors import ConfigError

BITS = (2, 3, 4, 5, 6, 7, 8)
"""Bit-widths to which a tensor can be quantized."""

FLOAT = 32
"""Bit-width of a tensor that is not quantized."""

GridName = Literal["full", "narrow", "centred", "unsigned"]

CENTRED = 4
"""Most bits at which the centred grid has half-integer levels; with more it is the narrow one, where a zero costs little."""

SiteKinds = Literal["W", "A", "WA"]


class Width(NamedTuple):
    """Bit-widths of weights and activations, written W4 (weights only), A4, WA4 (both), W4A8, or FP32."""

    weights: int
    activations: int

    def __str__(self) -> str:
        if self.weights == self.activations:
            return "FP32" if self.weights == FLOAT else f"WA{self.weights}"
        return "".join(f"{kind}{bits}" for kind, bits in zip("WA", self, strict=True) if bits != FLOAT)

    @staticmethod
    def of(sites: SiteKinds, bits: int) -> Width:
        """Return the width at which the given sites have `bits` and the others are not quantized."""
        return Width(check_bits(bits) if "W" in sites else FLOAT, check_bits(bits) if "A" in sites else FLOAT)

    @staticmethod
    def parse(text: str) -> Width:
        """Read W4, A4, WA4, W4A8 or FP32."""
        if not isinstance(text, str):
            bits = text if type(text) is int else 4
            raise ConfigError(f"width {text!r} is not text: write 'W{bits}' (weights), 'A{bits}' (activations) or "
                              f"'WA{bits}' (both)")
        text = {"FP32": "WA32"}.get(text.upper(), text.upper())
        match = re.fullmatch(r"(?:WA([0-9]{1,2}))|(?:W([0-9]{1,2}))?(?:A([0-9]{1,2}))?", text)
        if not match or not text:
            raise ConfigError(f"width '{text[:20]}': write W4 (weights), A4 (activations), WA4 (both), W4A8 or FP32")
        both, weights, activations = (check_bits(int(g)) if g else None for g in match.groups())
        return Width(both or weights or FLOAT, both or activations or FLOAT)

    @staticmethod
    def parse_all(texts: Sequence[str]) -> list[Width]:
        """Read a list of widths."""
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise ConfigError(f"widths is {texts!r}: give a list, as in widths=['W4'], even of one")
        return [Width.parse(text) for text in texts]


def check_bits(bits: int) -> int:
    """Return `bits` if a tensor can have it, else raise."""
    if bits not in BITS and bits != FLOAT:
        raise ConfigError(f"bits = {bits}: a bit-width is one of 2…8, or 32 for no quantization")
    return bits


class Grid(NamedTuple):
    """The points step·low, step·(low + 1), …, step·high; low is an integer, or lies halfway between two."""

    step: Tensor
    low: Tensor
    high: Tensor

    @property
    def offset(self) -> Tensor:
        """0 where the levels are integers, ½ where they lie halfway between them."""
        return self.low - self.low.floor()


Transform = Callable[[Tensor, Grid, Callable[[], Tensor]], Tensor]
"""Transform of a tensor in the forward pass: (x, its grid, a draw from U[0, 1) in x's shape) → tensor."""


def limits(bits: Tensor, grid: GridName) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest level of each bit-width; 32 gets those of 8, as nothing is clipped there.

    full: −2^(b−1) … 2^(b−1)−1 (the paper's) · narrow: symmetric, one level less · unsigned: 0 … 2^b−1 ·
    centred: ±½, ±1½, … ±(2^(b−1)−½), symmetric with all levels and no zero, up to 4 bits, narrow above.
    """
    half = torch.exp2(bits.clamp(max=BITS[-1]).to(torch.float32) - 1)
    if grid == "full":
        return -half, half - 1
    if grid == "unsigned":
        return torch.zeros_like(half), 2 * half - 1
    top = half - 1 if grid == "narrow" else torch.where(bits <= CENTRED, half - 0.5, half - 1)
    return -top, top


@functools.cache
def ends(bits: int, grid: GridName) -> tuple[float, float]:
    """Return the limits of one bit-width as numbers."""
    low, high = limits(torch.tensor(bits), grid)
    return float(low), float(high)


def bounds(bits: Tensor, grid: GridName) -> tuple[Tensor, Tensor]:
    """Return the ends of a grid's range, in steps: its limits; of half-integer levels, half a step further out."""
    low, high = limits(bits, grid)
    return low.floor(), high.ceil()


def levels(bits: Tensor, grid: GridName) -> Tensor:
    """Return the steps in a range: 2^b − 1 for full and unsigned, 2^b − 2 for narrow, 2^b for half-integer levels."""
    low, high = bounds(bits, grid)
    return high - low


def rescaled(step: Tensor, base: int, bits: Tensor, grid: GridName) -> Tensor:
    """Return Δ_a = (2^b − 1)/(2^a − 1) · Δ_b: the step size at `bits` = a with the range that `step` spans at `base` = b."""
    return step * levels(torch.tensor(base), grid).to(step.device) / levels(bits, grid).to(step.device)


def round_through(x: Tensor) -> Tensor:
    """Return ⌊x⌉, with the identity as gradient (straight-through)."""
    return x + (torch.round(x) - x).detach()


def quantize(x: Tensor, grid: Grid) -> Tensor:
    """Return Q(x) = Δ·clip(⌊x/Δ − o⌉ + o, low, high), o = 0 or ½ (see `Grid.offset`).

    The gradient passes through the rounding and is 0 where x is clipped.
    """
    offset = grid.offset
    return grid.step * torch.clamp(round_through(x / grid.step - offset) + offset, grid.low, grid.high)


def nearest(x: Tensor, grid: Grid) -> Tensor:
    """Return ⌊x/Δ − o⌉ + o: the level next to x, also beyond the grid's ends."""
    return torch.round(x / grid.step - grid.offset) + grid.offset


def codes(x: Tensor, grid: Grid) -> Tensor:
    """Return the number of x's level, from 0; Q(x) = Δ·(code + low)."""
    return torch.clamp(nearest(x, grid), grid.low, grid.high) - grid.low


def rounding(x: Tensor, grid: Grid, draw: Callable[[], Tensor]) -> Tensor:
    """Return Q(x): the transform of QAT and MQAT."""
    return quantize(x, grid)


def pseudo_noise(x: Tensor, grid: Grid, draw: Callable[[], Tensor]) -> Tensor:
    """Return x + U[−Δ/2, Δ/2], drawn anew at every forward pass: the transform of APQN."""
    return x + grid.step * (draw() - 0.5)


def select(steps: Tensor, bits: Tensor) -> Tensor:
    """Return the row of `steps` for `bits`, 0 for 32 bits: a masked sum, as vmap allows no index that differs per client."""
    hit = (torch.arange(BITS[0], BITS[-1] + 1, device=steps.device) == bits).to(steps.dtype)
    return (steps * hit.reshape(-1, *[1] * (steps.dim() - 1))).sum(0)
