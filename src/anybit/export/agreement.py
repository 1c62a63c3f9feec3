"""How near the outputs of two models are: by their decisions, or by the numbers themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from anybit.data.examples import IGNORED

_CONSTANT = 1e-4
"""Share of its size below which the deviation of outputs is float32's rounding and no scale."""

_MASK = -1e4
"""Outputs down to this are a mask's (float16 ends at −6.6e4), if they lie a thousand typical ones below 0, too."""


def same_decisions(left: Tensor, right: Tensor) -> float:
    """Return the share of examples (pixels, tokens) with the same largest output."""
    return float((left.argmax(1) == right.argmax(1)).double().mean())


def two_decisions(targets: Tensor) -> float:
    """Return the percentage points of two decisions: of pixels or tokens, those of the example with the fewest targets.

    A metric is the mean over the examples, and of one example over its positions with a target.
    """
    counts = (targets != IGNORED).reshape(len(targets), -1).sum(1)
    return 200 / (len(targets) * min(filter(None, counts.tolist()), default=1))


def relative_error(result: Tensor, expected: Tensor) -> float:
    """Return ‖result − expected‖/‖expected − mean over the examples‖: 1 for a model that always gives the mean."""
    return float(_differences(result, expected).norm() / _deviations(expected).norm())


def within(result: Tensor, expected: Tensor, allowed: float) -> float:
    """Return the share of examples whose outputs are within `allowed` of the deviation of a typical example's."""
    away = _differences(result, expected).reshape(len(expected), -1).norm(dim=1)
    typical = _deviations(expected).norm() / len(expected) ** 0.5
    return float((away <= allowed * typical).double().mean())


def _differences(result: Tensor, expected: Tensor) -> Tensor:
    """Return result − expected; what both mask, and equal infinities, differ by nothing."""
    most = _mask(expected)
    same = ((result == expected) & expected.isinf()) | ((result <= most) & (expected <= most))
    return (result.double() - expected.double()).masked_fill(same, 0)


def _deviations(expected: Tensor) -> Tensor:
    """Return expected − its mean, or 1e-4 of the outputs where that is larger, as they are then one constant.

    Infinities and masks have no part in the mean, and deviate by nothing.
    """
    expected, finite = expected.double(), expected.isfinite() & (expected > _mask(expected))
    mean = expected.where(finite, torch.nan).nanmean(0, keepdim=True)
    deviations, least = (expected - mean).where(finite, 0), _CONSTANT * expected.where(finite, 0)
    larger = deviations if deviations.norm() >= least.norm() else least
    return larger if larger.norm() > 0 else torch.full_like(expected, torch.finfo(torch.float32).tiny)


def _mask(expected: Tensor) -> float:
    """Return the output from which on downwards a class is masked: with a large number like −1e9, as with −∞."""
    others = expected[expected.abs() < -_MASK]
    return min(_MASK, -1e3 * float(others.abs().median())) if others.numel() else -torch.inf
