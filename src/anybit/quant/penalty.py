"""Kurtosis: the fourth standardized moment, and the penalty that pulls it to that of a uniform distribution."""

from __future__ import annotations

import torch
from torch import Tensor

UNIFORM_KURTOSIS = 1.8
"""K_τ: the kurtosis of a uniform distribution."""


def kurtosis(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """K(x) = E[((x − μ)/σ)⁴], σ without Bessel's correction; 0 for a constant tensor.

    `rows` weighs the entries of the first dimension (1 real, 0 padding).
    """
    flat = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(-1, 1)
    weight = torch.ones_like(flat) if rows is None else rows.reshape(-1, 1).expand_as(flat)
    weight = weight / weight.sum().clamp_min(1)
    centred = _in_its_own_unit(flat - (weight * flat).sum(), flat, weight > 0)
    variance = (weight * centred**2).sum()
    fourth = (weight * centred**4).sum()
    tiny = torch.finfo(x.dtype).tiny ** 0.5
    return fourth / variance.clamp_min(tiny) ** 2


def _in_its_own_unit(centred: Tensor, flat: Tensor, real: Tensor) -> Tensor:
    """Deviations as shares of the largest, where fourth powers neither overflow nor vanish; 0 if they are rounding."""
    unit, largest = ((real * x.detach()).abs().amax() for x in (centred, flat))
    alive = unit > (4 * torch.finfo(flat.dtype).eps * largest).clamp_min(torch.finfo(flat.dtype).tiny)
    return torch.where(alive, centred, torch.zeros_like(centred)) / torch.where(alive, unit, torch.ones_like(unit))


def kurtosis_gap(x: Tensor, rows: Tensor | None = None, target: float = UNIFORM_KURTOSIS) -> Tensor:
    """|K(x) − K_τ|²."""
    return (kurtosis(x, rows) - target) ** 2
