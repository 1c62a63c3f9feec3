"""The Triton kernels against the library's operations, in Triton's interpreter: no GPU is needed to see them compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.layers import GroupNormReLU

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("interpreter")]
CLIENTS = 3


def gradients(function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """The value and the gradients by every input, for all clients at once."""
    def weighted(*each: Tensor) -> tuple[Tensor, Tensor]:
        y = function(*each)
        return (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum(), y
    found, y = torch.func.vmap(torch.func.grad(weighted, argnums=tuple(range(len(inputs))), has_aux=True))(*inputs)
    return [y, *found]


def assert_same(ours: list[Tensor], reference: list[Tensor]) -> None:
    for number, (a, b) in enumerate(zip(ours, reference, strict=True)):
        assert a.shape == b.shape
        assert float((a - b).norm() / b.norm()) < 2e-6, number


@pytest.mark.parametrize(("images", "inner", "side", "outer", "kernel", "stride", "padding"), [
    (2, 3, 8, 16, 3, 1, 1), (2, 16, 8, 16, 3, 1, 1), (2, 16, 8, 32, 3, 2, 1), (1, 20, 9, 50, 5, 1, 0),
    (2, 3, 9, 20, 5, 1, 0), (1, 70, 5, 80, 3, 1, 1),
    (1, 70, 5, 80, 3, 2, 1), (2, 16, 7, 16, 1, 2, 0), (3, 4, 7, 5, 3, 2, 0), (1, 2, 6, 3, 2, 1, 1),
    (2, 3, 16, 16, 7, 2, 3)])
def test_convolution(images: int, inner: int, side: int, outer: int, kernel: int, stride: int, padding: int) -> None:
    from anybit.kernels.convolution import conv2d

    torch.manual_seed(0)
    x, w = torch.randn(CLIENTS, images, inner, side, side), torch.randn(CLIENTS, outer, inner, kernel, kernel)
    assert_same(gradients(lambda x, w: conv2d(x, w, stride, padding), (x, w)),
                gradients(lambda x, w: F.conv2d(x, w, stride=stride, padding=padding), (x, w)))


@pytest.mark.parametrize(("images", "channels", "height", "width", "groups"), [
    (2, 16, 8, 8, 2), (2, 32, 5, 4, 2), (1, 20, 6, 6, 4), (1, 6, 3, 7, 3), (1, 16, 4, 8, 1), (1, 32, 4, 4, 32)])
@pytest.mark.parametrize("has_shortcut", [True, False])
def test_norm(images: int, channels: int, height: int, width: int, groups: int, has_shortcut: bool) -> None:
    from anybit.kernels.norm import norm_relu

    torch.manual_seed(0)
    shape = (CLIENTS, images, channels, height, width)
    gamma, beta = torch.randn(CLIENTS, channels), torch.randn(CLIENTS, channels)
    x, more = torch.randn(shape) + 3, (torch.randn(shape),) if has_shortcut else ()
    assert_same(gradients(lambda g, b, x, s=None: norm_relu(x, s, g, b, groups, 1e-5), (gamma, beta, x, *more)),
                gradients(lambda g, b, x, s=0.0: F.relu(F.group_norm(x, groups, g, b, 1e-5) + s), (gamma, beta, x, *more)))


@pytest.mark.parametrize("has_shortcut", [True, False])
def test_what_is_not_finite_stays_so(has_shortcut: bool) -> None:
    """A loss that is not finite ends a run: no kernel may swallow one."""
    from anybit.kernels.convolution import conv2d
    from anybit.kernels.norm import norm_relu

    x = torch.randn(2, 16, 4, 4)
    x[1, 3, 2, 2] = float("nan")
    ones = torch.ones(16)
    y = norm_relu(x, x if has_shortcut else None, ones, ones, 2, 1e-5)
    assert torch.isfinite(y[0]).all()
    assert torch.isnan(y[1, :8]).all()
    assert torch.isnan(conv2d(x, torch.randn(16, 16, 3, 3), 1, 1)[1, :, 2, 2]).all()


def test_a_model_computes_the_same_with_kernels() -> None:
    """Strided, padded, biased and unusual convolutions, norms with and without a shortcut."""
    from anybit.kernels import use_kernels
    from anybit.quant.sites import prepare

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1), GroupNormReLU(2, 8)
            self.second, self.grouped = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.Conv2d(8, 8, 3, 1, 1, groups=2)
            self.again, self.head = GroupNormReLU(2, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.norm(self.first(x))
            out: Tensor = self.head(self.again(self.grouped(self.second(x)), x).mean((2, 3)))
            return out

    torch.manual_seed(0)
    plain = prepare(Net())
    fast = prepare(Net())
    fast.load_state_dict(plain.state_dict())
    use_kernels(fast)
    assert fast.first.kernel is not None  # type: ignore[union-attr]
    assert fast.grouped.kernel is None  # type: ignore[union-attr]
    x = torch.randn(CLIENTS, 2, 3, 9, 9)
    w = {n: torch.stack([p.detach()] * CLIENTS) * 1.1 for n, p in plain.named_parameters()}

    def loss(model: nn.Module) -> Callable[..., Tensor]:
        return lambda w, x: torch.func.functional_call(model, w, (x,)).square().sum()

    ours, reference = (torch.func.vmap(torch.func.grad(loss(m)))(w, x) for m in (fast, plain))
    assert_same(list(ours.values()), list(reference.values()))


def test_what_the_kernels_do_not_hold_goes_to_the_library() -> None:
    from anybit.kernels import use_kernels
    from anybit.kernels.norm import fits

    large = nn.Sequential(GroupNormReLU(2, 16))
    x = torch.randn(1, 16, 40, 40)
    expected = large(x)
    use_kernels(large)
    assert not fits(x, 16, 2)
    assert torch.equal(large(x), expected)
    assert fits(x[..., :32, :32], 16, 2)
    assert not fits(x.double()[..., :4, :4], 16, 2)
