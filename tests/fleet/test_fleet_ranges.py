"""A hostile minority that lies about ranges neither widens nor narrows the grid far beyond what honest devices need."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anybit.fleet.calibration import merged_seen
from anybit.fleet.flower import Message, RecordDict
from anybit.fleet.wire import to_record
from anybit.quant.calibrate import merge_seen, ranges_of
from tests.fleet.conftest import LocalGrid, fleet, nodes, small

WIDE = torch.tensor([1.0, -1e6, 1e6, 1e9, 1e3, 1e3, -1e6, 1e6])
NARROW = torch.tensor([1.0, 0.0, 0.0, 0.0, 1e3, 1e3, 0.0, 0.0])


def statistics(high: float) -> Tensor:
    """One batch of 10 images with 10 values each, in 0…high, their mean high/4."""
    return torch.tensor([1.0, 0.0, high, 25 * high, 100.0, 10.0, 0.0, high])


@pytest.mark.parametrize(("lie", "high"), [(WIDE, 1.62), (NARROW, 1.4)])
def test_extremes_lie_within_three_median_deviations_and_a_tenth_of_the_range(lie: Tensor, high: float) -> None:
    """WIDE: m = 1.2, |x − m| = 0.2, 0.1, 0, 0.1, huge, the usual range 1.2: 1.2 + 3·0.1 + 0.12. NARROW: nothing is cut."""
    honest = [1.0, 1.1, 1.2, 1.3] if lie is WIDE else [1.0, 1.1, 1.3, 1.4]
    seen = merged_seen([*({"a": statistics(x)} for x in honest), {"a": lie}], images=10)
    assert float(ranges_of(seen)["a"].high) == pytest.approx(high)


def test_statistics_of_devices_that_are_alike_keep_their_bytes() -> None:
    parts = [statistics(x) for x in (1.0, 1.1, 1.2, 1.3, 1.4)]
    assert torch.equal(merged_seen([{"a": part} for part in parts], images=10)["a"], merge_seen(parts))


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize("rule", ["minmax", "cover", "lsq", "running"])
@pytest.mark.parametrize("lie", [WIDE, NARROW], ids=["wide", "narrow"])
def test_two_of_ten_do_not_take_the_levels_away(rule: str, lie: Tensor) -> None:
    def change(question: Message, answer: Message) -> list[Message]:
        if question.metadata.message_type == "query.ranges":
            sites = ("1.input_quantizer", "3.input_quantizer")
            content = RecordDict({**answer.content, "seen": to_record(dict.fromkeys(sites, lie))})
            return [Message(content, reply_to=question)]
        return [answer]

    def steps(hostile: tuple[int, ...]) -> dict[str, Tensor]:
        grid = LocalGrid(nodes(10), faults=dict.fromkeys(hostile, change))
        config = small("variant.sites=WA", "split.clients=10", "cohort=10", f"ranges.activations={rule}")
        return {site: values for site, values in fleet(config, grid).start()[1].steps.items() if "input" in site}

    honest, lied = steps(()), steps((3, 7))
    for site in honest:
        assert 0.65 < float((lied[site] / honest[site]).mean()) < 1.6, site
