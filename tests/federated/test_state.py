"""Ranges that follow the weights, and weights that are kept in their ranges, by hand."""

from __future__ import annotations

import torch
from torch import nn

from anybit.federated.state import Given, between, followed, projected, trained_table
from anybit.quant.calibrate import following
from anybit.quant.grid import BITS
from anybit.quant.ranges import StepTable, weight_steps
from anybit.quant.sites import prepare

SITE = "0.weight_quantizer"
ONES = torch.ones(len(BITS))


def test_step_sizes_follow_the_root_mean_square() -> None:
    """rms(1, −7) = 5, from 2 at the start: all step sizes grow by 2.5, those of other sites stay."""
    w = {"0.weight": torch.tensor([[1.0, -7.0], [0.0, 0.0]]), "0.bias": torch.ones(2)}
    first = {"0.weight": w["0.weight"][:1]}
    steps = {SITE: torch.arange(1.0, 8.0), "1.weight_quantizer": ONES}
    now = followed(steps, {SITE: torch.tensor(2.0)}, first)
    assert now[SITE].tolist() == [2.5 * n for n in range(1, 8)]
    assert now["1.weight_quantizer"] is steps["1.weight_quantizer"]
    channels = followed({SITE: torch.ones(7, 2, 1)}, {SITE: torch.tensor([[2.0], [4.0]])}, w)[SITE]
    assert channels[:, 0].unique().tolist() == [2.5]
    assert channels[:, 1].unique().tolist() == [0], "a channel that has become zero has no scale, and is not rounded"


def test_a_client_gets_the_steps_of_its_round() -> None:
    w, strengths = {"0.weight": torch.tensor([[1.0, -7.0]])}, (torch.tensor(0.1),)
    at = Given({SITE: ONES}, strengths, {SITE: torch.tensor(2.0)}).at(w)
    assert at.step_sizes[SITE].tolist() == [2.5] * 7
    assert (at.strengths, at.start_rms) == (strengths, {})
    fixed = Given({SITE: ONES}, strengths)
    assert fixed.at(w) is fixed


def test_the_average_has_the_steps_of_its_own_scale() -> None:
    table, average = StepTable({SITE: ONES}, {SITE: torch.tensor(2.0)}), {"0.weight": torch.tensor([[1.0, -1.0]])}
    assert trained_table(table, average, {}).steps[SITE].tolist() == [0.5] * 7
    assert trained_table(table, {"0.weight": torch.tensor([[1.0, -7.0]])}, {}).steps[SITE].tolist() == [2.5] * 7
    assert trained_table(table, average, {}).start_rms == {}, "or they would follow twice"
    learned = trained_table(StepTable({SITE: ONES}), average, {SITE: torch.full((7,), 3.0).log()})
    assert torch.allclose(learned.steps[SITE], 3 * ONES)


def test_widths_at_which_nothing_was_trained_lie_between_their_neighbours() -> None:
    """Trained at 2, 4 and 8 bits: 3 halfway, 5, 6 and 7 in quarters; below and above the nearest; per channel alike."""
    logs = torch.tensor([1.0, 0.0, 2.0, 0.0, 0.0, 0.0, 4.0])
    assert between(logs).tolist() == [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    assert between(torch.tensor([0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0])).tolist() == [2.0] * 7
    assert between(torch.zeros(7)).tolist() == [0.0] * 7
    channels = torch.stack([logs, 0 * logs], 1).reshape(7, 2, 1)
    assert torch.equal(between(channels)[:, 0, 0], between(logs))
    assert between(channels)[:, 1].unique().tolist() == [0.0], "a channel that did not move, of a tensor that did"
    learned = trained_table(StepTable({SITE: ONES}), {}, {SITE: logs}).steps[SITE]
    assert torch.allclose(learned.log(), between(logs))


def test_a_weight_without_a_scale_follows_from_its_first() -> None:
    """A channel of zeros starts with the step sizes of one at rms 1: at 0 it is not rounded, at 3 it has 3 times those."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    w = {"0.weight": torch.tensor([[3.0, -4.0], [0.0, 0.0]])}
    table = following(prepare(model), w, StepTable({SITE: weight_steps(w["0.weight"], "minmax", "full", True)}), spread=2.0)
    assert torch.allclose(table.start_rms[SITE], torch.tensor([[12.5**0.5], [1.0]]))
    assert torch.allclose(followed(table.steps, table.start_rms, w)[SITE][:, 0, 0], table.steps[SITE][:, 0, 0])
    assert followed(table.steps, table.start_rms, w)[SITE][:, 1].unique().tolist() == [0]
    later = followed(table.steps, table.start_rms, {"0.weight": torch.tensor([[0.0, 5.0], [3.0, 3.0]])})[SITE]
    assert torch.allclose(later[:, 1, 0], torch.tensor([3 * 4 / (2**b - 1) for b in BITS]))


def test_weights_are_clipped_to_their_widest_range() -> None:
    """Δ = 1, ½, ¼, then 0.01. Centred: ±2 at 2, 3 and 4 bits. Full: −2 … 1, 1½, 1¾."""
    steps = torch.tensor([1, 0.5, 0.25, 0.01, 0.01, 0.01, 0.01])
    w = {"0.weight": torch.tensor([-9.0, -2.0, -1.9, 1.0, 1.75, 1.9, 9.0]), "0.bias": torch.tensor([99.0])}
    centred = projected(w, {SITE: steps}, {SITE: "centred"})
    assert centred["0.weight"].tolist() == torch.tensor([-2.0, -2.0, -1.9, 1.0, 1.75, 1.9, 2.0]).tolist()
    assert centred["0.bias"] is w["0.bias"]
    full = projected(w, {SITE: steps}, {SITE: "full"})["0.weight"]
    assert full.tolist() == torch.tensor([-2.0, -2.0, -1.9, 1.0, 1.75, 1.75, 1.75]).tolist()
    assert projected(w, {SITE: steps}, {})["0.weight"] is w["0.weight"]


def test_each_channel_is_clipped_to_its_own_range_and_one_without_a_range_is_free() -> None:
    steps = torch.stack([torch.full((2, 1), 2.0 ** -b) for b in BITS])  # ±½ centred at 2 to 4 bits, and less above
    steps[:, 1] = 0
    w = {"0.weight": torch.tensor([[-9.0, 0.4, 9.0], [-9.0, 0.4, 9.0]])}
    out = projected(w, {SITE: steps}, {SITE: "centred"})["0.weight"]
    assert out.tolist() == torch.tensor([[-0.5, 0.4, 0.5], [-9.0, 0.4, 9.0]]).tolist()
