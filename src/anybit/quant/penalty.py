"""Kurtosis, and the penalty that pulls it to that of a uniform distribution."""

from __future__ import annotations

import torch
from torch import Tensor

UNIFORM_KURTOSIS = 1.8
"""K_τ: the kurtosis of a uniform distribution."""


def kurtosis(x: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return K(x) = E[((x − μ)/σ)⁴], σ without Bessel's correction; 0 for a constant tensor. rows: 1 real, 0 padding."""
    flat = x.reshape(x.shape[0], -1) if x.dim() > 1 else x.reshape(-1, 1)
    weight = None if rows is None else rows.reshape(-1, 1) / (rows.sum() * flat.shape[1]).clamp_min(1)

    def average(values: Tensor) -> Tensor:
        return values.mean() if weight is None else (weight * values).sum()

    centred = flat - average(flat)
    # Squared twice: the library's general power is slow.
    squared = (centred * _inverse_scale(centred, flat, rows)).square()
    tiny = torch.finfo(x.dtype).tiny ** 0.5
    return average(squared.square()) / average(squared).clamp_min(tiny) ** 2


def _inverse_scale(centred: Tensor, flat: Tensor, rows: Tensor | None) -> Tensor:
    """Return 1/max|x − μ|, so that fourth powers neither overflow nor vanish; 0 if all deviations are rounding errors."""
    real = (x.detach() if rows is None else (rows > 0).reshape(-1, 1) * x.detach() for x in (centred, flat))
    deviation, largest = (torch.maximum(x.amax(), -x.amin()) for x in real)
    varies = deviation > (4 * torch.finfo(flat.dtype).eps * largest).clamp_min(torch.finfo(flat.dtype).tiny)
    return torch.where(varies, 1 / torch.where(varies, deviation, 1.0), 0.0)


def kurtosis_gap(x: Tensor, rows: Tensor | None = None, target: float = UNIFORM_KURTOSIS) -> Tensor:
    """Return |K(x) − K_τ|²."""
    return (kurtosis(x, rows) - target) ** 2
