"""Rules that find step sizes, and the table of step sizes that is saved with a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from anybit.errors import RunError
from anybit.quant.grid import BITS, GridName, bounds, ends, levels, limits, rescaled

if TYPE_CHECKING:
    from anybit.quant.sites import SiteOptions

RangeRule = Literal["minmax", "cover", "mse", "lsq", "rms"]
"""minmax: (2^b−1)·Δ_b = max − min · cover: the smallest Δ_b that clips nothing · mse: least squared error ·
lsq: Δ_b = 2·mean|x|/√high, the start of learned step size quantization · rms: a range of ±`spread` root mean squares."""

ActivationRule = Literal["minmax", "cover", "mse", "lsq", "running"]
"""The same for activations, and running: min-max of extremes that are averaged over batches of images."""

SPREAD = 2.5
"""Root mean squares from 0 to the end of a weight's range, by the rule "rms"."""

CANDIDATES = 300
"""Step sizes tried per bit-width by the MSE search: 1 %, 2 %, … of the min-max step size, up to 150 % of it or to the
step size that clips nothing, if that is larger: three times min-max for a tensor without negative values at 2 bits."""


def all_bits(device: torch.device) -> Tensor:
    """Return BITS as a tensor."""
    return torch.arange(BITS[0], BITS[-1] + 1, device=device)


def _like(column: Tensor, one: Tensor) -> Tensor:
    """Return a (BITS,) column that broadcasts to (BITS, *one.shape), in the type of `one`."""
    return column.to(one.dtype).reshape(-1, *[1] * one.dim())


def minmax_steps(low: Tensor, high: Tensor, grid: GridName) -> Tensor:
    """Return Δ_b = (max − min)/(2^b − 1) for every b in BITS; `low` and `high` per tensor or per channel."""
    return _positive(low, high, (high - low) / _like(levels(all_bits(low.device), grid), low))


def cover_steps(low: Tensor, high: Tensor, grid: GridName) -> Tensor:
    """Return the smallest Δ_b with low·Δ_b ≤ min and max ≤ high·Δ_b: nothing is clipped."""
    bottom, top = (_like(end, low) for end in bounds(all_bits(low.device), grid))
    down = torch.where(bottom < 0, -low.clamp(max=0) / bottom.abs().clamp_min(1), torch.zeros_like(bottom))
    return _positive(low, high, torch.maximum(down, high.clamp(min=0) / top))


def lsq_steps(mean: Tensor, grid: GridName) -> Tensor:
    """Return Δ_b = 2·mean|x|/√high, which is 2·mean|x|/√(2^(b−1) − 1) on the full grid."""
    return _positive(-mean, mean, 2 * mean / _like(limits(all_bits(mean.device), grid)[1], mean).sqrt())


def rms_steps(rms: Tensor, spread: float, grid: GridName) -> Tensor:
    """Return Δ_b of the range ±α, α = spread·rms: 2α/2^b for half-integer levels, α/(2^(b−1) − 1) on the narrow grid."""
    return _positive(-rms, rms, 2 * spread * rms / _like(levels(all_bits(rms.device), grid), rms))


def _positive(low: Tensor, high: Tensor, steps: Tensor) -> Tensor:
    """Return `steps`; for a constant tensor, whose range is 0, its value (or 1 for zeros), which represents it exactly."""
    largest = torch.maximum(low.abs(), high.abs())
    return torch.where(steps > 0, steps, torch.where(largest > 0, largest, torch.ones_like(largest)))


def candidate_steps(low: Tensor, high: Tensor, grid: GridName) -> Tensor:
    """Return the step sizes that the MSE search tries: (CANDIDATES, BITS, …); where the ladder ends early, its top again."""
    steps = minmax_steps(low, high, grid)
    top = (cover_steps(low, high, grid) / steps).clamp_min(1.5)
    rungs = (torch.arange(1, CANDIDATES + 1, device=low.device) / 100).reshape(-1, *[1] * steps.dim())
    fraction = torch.cat([torch.minimum(rungs[:-1], top), top[None]])
    # A step size that underflows to 0 would stand for 32 bits.
    return (fraction * steps).clamp_min(torch.finfo(steps.dtype).tiny)


def best_steps(candidates: Tensor, errors: Tensor) -> Tensor:
    """Return the candidate of least error per bit-width (and channel)."""
    return candidates.gather(0, errors.argmin(0, keepdim=True)).squeeze(0)


def weight_range(w: Tensor, per_channel: bool) -> tuple[Tensor, Tensor]:
    """Return (min, max) of a weight: scalars, or (C, 1, …) per output channel."""
    if not per_channel:
        return w.min(), w.max()
    shape = (w.shape[0], *[1] * (w.dim() - 1))
    flat = w.reshape(w.shape[0], -1)
    return flat.amin(1).reshape(shape), flat.amax(1).reshape(shape)


def root_mean_square(w: Tensor, per_channel: bool = False) -> Tensor:
    """Return √(mean w²): of all of w, or (C, 1, …) per output channel."""
    dims = tuple(range(1, w.dim())) if per_channel else tuple(range(w.dim()))
    return w.square().mean(dims, keepdim=per_channel).sqrt()


def weight_steps(w: Tensor, rule: RangeRule, grid: GridName, per_channel: bool = False, spread: float = SPREAD) -> Tensor:
    """Return Δ_b of one weight tensor for every b in BITS: (7,), or (7, C, 1, …) per channel."""
    low, high = weight_range(w, per_channel)
    if rule == "minmax":
        return minmax_steps(low, high, grid)
    if rule == "cover":
        return cover_steps(low, high, grid)
    if rule == "rms":
        return rms_steps(root_mean_square(w, per_channel), spread, grid)
    if rule == "lsq":
        return lsq_steps(w.abs().flatten(1).mean(1).reshape(low.shape) if per_channel else w.abs().mean(), grid)
    candidates = candidate_steps(low, high, grid)
    return best_steps(candidates, squared_errors(w, candidates, grid))


def squared_errors(x: Tensor, candidates: Tensor, grid: GridName) -> Tensor:
    """Return Σ (Q(x) − x)² for every candidate step size, in the shape of `candidates`: per tensor or per channel.

    In sorted x the n values that round to level k are neighbours with the error Σx² − 2Δk·Σx + (Δk)²·n: with
    cumulated sums a look-up per level replaces a pass over x per candidate.
    """
    rows = x.reshape(x.shape[0] if candidates.dim() > 2 else 1, -1)
    ordered = rows.double().sort(1).values
    sums = pad(torch.stack([ordered, torch.ones_like(ordered)]).cumsum(2), (1, 0))
    steps = candidates.double().reshape(len(candidates), len(BITS), len(rows))
    errors = []
    for i, bits in enumerate(BITS):
        parts = torch.split(steps[:, i], max(1, _AT_ONCE // (len(rows) << bits)))
        errors.append(torch.cat([_level_errors(part, ordered, sums, *ends(bits, grid)) for part in parts]))
    return (torch.stack(errors, 1) + ordered.square().sum(1)).reshape(candidates.shape)


_AT_ONCE = 1 << 22
"""Levels looked up at once: many channels with many levels stay within some 100 MB."""


def _level_errors(steps: Tensor, ordered: Tensor, sums: Tensor, low: float, high: float) -> Tensor:
    """Return Σ_k (Δk)²·n_k − 2Δk·Σx_k for step sizes (candidate, row); sums: cumulated x and ones of the sorted rows."""
    k = torch.arange(low, high + 1, device=steps.device, dtype=steps.dtype)
    edges = (steps.T[:, :, None] * (k[:-1] + 0.5)).flatten(1)
    inner = torch.searchsorted(ordered, edges).reshape(len(ordered), len(steps), -1)
    ends = pad(pad(inner, (1, 0)), (0, 1), value=ordered.shape[1])
    total, count = (s.gather(1, ends.flatten(1)).reshape(ends.shape).diff(dim=2) for s in sums)
    level = steps.T[:, :, None] * k
    errors: Tensor = (level * (level * count - 2 * total)).sum(2).T
    return errors


@dataclass(frozen=True)
class StepTable:
    """Δ of every site at every bit-width: {site: tensor with BITS as first dimension}."""

    steps: Mapping[str, Tensor]
    start_rms: Mapping[str, Tensor] = field(default_factory=dict)
    """Root mean square at the start of every weight whose step sizes follow it; `steps` are those of the start."""
    sites: SiteOptions | None = field(default=None, repr=False)
    """The sites and grids of a trained run, for which alone its step sizes are right; none: not said."""

    def by_rule(self, base: int, grids: Mapping[str, GridName]) -> StepTable:
        """Return the table that keeps the ranges of the step sizes at `base` bits (see `rescaled`)."""
        at_base = {site: steps[BITS.index(base)] for site, steps in self.steps.items()}
        return StepTable({site: rescaled(step, base, _like(all_bits(step.device), step), grids[site])
                          for site, step in at_base.items()})

    def merged(self, other: StepTable) -> StepTable:
        """Return this table with the sites of `other` added or replaced."""
        return StepTable({**self.steps, **other.steps}, {**self.start_rms, **other.start_rms}, self.sites)

    def to(self, device: torch.device) -> StepTable:
        steps, start_rms = ({site: values.to(device) for site, values in part.items()}
                            for part in (self.steps, self.start_rms))
        return StepTable(steps, start_rms, self.sites)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return {site: {bits: step size, or a list per channel}}; float32 values survive the round trip exactly."""
        return {site: {str(b): row.flatten().tolist() if row.dim() else row.item()
                       for b, row in zip(BITS, steps.cpu(), strict=True)} for site, steps in sorted(self.steps.items())}

    @staticmethod
    def from_json(table: Any, shapes: Mapping[str, tuple[int, ...]]) -> StepTable:
        """Read what `to_json` wrote; shapes: of one step size of each site, () per tensor."""
        steps = {}
        for site, shape in shapes.items():
            try:
                rows = [torch.tensor(table[site][str(b)], dtype=torch.float32).reshape(shape) for b in BITS]
            except (KeyError, IndexError, TypeError, ValueError, OverflowError, RuntimeError) as error:
                raise RunError(f"step table: site '{site}' is missing or malformed ({error})") from None
            steps[site] = torch.stack(rows)
            if not bool((torch.isfinite(steps[site]) & (steps[site] > 0)).all()):
                raise RunError(f"step table: site '{site}' has a step size that is not a positive number")
        return StepTable(steps)
