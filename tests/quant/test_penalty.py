from __future__ import annotations

import pytest
import torch

from anybit.quant.penalty import kurtosis, kurtosis_gap


def test_kurtosis_by_hand() -> None:
    assert float(kurtosis(torch.tensor([-1.0, 1.0, -1.0, 1.0]))) == pytest.approx(1)
    # mean 1, deviations −1 −1 −1 3: variance 3, fourth moment 21
    assert float(kurtosis(torch.tensor([0.0, 0.0, 0.0, 4.0]))) == pytest.approx(21 / 9)


def test_kurtosis_of_known_distributions() -> None:
    torch.manual_seed(0)
    assert float(kurtosis(torch.rand(200_000))) == pytest.approx(1.8, abs=0.02)
    assert float(kurtosis(torch.randn(200_000))) == pytest.approx(3, abs=0.1)
    assert float(kurtosis_gap(torch.rand(200_000))) == pytest.approx(0, abs=1e-3)


def test_a_dead_layer_has_a_finite_gradient() -> None:
    w = torch.full((9,), 0.25, requires_grad=True)
    kurtosis_gap(w).backward()
    assert w.grad is not None
    assert bool(torch.isfinite(w.grad).all())


def test_padding_rows_do_not_count() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    padded = torch.cat([x, torch.full((3, 6), 50.0)])
    rows = torch.tensor([1.0] * 4 + [0.0] * 3)
    assert torch.allclose(kurtosis(padded, rows), kurtosis(x))
