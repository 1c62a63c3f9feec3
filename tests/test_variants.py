from __future__ import annotations

from collections import Counter

import pytest
import torch

from anybit.errors import ConfigError
from anybit.federated.variants import Weights, apqn, baseline, kure, mqat, qat
from anybit.quant.grid import Width
from anybit.quant.penalty import kurtosis


def test_baseline_and_kure_train_in_full_precision() -> None:
    assert baseline().widths_of(1, 0, [3, 4]) == [Width(32, 32)] * 2
    assert kure("WA").widths_of(1, 0, [3]) == [Width(32, 32)]


@pytest.mark.parametrize(("sites", "width"), [("W", Width(2, 32)), ("A", Width(32, 2)), ("WA", Width(2, 2))])
def test_fixed_width_variants(sites: str, width: Width) -> None:
    for variant in (qat(2, sites), apqn(2, sites)):  # type: ignore[arg-type]
        assert variant.widths_of(1, 5, [0, 1]) == [width, width]


def test_mqat_draws_every_width_equally_often_and_anew_each_round() -> None:
    variant = mqat(bits=(2, 4, 32))
    widths = [variant.widths_of(1, r, range(10)) for r in range(300)]
    counts = Counter(w.weights for row in widths for w in row)
    assert set(counts) == {2, 4, 32}
    assert all(abs(n - 1000) < 120 for n in counts.values())
    assert len({tuple(row) for row in widths}) > 250


def test_mqat_star_keeps_each_clients_width() -> None:
    variant = mqat(fixed=True)
    rounds = [variant.widths_of(1, r, range(30)) for r in (0, 1, 77)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert len(set(rounds[0])) > 3
    assert variant.widths_of(2, 0, range(30)) != rounds[0]


def test_weight_decay_has_the_gradient_of_weight_decay() -> None:
    w = {"a": torch.tensor([1.0, -2.0], requires_grad=True), "b": torch.tensor(3.0, requires_grad=True)}
    ((strength, penalty),) = baseline(weight_decay=0.1).penalties
    (strength * penalty(Weights(w, {}, {}))).backward()
    assert w["a"].grad is not None
    assert w["b"].grad is not None
    assert w["a"].grad.tolist() == pytest.approx([0.1, -0.2])
    assert float(w["b"].grad) == pytest.approx(0.3)


def test_kure_penalty_by_hand() -> None:
    flat, peaked = torch.tensor([-1.0, 1.0]), torch.tensor([0.0, 0.0, 0.0, 4.0])  # kurtosis 1 and 7/3
    weights = Weights({}, {"x": flat, "y": peaked}, {"z": torch.tensor([6.0, 2.0])})
    gap_x, gap_y = (1 - 1.8) ** 2, (7 / 3 - 1.8) ** 2
    assert float(kurtosis(peaked)) == pytest.approx(7 / 3)
    for variant, expected in ((kure("W"), 0.1 * (gap_x + gap_y) / 2), (kure("A"), 0.1 * 3),
                              (kure("WA", scale=1.0), (gap_x + gap_y + 3) / 3)):
        ((strength, penalty),) = variant.penalties
        assert strength * float(penalty(weights)) == pytest.approx(expected)


@pytest.mark.parametrize("make", [lambda: qat(9), lambda: mqat(bits=(2, 1)), lambda: mqat(bits=(32,)),
                                  lambda: apqn(32), lambda: mqat(bits=()), lambda: baseline(dropout=1.0)])
def test_bits_and_rates_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(ConfigError):
        make()  # type: ignore[operator]
