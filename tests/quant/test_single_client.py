"""One client alone: all weights rounded in one operation, with the numbers of the sites that round one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from anybit.quant.grid import BITS, Grid, Transform, Width, pseudo_noise, quantize, rounding
from anybit.quant.single_client import HostGrid, SingleClientModel, on_grid, rounded
from anybit.quant.sites import SiteOptions, bind, prepare, step_shapes


def test_on_grid() -> None:
    """Δ = 0.5 and levels −2 … 1: halves go to even, and the derivative is 0 where a level is cut off."""
    x = torch.tensor([-2.0, -1.25, -1.0, -0.25, 0.2, 0.3, 0.75, 0.8, float("nan")])
    y, inside = on_grid(x, torch.tensor(0.5), -2.0, 1.0)
    assert y[:-1].tolist() == [-1.0, -1.0, -1.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert y[-1].isnan()
    assert inside.tolist() == [0, 1, 1, 1, 1, 1, 0, 0, 0]


def test_on_half_integers() -> None:
    """Δ = 0.5 and levels −1.5 … 1.5: the derivative is 0 outside of ±1, not of ±0.75."""
    x = torch.tensor([-1.01, -0.99, -0.5, 0.0, 0.2, 0.5, 0.99, 1.01, float("nan")])
    y, inside = on_grid(x, torch.tensor(0.5), -1.5, 1.5)
    assert y[:-1].tolist() == [-0.75, -0.75, -0.75, 0.25, 0.25, 0.25, 0.75, 0.75]
    assert inside.tolist() == [0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_tensors_round_together_as_each_does_by_itself() -> None:
    """Other shapes, limits, and steps per channel; the gradient by `quantize` goes through a product and a quotient."""
    torch.manual_seed(0)
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((3, 2, 2, 2), (5, 4), (7,), (40,), (4, 9))]
    grids = [HostGrid(torch.tensor(0.3), -2.0, 1.0, on_grid), HostGrid(torch.rand(5, 1) + 0.1, -3.0, 3.0, on_grid),
             HostGrid(torch.tensor(0.05), -8.0, 7.0, on_grid), HostGrid(torch.tensor(0.25), -3.5, 3.5, on_grid),
             HostGrid(torch.rand(4, 1) + 0.1, -1.5, 1.5, on_grid)]
    factors = [torch.randn(x.shape) for x in leaves]
    together, each = rounded(grids, leaves), [grid(x) for grid, x in zip(grids, leaves, strict=True)]
    reference = [quantize(x, Grid(g.step, torch.tensor(g.low), torch.tensor(g.high)))
                 for g, x in zip(grids, leaves, strict=True)]
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(together, each, reference, strict=True))
    a, b, c = (torch.autograd.grad(ys, leaves, factors) for ys in (together, each, reference))
    assert all(bool((g == 0).any()) for g in a)
    assert all(torch.equal(x, y) and torch.allclose(x, z) for x, y, z in zip(a, b, c, strict=True))


class Net(nn.Module):
    """A layer that is called twice, one whose weight is also read as it is, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.read, self.idle = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.read(self.twice(torch.relu(self.twice(x)))) + self.read.weight.sum(1)
        return out


@pytest.mark.parametrize("options", [SiteOptions(), SiteOptions(per_channel=True), SiteOptions(first_last_bits=8),
                                     SiteOptions("centred", "auto", one_sided=("read",))])
@pytest.mark.parametrize("width", [Width(2, 32), Width(4, 3), Width(32, 4), Width(32, 32)])
@pytest.mark.parametrize("transform", [rounding, pseudo_noise])
def test_alone_gives_what_bound_buffers_give(options: SiteOptions, width: Width, transform: Transform) -> None:
    """Value and gradients, in double precision; a width again, after another one, gives the same."""
    torch.manual_seed(0)
    model = prepare(Net().double(), transform, transform, options)
    w = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
    steps = {site: torch.rand(len(BITS), *shape).double() * 0.2 + 0.1
             for site, shape in step_shapes(Net(), options).items()}
    x, more = torch.randn(6, 4).double(), {"rows": torch.ones(6), "key": torch.tensor(0), "count": torch.tensor(0)}
    expected = torch.func.functional_call(model, {**w, **bind(model, steps, torch.tensor(width), **more)}, (x,))
    alone = SingleClientModel(prepare(Net().double(), transform, transform, options))
    here, there = alone.at(width, steps), alone.at(Width(3, 8), steps)
    first, other, again = (model(w, steps, x, **more)[0] for model in (here, there, here))
    assert torch.allclose(first, expected, atol=1e-12)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    gradients = [torch.autograd.grad(y.square().sum(), list(w.values()), materialize_grads=True) for y in (expected, again)]
    for name, a, b in zip(w, *gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-12), name
        assert bool(a.any()) != name.startswith("idle"), name
