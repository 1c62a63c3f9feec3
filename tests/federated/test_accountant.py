"""ε by hand, by composition, and beside published values."""

from __future__ import annotations

import math
import sys

import pytest

from anybit.errors import ConfigError, MissingExtra
from anybit.federated.accountant import accountant, default_delta
from anybit.federated.privacy import PrivacyOptions


def poisson(noise: float, delta: float | None = None) -> PrivacyOptions:
    return PrivacyOptions(clip=1.0, noise=noise, sampling="poisson", delta=delta)


def gaussian(noise: float, rounds: int, delta: float) -> float:
    """ε without sampling: min over α of T·α/(2z²) + ln(1 − 1/α) − ln(δα)/(α − 1) (Canonne, Kamath, Steinke 2020)."""
    orders = [1 + k / 1000 for k in range(50, 100_000)]
    return min(rounds * a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)


def renyi(q: float, noise: float, a: int) -> float:
    """Divergence of order a of a Poisson-sampled Gaussian (Mironov, Talwar, Zhang 2019, eq. 5)."""
    terms = [math.log(math.comb(a, k)) + (a - k) * math.log1p(-q) + k * math.log(q) + (k * k - k) / (2 * noise**2)
             for k in range(a + 1)]
    top = max(terms)
    return (top + math.log(sum(math.exp(t - top) for t in terms))) / (a - 1)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 1), (4.0, 20)])
def test_without_sampling_it_is_the_gaussian_mechanism(noise: float, rounds: int) -> None:
    books = accountant(poisson(noise, 1e-5), 10, 10)  # q = 1
    assert books.epsilon(rounds) == pytest.approx(gaussian(noise, rounds, 1e-5), rel=1e-3)
    assert books.epsilon(rounds) == pytest.approx(accountant(poisson(noise / math.sqrt(rounds), 1e-5), 10, 10).epsilon(1))


def test_a_replaced_client_counts_twice_its_clip() -> None:
    uniform = PrivacyOptions(clip=1.0, noise=8.0, delta=1e-5)
    assert accountant(uniform, 10, 10).epsilon(3) == pytest.approx(gaussian(4.0, 3, 1e-5), rel=1e-3)


def test_poisson_sampling_is_the_formula() -> None:
    q, noise, rounds, delta = 0.01, 1.1, 300, 1e-5
    expected = min(rounds * renyi(q, noise, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in range(2, 200))
    assert accountant(poisson(noise, delta), 100, 10_000).epsilon(rounds) == pytest.approx(expected, rel=0.01)


def test_the_published_example_of_the_moments_accountant() -> None:
    """Abadi et al., Deep Learning with Differential Privacy (2016), the example after Theorem 1: ε ≈ 1.26.

    q = 0.01, σ = 4, T = 10,000, δ = 1e-5. They convert by ln(1/δ)/(α − 1); today's conversion gives less.
    """
    published = min(10_000 * renyi(0.01, 4.0, a) + math.log(1e5) / (a - 1) for a in range(2, 64))
    assert published == pytest.approx(1.26, abs=0.005)
    assert 0.9 * published > accountant(poisson(4.0, 1e-5), 100, 10_000).epsilon(10_000) > 0.75 * published


@pytest.mark.parametrize("options", [poisson(1.0), PrivacyOptions(clip=1.0, noise=3.0),
                                     PrivacyOptions(clip=1.0, noise=3.0, where="local")],
                         ids=["poisson", "uniform", "local"])
def test_epsilon_grows_with_rounds_and_shares_and_never_beyond_no_sampling(options: PrivacyOptions) -> None:
    of_rounds = [accountant(options, 10, 1000).epsilon(rounds) for rounds in (0, 1, 10, 100)]
    assert of_rounds == sorted(of_rounds)
    assert of_rounds[0] == 0 < of_rounds[1]
    of_clients = [accountant(options, 10, clients).model.epsilon(10, 1e-4) for clients in (5000, 500, 50, 10)]
    assert of_clients == sorted(of_clients)


def test_local_noise_hides_a_client_from_the_server_and_better_from_everybody_else() -> None:
    statement = accountant(PrivacyOptions(clip=1.0, noise=8.0, where="local", delta=1e-5), 16, 16).statement(5)
    assert statement["epsilon_server"] == pytest.approx(gaussian(4.0, 5, 1e-5), rel=1e-3)
    assert statement["epsilon"] == pytest.approx(gaussian(4.0 * 4, 5, 1e-5), rel=1e-3)  # the noise of 16 clients
    assert statement["neighbours"] == "replace a client"


def test_delta_is_below_one_over_the_clients() -> None:
    assert default_delta(10_000) == 4e-5 < 1 / 10_000
    assert accountant(poisson(1.0), 10, 500).delta == default_delta(500)


def test_devices_that_nobody_has_counted_need_a_delta_and_poisson_their_number() -> None:
    with pytest.raises(ConfigError, match="set it, far below"):
        accountant(PrivacyOptions(clip=1.0, noise=1.0), 10, None)
    with pytest.raises(ConfigError, match=r"set privacy\.clients"):
        accountant(poisson(1.0, 1e-5), 10, None)
    unknown = accountant(PrivacyOptions(clip=1.0, noise=8.0, delta=1e-5), 10, None)
    assert unknown.epsilon(2) == pytest.approx(gaussian(4.0, 2, 1e-5), rel=1e-3)  # no share is counted on


def test_a_delta_or_a_number_of_clients_that_would_flatter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"below 1/clients = 0\.01"):
        accountant(poisson(1.0, 0.01), 10, 100)
    with pytest.raises(ConfigError, match="the split has 100 clients"):
        accountant(PrivacyOptions(clip=1.0, noise=1.0, sampling="poisson", clients=1_000_000), 10, 100)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(MissingExtra, match=r"anybit\[privacy\]"):
        accountant(poisson(1.0), 10, 100)
