"""Theorem 3.1 by hand, and against the real algorithm on quadratics whose constants are known."""

from __future__ import annotations

import sys
from dataclasses import astuple
from pathlib import Path

import pytest

from anybit import theory
from anybit.errors import ConfigError
from anybit.theory import Setting

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from theory_quadratics import FAST, SLOW, Row, experiment, slope

BY_HAND = Setting(L=1, K=4, eta_c=0.0225, eta_s=1, sigma_l=0.5, sigma_g=0.1, noise=0.02)


def test_coefficients_by_hand() -> None:
    by_hand = (1 - 0.72, 1.44 + 32 + 2 / 3, 8.64 + 4, 16 / 0.0675 + 96)
    assert astuple(theory.coefficients(BY_HAND)) == pytest.approx(by_hand)
    assert by_hand[0] == pytest.approx(0.28)


def test_coefficients_by_hand_where_no_symbol_is_one() -> None:
    by_hand = (0.75 - 0.18, 0.72 + 0.5 * 18.5, 4.32 + 1.5, 200 + 27)
    assert astuple(theory.coefficients(Setting(L=2, K=3, eta_c=0.01, eta_s=0.5))) == pytest.approx(by_hand)


def test_bound_by_hand() -> None:
    b = theory.bound(BY_HAND, gap=3.0, rounds=100)
    assert b.optimization == pytest.approx(3 / (100 * 0.0225 * 0.28))
    assert b.local_variance == pytest.approx(0.0225 / 0.28 * 34.106666667 * 0.25)
    assert b.client_drift == pytest.approx(0.0225 / 0.28 * 12.64 * 4 * 0.01)
    assert b.quantization == pytest.approx((16 / 3 + 2.16) / 0.28 * 0.02)
    assert b.total == pytest.approx(b.optimization + b.floor)


def test_the_quantization_term_falls_to_the_irreducible_one() -> None:
    s = Setting(L=3, K=5, eta_c=1e-9, eta_s=2, noise=0.7)
    assert theory.irreducible(s) == pytest.approx(16 / 3 * 9 * 0.7)
    assert theory.bound(s, gap=0.0, rounds=1).quantization == pytest.approx(theory.irreducible(s))


def test_drift_bound_by_hand() -> None:
    # 4Kη²(σ_l² + 6Kσ_g²) + 32K²η²L²DR² + 24K²η²‖∇F‖², Kη² = 0.002025
    by_hand = 0.0081 * (0.25 + 0.24) + 0.2592 * 0.02 + 0.1944 * 2
    assert theory.drift_bound(BY_HAND, gradient=2.0) == pytest.approx(by_hand)


def test_radius() -> None:
    assert theory.radius("apqn", [0.6]) == pytest.approx(0.6 / 12**0.5)
    assert theory.radius("qat", [0.6]) == pytest.approx(0.3)
    assert theory.radius("mqat", [0.1, 0.6, 0.0]) == pytest.approx(0.3)
    with pytest.raises(ConfigError, match="one bit-width"):
        theory.radius("qat", [0.1, 0.2])
    with pytest.raises(ConfigError, match="at least one"):
        theory.radius("mqat", [])


def test_noise_energy_sums_over_sites() -> None:
    assert theory.noise_energy("qat", [(10, [0.2]), (5, [0.4])]) == pytest.approx(10 * 0.01 + 5 * 0.04)


@pytest.mark.parametrize(("eta_c", "eta_s", "largest"), [
    (0.0251, 1.0, "largest admissible eta_c is 0.025$"),
    (0.0157, 2.0, "largest admissible eta_c is any below 0.015625, where A = 0$"),
    (0.015625, 2.0, "A = 0.*any below 0.015625"),
    (1.0, 0.001, "largest admissible eta_c is 0.025$")])
def test_a_violated_condition_names_the_largest_learning_rate(eta_c: float, eta_s: float, largest: str) -> None:
    s = Setting(L=1, K=4, eta_c=eta_c, eta_s=eta_s)
    with pytest.raises(ConfigError, match=largest):
        theory.bound(s, gap=1.0, rounds=10)


def test_the_largest_learning_rate_itself_is_admissible() -> None:
    theory.check(Setting(L=1, K=4, eta_c=0.025, eta_s=1))
    theory.check(Setting(L=1, K=4, eta_c=0.015624, eta_s=2))


def test_lemma_4_needs_the_first_condition_alone() -> None:
    theory.drift_bound(Setting(L=1, K=4, eta_c=0.02, eta_s=100), gradient=1.0)
    with pytest.raises(ConfigError, match=r"Lemma 4 .* 0\.025"):
        theory.drift_bound(Setting(L=1, K=4, eta_c=0.03, eta_s=1), gradient=1.0)


@pytest.mark.parametrize("change", [{"L": 0}, {"K": 0}, {"eta_c": -1}, {"eta_s": float("inf")}, {"sigma_l": -1},
                                    {"noise": float("nan")}])
def test_impossible_constants_are_named(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(change))} = "):
        Setting(**{"L": 1, "K": 1, "eta_c": 1, "eta_s": 1, **change})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return experiment()


def select(rows: list[Row], case: str, variant: str | None = None, eta_c: float | None = None) -> list[Row]:
    found = [r for r in rows if r.case == case and variant in (None, r.variant) and eta_c in (None, r.eta_c)]
    assert found
    return found


def test_no_weight_saturates(rows: list[Row]) -> None:
    """Assumption 3. Float32 leaves about 1e−5 of a step of the difference Q(w) − w."""
    assert all(r.reach <= 0.5 + 1e-4 for r in rows)


@pytest.mark.parametrize("variant", ["apqn", "qat", "mqat"])
def test_the_floor_falls_with_the_step_squared(rows: list[Row], variant: str) -> None:
    assert slope(select(rows, "floor", variant)) == pytest.approx(2, abs=0.3)


def test_measured_stays_below_the_bounds(rows: list[Row]) -> None:
    for r in rows:
        print(f"{r.case} {r.variant} W{r.bits} measured/bound: ‖∇F‖² {r.gradient_ratio:.4f}, drift {r.drift_ratio:.4f}")
        assert r.gradient_ratio <= 1
        assert 0 < r.drift_ratio <= 1
        assert r.gradient <= r.floor


def test_the_noise_is_as_large_as_r_says(rows: list[Row]) -> None:
    """E‖r‖² = D·R² for APQN; at most that for QAT, and nearly that where weights rest at a rounding threshold."""
    assert all(r.noise_ratio == pytest.approx(1, abs=0.02) for r in select(rows, "floor", "apqn"))
    assert all(0.9 < r.noise_ratio <= 1 for r in select(rows, "worst"))
    assert all(r.noise_ratio <= 1 for r in select(rows, "floor", "qat") + select(rows, "floor", "mqat"))


@pytest.mark.parametrize(("eta_c", "share"), [(FAST, 0.28 / (16 / 3 + 2.16)), (SLOW, 0.92 / (16 / 3 + 0.24))],
                         ids=["fast", "slow"])
def test_the_worst_optimum_shows_how_tight_the_floor_is(rows: list[Row], eta_c: float, share: float) -> None:
    """Weights rest at most η_c·L·Δ short of half a step from w*: ‖∇F‖² ≈ L²·D·R², a known share of the floor."""
    for r in select(rows, "worst", eta_c=eta_c):
        assert (1 - 2 * eta_c) ** 2 - 1e-3 <= r.gradient / r.rounding <= 1
        assert 0.9 * share <= r.gradient / r.floor <= share
