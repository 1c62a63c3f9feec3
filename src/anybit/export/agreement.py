"""How near the outputs of two models are: by their decisions, or by the numbers themselves."""

from __future__ import annotations

import torch
from torch import Tensor

_CONSTANT = 1e-4
"""Share of its size below which the deviation of outputs is float32's rounding and no scale."""


def same_decisions(left: Tensor, right: Tensor) -> float:
    """Return the share of examples (pixels, tokens) with the same largest output."""
    return float((left.argmax(1) == right.argmax(1)).double().mean())


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return ‖result − expected‖/‖expected − mean over the examples‖: 1 for a model that always gives the mean."""
    return float((result.double() - expected.double()).norm() / _deviations(expected).norm())


def within(result: Tensor, expected: Tensor, allowed: float) -> float:
    """Return the share of examples whose outputs are within `allowed` of the deviation of a typical example's."""
    away = (result.double() - expected.double()).reshape(len(expected), -1).norm(dim=1)
    typical = _deviations(expected).norm() / len(expected) ** 0.5
    return float((away <= allowed * typical).double().mean())


def _deviations(expected: Tensor) -> Tensor:
    """Return expected − its mean, or 1e-4 of the outputs where that is larger, as they are then one constant."""
    expected = expected.double()
    deviations, least = expected - expected.mean(0, keepdim=True), _CONSTANT * expected
    larger = deviations if deviations.norm() >= least.norm() else least
    return larger if larger.norm() > 0 else torch.full_like(expected, torch.finfo(torch.float32).tiny)
