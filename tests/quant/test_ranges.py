from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anybit.errors import RunError
from anybit.quant.grid import BITS, Grid, GridName, bounds, limits, quantize
from anybit.quant.ranges import (
    CANDIDATES,
    StepTable,
    all_bits,
    best_steps,
    candidate_steps,
    cover_steps,
    minmax_steps,
    squared_errors,
    weight_range,
    weight_steps,
)

GRIDS: list[GridName] = ["full", "narrow", "unsigned", "centred"]


def error(x: Tensor, step: Tensor, bits: int) -> float:
    return float(((quantize(x, Grid(step, *limits(torch.tensor(bits), "full"))) - x) ** 2).sum())


def test_min_max_by_hand() -> None:
    steps = minmax_steps(torch.tensor(-1.0), torch.tensor(2.0), "full")
    assert steps.tolist() == pytest.approx([3 / (2**b - 1) for b in BITS])


def test_ranges_of_half_integer_levels_reach_half_a_step_further() -> None:
    """[−1, 3] in 4, 8, 16 and then 30, 62, … steps; to clip nothing, 3 must lie within 2, 4, 8 and then 15, 31, … steps."""
    low, high = torch.tensor(-1.0), torch.tensor(3.0)
    assert minmax_steps(low, high, "centred").tolist() == pytest.approx([4 / n for n in (4, 8, 16, 30, 62, 126, 254)])
    assert cover_steps(low, high, "centred").tolist() == pytest.approx([3 / n for n in (2, 4, 8, 15, 31, 63, 127)])


def test_root_mean_squares_by_hand() -> None:
    """rms(1, −7) = 5, so ±10 with spread 2; a channel of zeros gets the step size of a constant 0."""
    w = torch.tensor([[1.0, -7.0], [0.0, 0.0]])
    centred = weight_steps(w[:1], "rms", "centred", spread=2.0)
    assert centred.tolist() == pytest.approx([20 / n for n in (4, 8, 16, 30, 62, 126, 254)])
    assert weight_steps(w[:1], "rms", "full", spread=2.0).tolist() == pytest.approx([20 / (2**b - 1) for b in BITS])
    channels = weight_steps(w, "rms", "narrow", per_channel=True, spread=2.0)
    assert channels[:, 0, 0].tolist() == pytest.approx([20 / (2**b - 2) for b in BITS])
    assert channels[:, 1, 0].tolist() == [1] * len(BITS)


def test_lsq_start_by_hand() -> None:
    w = torch.tensor([[-1.0, 2.0], [3.0, -2.0]])
    assert weight_steps(w, "lsq", "full").tolist() == pytest.approx([2 * 2 / (2 ** (b - 1) - 1) ** 0.5 for b in BITS])


@given(st.floats(-10, 10), st.floats(0, 10), st.sampled_from(["full", "narrow", "centred"]))
def test_cover_clips_nothing_and_no_smaller_step_would(low: float, size: float, name: str) -> None:
    bottom, top = torch.tensor(low), torch.tensor(low + size)
    for b, step in zip(BITS, cover_steps(bottom, top, name), strict=True):  # type: ignore[arg-type]
        least, most = bounds(torch.tensor(b), name)  # type: ignore[arg-type]
        assert float(step * least) <= low + 1e-4
        assert float(step * most) >= low + size - 1e-4
        if max(abs(low), abs(low + size)) > 1e-3 and size > 0:
            tight = min(float(bottom - step * least) if low < 0 else 9e9,
                        float(step * most - top) if low + size > 0 else 9e9)
            assert tight == pytest.approx(0, abs=1e-4)


@given(st.integers(0, 10_000), st.sampled_from([2, 3, 4, 8]))
def test_mse_is_never_worse_than_min_max(seed: int, bits: int) -> None:
    torch.manual_seed(seed)
    w = torch.randn(60) * torch.rand(1) * 5
    i = BITS.index(bits)
    best, plain = weight_steps(w, "mse", "full")[i], weight_steps(w, "minmax", "full")[i]
    assert error(w, best, bits) <= error(w, plain, bits) * (1 + 1e-5)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("name", GRIDS)
def test_errors_by_level_are_those_of_quantizing_every_value(name: GridName, per_channel: bool) -> None:
    """Values on level edges among them: both neighbours are equally far."""
    torch.manual_seed(0)
    x = torch.cat([torch.randn(3, 20, dtype=torch.float64), torch.arange(-4, 4, dtype=torch.float64).repeat(3, 1) / 8], 1)
    candidates = candidate_steps(*weight_range(x, per_channel), name)
    errors = squared_errors(x, candidates, name)
    for steps, found in zip(candidates[::10], errors[::10], strict=True):
        for bits, step, error in zip(all_bits(x.device), steps, found, strict=True):
            gap = (quantize(x, Grid(step, *limits(bits, name))) - x).square()
            assert torch.allclose(error, gap.sum(1, keepdim=True) if per_channel else gap.sum(), rtol=1e-12)


def old_ladder(w: Tensor) -> Tensor:
    """The best of 1 %, 2 %, … 150 % of min-max, as up to version 0.2."""
    steps = minmax_steps(*weight_range(w, False), "full")
    candidates = (torch.arange(1, 151) / 100).reshape(-1, 1) * steps
    return best_steps(candidates, squared_errors(w, candidates, "full"))


def test_the_ladder_goes_on_where_values_have_one_sign() -> None:
    """0 and 1 on −2 … 1: min-max gives Δ = 1/3, and Δ = 1, three times that, has no error."""
    w = torch.tensor([0.0, 1.0]).repeat(9)
    candidates = candidate_steps(*weight_range(w, False), "full")
    assert candidates.shape == (CANDIDATES, len(BITS))
    assert (candidates[-1] / candidates[99]).tolist() == pytest.approx([(2**b - 1) / (2 ** (b - 1) - 1) for b in BITS])
    assert bool((candidates.diff(dim=0) >= 0).all())
    found, old = weight_steps(w, "mse", "full"), old_ladder(w)
    assert float(old[0]) == pytest.approx(0.5)
    assert float(found[0]) == pytest.approx(1)
    assert error(w, found[0], 2) < 1e-9 < 2 < error(w, old[0], 2)


@given(st.integers(0, 10_000), st.booleans())
def test_steps_within_the_old_ladder_keep_their_bytes(seed: int, one_sided: bool) -> None:
    torch.manual_seed(seed)
    w = torch.randn(60).relu() if one_sided else torch.randn(60)
    for bits, new, old in zip(BITS, weight_steps(w, "mse", "full"), old_ladder(w), strict=True):
        if not torch.equal(new, old):
            assert new > 1.5 * minmax_steps(*weight_range(w, False), "full")[BITS.index(bits)]
            assert error(w, new, bits) < error(w, old, bits)
        assert one_sided or bits < 4 or torch.equal(new, old)


def test_mse_finds_the_step_of_values_that_lie_on_a_grid() -> None:
    w = torch.tensor([-2.0, -1.0, 0.0, 1.0]).repeat(10) * 0.3
    assert float(weight_steps(w, "mse", "full")[0]) == pytest.approx(0.3, rel=0.01)


def test_per_channel_steps_are_those_of_each_channel_alone() -> None:
    torch.manual_seed(0)
    w = torch.randn(3, 2, 3, 3) * torch.tensor([0.1, 1.0, 10.0]).reshape(3, 1, 1, 1)
    for rule in ("minmax", "cover", "mse", "lsq", "rms"):
        steps = weight_steps(w, rule, "full", per_channel=True)  # type: ignore[arg-type]
        assert steps.shape == (7, 3, 1, 1, 1)
        for c in range(3):
            assert torch.allclose(steps[:, c].flatten(), weight_steps(w[c], rule, "full"))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["minmax", "cover", "mse", "lsq", "rms"])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("value", [0.0, 0.7, -0.7])
def test_a_constant_tensor_has_a_usable_step(rule: str, grid: str, value: float) -> None:
    steps = weight_steps(torch.full((5,), value), rule, grid)  # type: ignore[arg-type]
    assert bool((steps > 0).all() and torch.isfinite(steps).all())


def test_a_table_survives_json_exactly() -> None:
    import json

    torch.manual_seed(1)
    table = StepTable({"a": torch.rand(7), "b": torch.rand(7, 3, 1, 1)})
    again = StepTable.from_json(json.loads(json.dumps(table.to_json())), {"a": (), "b": (3, 1, 1)})
    assert all(torch.equal(table.steps[site], again.steps[site]) for site in ("a", "b"))


@pytest.mark.parametrize("damage", [{}, {"a": {}}, {"a": 3}, {"a": {str(b): "x" for b in BITS}},
                                    {"a": {str(b): [1, 2] for b in BITS}}, {"a": {str(b): -1.0 for b in BITS}},
                                    {"a": {str(b): float("nan") for b in BITS}}])
def test_a_damaged_table_is_named(damage: object) -> None:
    with pytest.raises(RunError, match="step table: site 'a'"):
        StepTable.from_json(damage, {"a": ()})


def test_table_by_rule_keeps_the_range_of_its_base() -> None:
    table = StepTable({"s": torch.tensor([9.0, 9, 4, 9, 9, 9, 9])}).by_rule(4, {"s": "full"})
    assert table.steps["s"].tolist() == pytest.approx([4 * 15 / (2**b - 1) for b in BITS])
