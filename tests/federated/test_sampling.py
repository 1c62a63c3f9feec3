from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from anybit.errors import ConfigError
from anybit.federated.cohort import sample_clients
from anybit.federated.sampling import SamplingOptions, sample_cohort
from anybit.quant.grid import Width

WIDTHS = [Width(2, 32)] * 2 + [Width(4, 32)] * 6 + [Width(8, 32)] * 12
"""A fleet in which 2-bit devices are rare."""


def widths_of(positions: Sequence[int]) -> list[Width]:
    return [WIDTHS[i] for i in positions]


def draw(options: SamplingOptions, round: int, size: int = 6) -> tuple[int, ...]:
    return sample_cohort(options, 1, round, len(WIDTHS), size, widths_of)


def shares(options: SamplingOptions) -> dict[int, float]:
    """How often each bit-width is in a cohort, of 6 places."""
    counts = Counter(WIDTHS[i].weights for round in range(400) for i in draw(options, round))
    return {bits: count / 400 for bits, count in counts.items()}


def test_uniform_is_the_draw_of_always() -> None:
    assert draw(SamplingOptions(), 3) == sample_clients(1, 3, len(WIDTHS), 6)


def test_stratified_gives_every_width_the_same_places() -> None:
    options = SamplingOptions("stratified")
    for round in range(20):
        assert Counter(WIDTHS[i].weights for i in draw(options, round)) == {2: 2, 4: 2, 8: 2}
    assert shares(SamplingOptions())[2] == pytest.approx(0.6, abs=0.15)


def test_a_width_with_too_few_clients_leaves_its_places_to_the_others() -> None:
    counts = Counter(WIDTHS[i].weights for i in draw(SamplingOptions("stratified"), 0, size=20))
    assert counts == {2: 2, 4: 6, 8: 12}
    some = Counter(WIDTHS[i].weights for i in draw(SamplingOptions("stratified"), 0, size=12))
    assert some == {2: 2, 4: 5, 8: 5}


def test_what_is_left_over_goes_to_any_width() -> None:
    extra = Counter(WIDTHS[i].weights for round in range(300) for i in draw(SamplingOptions("stratified"), round, size=1))
    assert all(60 < extra[bits] < 140 for bits in (2, 4, 8))


def test_weighted_favours_the_widths_with_weight() -> None:
    heavy = shares(SamplingOptions("weighted", {"W2": 5.0}))
    assert heavy[2] > 1.2
    assert heavy[8] < shares(SamplingOptions())[8]
    assert set(shares(SamplingOptions("weighted", {"W8": 0.0}))) == {2, 4}


@pytest.mark.parametrize("options", [SamplingOptions("stratified"), SamplingOptions("weighted", {"W4": 2.0})])
def test_nobody_is_drawn_twice_and_the_draw_repeats(options: SamplingOptions) -> None:
    for round in range(10):
        cohort = draw(options, round)
        assert len(set(cohort)) == 6
        assert cohort == draw(options, round)
    assert draw(options, 0) != draw(options, 1)


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="needs weights"):
        SamplingOptions("weighted")
    with pytest.raises(ConfigError, match="others take none"):
        SamplingOptions("uniform", {"W2": 1.0})
    with pytest.raises(ConfigError, match="0 or above"):
        SamplingOptions("weighted", {"W2": -1.0})
    with pytest.raises(ConfigError, match="bits = 9"):
        SamplingOptions("weighted", {"W9": 1.0})
    with pytest.raises(ConfigError, match="only 2 clients have a weight above 0"):
        draw(SamplingOptions("weighted", {"W4": 0.0, "W8": 0.0}), 0)
