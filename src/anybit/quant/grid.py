"""Numbers on a grid: the quantizer Q, its pseudo-noise twin, and step sizes of one range at several bit-widths.

Every function works on tensors of bit-widths, so that clients with different widths share one computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from anybit.errors import ConfigError

BITS = (2, 3, 4, 5, 6, 7, 8)
"""The bit-widths a tensor can be quantized to."""

FLOAT = 32
"""The bit-width that means: not quantized."""

GridName = Literal["full", "narrow", "unsigned"]
SiteKinds = Literal["W", "A", "WA"]


class Width(NamedTuple):
    """The bit-widths of weights and activations. Written W4 (weights only), A4, WA4 (both), W4A8, or FP32."""

    weights: int
    activations: int

    def __str__(self) -> str:
        if self.weights == self.activations == FLOAT:
            return "FP32"
        if self.weights == self.activations:
            return f"WA{self.weights}"
        if self.activations == FLOAT:
            return f"W{self.weights}"
        if self.weights == FLOAT:
            return f"A{self.activations}"
        return f"W{self.weights}A{self.activations}"

    @staticmethod
    def of(sites: SiteKinds, bits: int) -> Width:
        """The width at which the given sites have `bits` and the others are not quantized."""
        return Width(check_bits(bits) if "W" in sites else FLOAT, check_bits(bits) if "A" in sites else FLOAT)

    @staticmethod
    def parse(text: str) -> Width:
        """Read W4, A4, WA4, W4A8 or FP32."""
        text = {"FP32": "WA32"}.get(text.upper(), text.upper())
        match = re.fullmatch(r"(?:WA(\d+))|(?:W(\d+))?(?:A(\d+))?", text)
        if not match or not text:
            raise ConfigError(f"width '{text}': write W4 (weights), A4 (activations), WA4 (both), W4A8 or FP32")
        both, weights, activations = (check_bits(int(g)) if g else None for g in match.groups())
        return Width(both or weights or FLOAT, both or activations or FLOAT)


def check_bits(bits: int) -> int:
    """Return `bits` if a tensor can have it, else raise."""
    if bits not in BITS and bits != FLOAT:
        raise ConfigError(f"bits = {bits}: a bit-width is one of 2…8, or 32 for no quantization")
    return bits


class Grid(NamedTuple):
    """The points step·low, …, step·high."""

    step: Tensor
    low: Tensor
    high: Tensor


Transform = Callable[[Tensor, Grid, Callable[[], Tensor]], Tensor]
"""What the forward pass sees of a tensor: (x, its grid, a draw from U[0, 1) in x's shape) → tensor."""


def limits(bits: Tensor, grid: GridName) -> tuple[Tensor, Tensor]:
    """The integer clip limits of each bit-width; 32 gets those of 8, where nothing is clipped anyway.

    full: −2^(b−1) … 2^(b−1)−1 (the paper's) · narrow: symmetric, one level less · unsigned: 0 … 2^b−1.
    """
    half = torch.exp2(bits.clamp(max=BITS[-1]).to(torch.float32) - 1)
    if grid == "full":
        return -half, half - 1
    if grid == "narrow":
        return 1 - half, half - 1
    return torch.zeros_like(half), 2 * half - 1


_ENDS: dict[GridName, dict[int, tuple[int, int]]] = {
    grid: {bits: (int(low), int(high)) for bits in BITS for low, high in [limits(torch.tensor(bits), grid)]}
    for grid in get_args(GridName)}


def ends(bits: int, grid: GridName) -> tuple[int, int]:
    """Return the clip limits of a bit-width that the host knows, as numbers."""
    return _ENDS[grid][bits]


def levels(bits: Tensor, grid: GridName) -> Tensor:
    """How many steps the grid spans: 2^b − 1 for full and unsigned, 2^b − 2 for narrow."""
    low, high = limits(bits, grid)
    return high - low


def rescaled(step: Tensor, base: int, bits: Tensor, grid: GridName) -> Tensor:
    """Return Δ_a = (2^b − 1)/(2^a − 1) · Δ_b: the step size at `bits` = a with the range that `step` spans at `base` = b."""
    return step * levels(torch.tensor(base), grid).to(step.device) / levels(bits, grid).to(step.device)


def round_through(x: Tensor) -> Tensor:
    """⌊x⌉ forward, identity backward (straight-through)."""
    return x + (torch.round(x) - x).detach()


def quantize(x: Tensor, grid: Grid) -> Tensor:
    """Q(x) = Δ·clip(⌊x/Δ⌉, low, high). The gradient passes through the rounding; clip keeps its own (0 outside)."""
    return grid.step * torch.clamp(round_through(x / grid.step), grid.low, grid.high)


def codes(x: Tensor, grid: Grid) -> Tensor:
    """Return ⌊x/Δ⌉ − low, clipped to the grid: the number of a value's level, from 0; Q(x) = Δ·(code + low)."""
    return torch.clamp(torch.round(x / grid.step), grid.low, grid.high) - grid.low


def rounding(x: Tensor, grid: Grid, draw: Callable[[], Tensor]) -> Tensor:
    """The transform of QAT and MQAT: Q(x)."""
    return quantize(x, grid)


def pseudo_noise(x: Tensor, grid: Grid, draw: Callable[[], Tensor]) -> Tensor:
    """The transform of APQN: x + U[−Δ/2, Δ/2], fresh at every forward."""
    return x + grid.step * (draw() - 0.5)


def select(steps: Tensor, bits: Tensor) -> Tensor:
    """The row of a step table (first dimension: BITS) that belongs to `bits`; zero when bits = 32.

    A masked sum, because an index that differs per client is not possible under vmap.
    """
    hit = (torch.arange(BITS[0], BITS[-1] + 1, device=steps.device) == bits).to(steps.dtype)
    return (steps * hit.reshape(-1, *[1] * (steps.dim() - 1))).sum(0)
