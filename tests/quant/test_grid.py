from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from anybit.errors import ConfigError
from anybit.quant.grid import (
    BITS,
    Grid,
    Width,
    bounds,
    codes,
    levels,
    limits,
    nearest,
    pseudo_noise,
    quantize,
    rescaled,
    select,
)
from anybit.randomness import uniform


def grid_of(bits: int, step: float, name: str = "full") -> Grid:
    return Grid(torch.tensor(step), *limits(torch.tensor(bits), name))  # type: ignore[arg-type]


def test_two_bits_by_hand() -> None:
    x = torch.tensor([-2.0, -0.8, -0.3, 0.2, 0.4, 0.9], requires_grad=True)
    y = quantize(x, grid_of(2, 0.5))
    assert y.tolist() == [-1.0, -1.0, -0.5, 0.0, 0.5, 0.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]  # −2 and 0.9 round to levels outside −2 … 1


def test_step_gradient_is_that_of_learned_step_size_quantization() -> None:
    step = torch.tensor(0.5, requires_grad=True)
    x = torch.tensor([0.3, -5.0, 5.0])
    quantize(x, Grid(step, *limits(torch.tensor(2), "full"))).sum().backward()
    assert step.grad is not None
    # inside: round(x/Δ) − x/Δ = 1 − 0.6; outside: the limit itself, −2 and 1
    assert float(step.grad) == pytest.approx(0.4 - 2 + 1)


@pytest.mark.parametrize(("name", "expected"), [("full", (-8, 7, 15)), ("narrow", (-7, 7, 14)), ("unsigned", (0, 15, 15)),
                                                ("centred", (-7.5, 7.5, 16))])
def test_limits_at_four_bits(name: str, expected: tuple[float, float, int]) -> None:
    low, high = limits(torch.tensor(4), name)  # type: ignore[arg-type]
    assert (low, high, levels(torch.tensor(4), name)) == expected  # type: ignore[arg-type]


def test_half_integer_levels_by_hand() -> None:
    """2 bits, Δ = 0.5: ±0.25 and ±0.75. Ties go to even below the level: 0 → 0.25, 0.5 → 0.25, −0.5 → −0.75."""
    x = torch.tensor([-9.0, -1.01, -0.99, -0.5, -0.1, 0.0, 0.1, 0.5, 0.6, 0.99, 1.01, 9.0], requires_grad=True)
    grid = grid_of(2, 0.5, "centred")
    y = quantize(x, grid)
    assert y.tolist() == [-0.75, -0.75, -0.75, -0.75, -0.25, 0.25, 0.25, 0.25, 0.75, 0.75, 0.75, 0.75]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]  # 0 outside of ±2^(b−1)·Δ = ±1, half a step beyond ±0.75
    assert codes(y.detach(), grid).tolist() == [0, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3, 3]
    assert nearest(torch.tensor([-1.01, 9.1]), grid).tolist() == [-2.5, 18.5]


def test_the_centred_grid_has_no_zero_up_to_four_bits_and_is_narrow_above() -> None:
    bits = torch.tensor(BITS)
    centred, narrow = limits(bits, "centred"), limits(bits, "narrow")
    assert centred[1].tolist() == [1.5, 3.5, 7.5, 15, 31, 63, 127]
    assert torch.equal(centred[0], -centred[1])
    assert all(torch.equal(a[3:], b[3:]) for a, b in zip(centred, narrow, strict=True))
    assert bounds(bits, "centred")[1].tolist() == [2, 4, 8, 15, 31, 63, 127]
    assert levels(bits, "centred").tolist() == [4, 8, 16, 30, 62, 126, 254]
    rounded = [quantize(torch.linspace(-1, 1, 9), grid_of(b, 0.3, "centred")) for b in BITS]
    assert [bool((x == 0).any()) for x in rounded] == [False] * 3 + [True] * 4
    assert bounds(torch.tensor(3), "full") == (-4, 3)
    assert bounds(torch.tensor(3), "unsigned") == (0, 7)


@given(st.lists(st.floats(0.0625, 5, width=32), min_size=1, max_size=20), st.integers(2, 8), st.floats(0.05, 2))
def test_the_centred_grid_has_no_bias(values: list[float], bits: int, step: float) -> None:
    """Q(−x) = −Q(x) but on ties, so symmetric weights keep their mean 0; on the full grid what is clipped leans down."""
    x = torch.tensor(values, dtype=torch.float64)
    assume(bool(((x / step % 0.5 - 0.25).abs() < 0.249).all()))
    grid = grid_of(bits, step, "centred")
    both = quantize(torch.cat([x, -x]), grid)
    assert torch.equal(both[:len(x)], -both[len(x):])
    assert float(both.sum()) == pytest.approx(0, abs=1e-9)
    assert float(quantize(torch.tensor([-9.0, 9.0]), grid_of(2, 1.0)).mean()) == -0.5


def test_fingerprint_of_the_rescaled() -> None:
    """From 2 bits the clip limits −2Δ₂ and Δ₂ become −1.506Δ₂ and 1.494Δ₂ at 8 bits: why QAT(2) collapses there."""
    step = rescaled(torch.tensor(1.0), 2, torch.tensor(8), "full")
    low, high = limits(torch.tensor(8), "full")
    assert float(step * low) == pytest.approx(-1.506, abs=5e-4)
    assert float(step * high) == pytest.approx(1.494, abs=5e-4)
    assert float(step * (high - low)) == pytest.approx(3.0)  # the range (2^b − 1)·Δ is kept


@given(st.integers(2, 8), st.integers(2, 8), st.sampled_from(["full", "narrow", "unsigned", "centred"]),
       st.floats(1e-3, 1e3))
def test_step_rule_there_and_back(a: int, b: int, name: str, step: float) -> None:
    there = rescaled(torch.tensor(step, dtype=torch.float64), b, torch.tensor(a), name)  # type: ignore[arg-type]
    back = rescaled(there, a, torch.tensor(b), name)  # type: ignore[arg-type]
    assert float(back) == pytest.approx(step)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.integers(2, 8), st.floats(0.01, 10),
       st.sampled_from(["full", "centred"]))
def test_quantized_values_lie_on_the_grid_and_stay_there(values: list[float], bits: int, step: float, name: str) -> None:
    grid = grid_of(bits, step, name)
    x = torch.tensor(values)
    y = quantize(x, grid)
    number = y / grid.step
    assert torch.allclose(number, nearest(y, grid), atol=1e-4)
    assert torch.allclose((codes(x, grid) + grid.low) * grid.step, y)
    assert bool((number >= grid.low - 1e-4).all() and (number <= grid.high + 1e-4).all())
    assert torch.allclose(quantize(y, grid), y)
    inside = (x >= grid.low * grid.step) & (x <= grid.high * grid.step)
    assert bool(((y - x).abs()[inside] <= step / 2 * (1 + 1e-4) + 1e-5).all())


def test_every_client_of_a_vmapped_cohort_has_its_own_bits() -> None:
    table = torch.rand(len(BITS)) + 0.1
    x = torch.randn(4, 50)
    bits = torch.tensor([2, 5, 8, 32])

    def one(x: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
        step = select(table, bits)
        y = quantize(x, Grid(torch.where(step > 0, step, 1.0), *limits(bits, "full")))
        return torch.where(step > 0, y, x)

    together = torch.func.vmap(one)(x, bits)
    for i, b in enumerate(bits.tolist()):
        alone = x[i] if b == 32 else quantize(x[i], Grid(table[BITS.index(b)], *limits(torch.tensor(b), "full")))
        assert torch.equal(together[i], alone)


def test_pseudo_noise_is_uniform_within_half_a_step() -> None:
    x = torch.zeros(100_000)
    noise = pseudo_noise(x, grid_of(2, 0.5), lambda: uniform(torch.tensor(11), torch.tensor(0), 0, x.shape))
    assert float(noise.abs().max()) <= 0.25
    assert float(noise.mean()) == pytest.approx(0, abs=2e-3)
    assert float(noise.var()) == pytest.approx(0.5**2 / 12, rel=0.02)


@pytest.mark.parametrize(("text", "width"), [("W4", (4, 32)), ("A3", (32, 3)), ("WA2", (2, 2)), ("W4A8", (4, 8)),
                                             ("fp32", (32, 32)), ("W32", (32, 32))])
def test_widths_are_read(text: str, width: tuple[int, int]) -> None:
    assert Width.parse(text) == width
    assert Width.parse(str(Width.parse(text))) == width


@pytest.mark.parametrize("text", ["", "4", "W", "W9", "W4A1", "B4", "W4 A8", "FP4"])
def test_widths_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError):
        Width.parse(text)
