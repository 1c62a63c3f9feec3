"""The native kernels against the library's operations in double precision, and in the layers of a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from anybit import randomness
from anybit.kernels.native import operations, use_native
from anybit.kernels.native.layers import NativeMaxPool2d
from anybit.kernels.native.operations import conv2d, group_norm, max_pool2d, on_grid, subsample
from anybit.layers import GroupNormReLU
from anybit.models import lenet5, resnet20
from anybit.quant import single_client as alone
from anybit.quant.grid import GridName, ends
from anybit.quant.sites import prepare

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("native")]
many = settings(max_examples=60, deadline=None, derandomize=True)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The value and the gradients by every input."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), leaves)]


def assert_same(ours: list[Tensor], reference: list[Tensor], most: float = 5e-6) -> None:
    for number, (a, b) in enumerate(zip(ours, reference, strict=True)):
        assert a.shape == b.shape
        assert float((a.double() - b).norm()) <= most * float(b.norm()) + 1e-30, number


def assert_convolution(images: int, inner: int, height: int, width: int, outer: int, kernel: int, stride: int,
                       padding: int) -> None:
    torch.manual_seed(0)
    x, w, bias = torch.randn(images, inner, height, width), torch.randn(outer, inner, kernel, kernel), torch.randn(outer)
    assert_same(gradients(lambda x, w, b: conv2d(x, w, b, stride, padding), x, w, bias),
                gradients(lambda x, w, b: F.conv2d(x, w, b, stride, padding), x.double(), w.double(), bias.double()))


@many
@given(st.integers(1, 70), st.integers(1, 20), st.integers(5, 9), st.integers(5, 9), st.integers(1, 20), st.integers(1, 5),
       st.integers(1, 2), st.integers(0, 4))
def test_convolution(images: int, inner: int, height: int, width: int, outer: int, kernel: int, stride: int,
                     padding: int) -> None:
    assert_convolution(images, inner, height, width, outer, kernel, stride, min(padding, kernel - 1))


@many
@given(st.integers(1, 140), st.integers(8, 20), st.integers(1, 11), st.integers(1, 11), st.integers(8, 20),
       st.integers(1, 2))
def test_convolution_by_winograd(images: int, inner: int, height: int, width: int, outer: int, padding: int) -> None:
    """3×3 with stride 1 and 8 channels or more; tiles of 4×4 that do not fill the image, or do not fit into it."""
    assume(min(height, width) + 2 * padding >= 3)
    assert_convolution(images, inner, height, width, outer, 3, 1, padding)


@pytest.mark.parametrize("shape", [(64, 3, 32, 32, 6, 5, 1, 0), (52, 6, 14, 14, 16, 5, 1, 0), (64, 16, 32, 32, 16, 3, 1, 1),
                                   (20, 64, 8, 8, 64, 3, 1, 1), (20, 16, 32, 32, 32, 3, 2, 1), (3, 33, 8, 8, 40, 1, 2, 0)])
def test_convolution_of_known_networks(shape: tuple[int, ...]) -> None:
    assert_convolution(*shape)


@many
@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(["one step", "per channel", "image last", "transposed"]),
       st.integers(2, 8), st.sampled_from(["full", "centred"]))
def test_rounding_gives_the_bits_of_the_library(outer: int, inner: int, form: str, bits: int, grid: GridName) -> None:
    """Values between two levels, far outside, infinite and missing; in memory as a kernel takes it or not."""
    torch.manual_seed(outer)
    x = torch.randn(outer, inner, 3, 2) * 3
    x.view(-1)[:6] = torch.tensor([0.25, 0.75, -0.25, float("inf"), -float("inf"), float("nan")])
    x = {"image last": x.permute(3, 0, 1, 2), "transposed": x.transpose(0, 1)}.get(form, x)
    step = torch.rand(outer, 1, 1, 1) + 0.01 if form == "per channel" else torch.tensor(0.5)
    for ours, reference in zip(*(f(x, step, *ends(bits, grid)) for f in (on_grid, alone.on_grid)), strict=True):
        assert [s for s, n in zip(ours.stride(), x.shape, strict=True) if n > 1] == \
            [s for s, n in zip(reference.stride(), x.shape, strict=True) if n > 1]
        assert ours.contiguous().numpy().tobytes() == reference.contiguous().numpy().tobytes()


@many
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**4), st.integers(0, 20), st.integers(0, 20))
def test_draws_are_the_bits_of_the_library(key: int, step: int, site: int, rows: int, columns: int) -> None:
    ours, reference = (f(torch.tensor(key), torch.tensor(step), site, (rows, columns))
                       for f in (operations.uniform, randomness.uniform))
    assert ours.dtype == reference.dtype
    assert torch.equal(ours, reference)


@many
@given(st.integers(1, 70), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6), st.booleans(),
       st.booleans())
def test_norm(images: int, groups: int, each: int, height: int, width: int, has_shortcut: bool, relu: bool) -> None:
    """ReLU passes what is above 0 in the reference too, which is kept from lying within a rounding of 0."""
    torch.manual_seed(0)
    shape = (images, groups * each, height, width)
    x, gamma, beta = torch.randn(shape) * 2 + 3, torch.rand(shape[1]) + 0.5, torch.randn(shape[1])
    shortcut = torch.randn(shape) if has_shortcut else None
    assume(each * height * width > 3)  # the gradient through the norm of one or two values is rounding errors

    def reference(x: Tensor, gamma: Tensor, beta: Tensor, more: Tensor | None = None) -> Tensor:
        y = F.group_norm(x, groups, gamma, beta, 1e-5)
        y = y if more is None else y + more
        return F.relu(y) if relu else y

    with torch.no_grad():
        plain = F.group_norm(x.double(), groups, gamma.double(), beta.double(), 1e-5)
        plain = plain if shortcut is None else plain + shortcut
        assume(not relu or float(plain.abs().min()) > 1e-5)
    more = () if shortcut is None else (shortcut,)
    ours = gradients(lambda x, gamma, beta, s=None: group_norm(x, s, gamma, beta, groups, 1e-5, relu), x, gamma, beta, *more)
    assert_same(ours, gradients(reference, *(t.double() for t in (x, gamma, beta, *more))), 5e-5)


@many
@given(st.integers(1, 70), st.integers(1, 5), st.integers(3, 9), st.integers(3, 9), st.integers(1, 3), st.integers(1, 4),
       st.booleans())
def test_pool_with_ties(images: int, channels: int, height: int, width: int, kernel: int, stride: int, relu: bool) -> None:
    """Small integers: windows have several maxima, of which the first gets the gradient; they overlap or leave gaps."""
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (images, channels, height, width)).float()
    ours = gradients(lambda x: max_pool2d(x, kernel, stride, relu), x)
    reference = gradients(lambda x: F.max_pool2d(F.relu(x) if relu else x, kernel, stride), x)
    assert torch.equal(ours[0], reference[0])
    assert torch.allclose(ours[1], reference[1], atol=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("channels", [3, 16])
def test_what_is_not_finite_stays_so(value: float, channels: int) -> None:
    """A loss that is not finite ends a run: no kernel may swallow one."""
    x = torch.randn(20, channels, 8, 8)
    x[13, 1, 5, 5] = value
    w = torch.randn(8, channels, 3, 3)
    assert not torch.isfinite(conv2d(x, w, None, 1, 1)[13]).all()
    assert torch.isfinite(conv2d(x, w, None, 1, 1)[[*range(13), *range(14, 20)]]).all()
    assert not torch.isfinite(conv2d(torch.randn_like(x), w.index_fill(0, torch.tensor([1]), value), None, 1, 1)).all()
    ones = torch.ones(channels)
    assert not torch.isfinite(group_norm(x, None, ones, ones, 1, 1e-5)[13]).all()
    assert not torch.isfinite(gradients(lambda x, w: conv2d(x, w, None, 1, 1), x, w)[2]).all()
    pooled, reference = max_pool2d(x, 2, 2), F.max_pool2d(x, 2, 2)
    assert torch.equal(pooled.nan_to_num(99), reference.nan_to_num(99))
    assert torch.equal(max_pool2d(x, 2, 2, relu=True).nan_to_num(99), F.relu(reference).nan_to_num(99))


def test_subsample() -> None:
    x = torch.randn(5, 4, 7, 6)
    ours = gradients(lambda x: subsample(x, 2, 1, 2), x)
    reference = gradients(lambda x: F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 2)), x)
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    act, pool = nn.ReLU(), nn.MaxPool2d(2)
    return {
        "lenet5": lenet5(), "resnet20": resnet20(), "resnet20 B": resnet20(shortcut="B"),
        "in place": nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                                  nn.ReLU(inplace=True), nn.Conv2d(8, 9, 3), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2),
                                  nn.Flatten(), nn.Linear(324, 10)),
        "shared": nn.Sequential(nn.Conv2d(3, 4, 3), act, pool, nn.Conv2d(4, 4, 3), pool, act, nn.Flatten(),
                                nn.Linear(144, 10)),
        "others": nn.Sequential(nn.Conv2d(3, 4, (3, 1)), nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3, dilation=2),
                                nn.ReLU(), nn.MaxPool2d(2, padding=1), nn.MaxPool2d((2, 1)), nn.MaxPool2d(2, ceil_mode=True),
                                nn.MaxPool2d(2, dilation=2), nn.GroupNorm(2, 4, affine=False), nn.AdaptiveAvgPool2d(1),
                                nn.Flatten(), nn.Linear(4, 10)),
        "no batch": nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Flatten(0, 1), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2),
                                  nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 10)),
    }


def decide_alike(fast: nn.Module, exact: nn.Module) -> None:
    """Let the reference's ReLUs follow ours within a rounding of 0: one of a million that does not is seen in gradients."""
    passed: list[Tensor] = []

    def follow(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> Tensor:
        y = F.group_norm(x, groups, gamma, beta, eps)
        y = y if shortcut is None else y + shortcut
        return y * torch.where(y.abs() < 1e-5, passed.pop(0), y > 0)

    ours, reference = ([m for m in model.modules() if isinstance(m, GroupNormReLU)] for model in (fast, exact))
    for layer, like in zip(ours, reference, strict=True):
        layer.register_forward_hook(lambda layer, inputs, output: passed.append(output > 0))
        like.kernel = follow


@pytest.mark.parametrize("name", models())
def test_a_model_computes_the_same(name: str) -> None:
    """Value and gradients of all parameters, against double precision; the model that was given is left alone."""
    model = models()[name]
    kinds = [type(m) for m in model.modules()]
    fast, exact = prepare(model), prepare(model).double()
    use_native(fast)
    decide_alike(fast, exact)
    x = torch.randn(6, 3, 32, 32)

    def values(prepared: nn.Module, x: Tensor) -> list[Tensor]:
        y = prepared(x)
        return [y.detach(), *torch.autograd.grad(y.square().mean(), list(prepared.parameters()))]

    assert_same(values(fast, x), values(exact, x.double()), 1e-4)
    assert [type(m) for m in model.modules()] == kinds


def test_what_the_kernels_do_not_take_goes_to_the_library() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)).double()
    fast, x = prepare(model), torch.randn(2, 3, 9, 9).double()
    use_native(fast)
    assert torch.equal(fast(x), model(x))
    assert fast(x[:0]).shape == (0, 8, 3, 3)
    bare = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2))
    single, one = prepare(bare), x[0].float()
    use_native(single)
    assert torch.equal(single(one), bare(one))
    with pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        single(torch.randn(2, 3, 2, 2))


def test_a_relu_that_somebody_watches_is_not_left_to_the_pool() -> None:
    seen: list[Tensor] = []
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    model[1].register_forward_hook(lambda layer, inputs, output: seen.append(output))
    fast = prepare(model)
    use_native(fast)
    fast(torch.randn(2, 3, 8, 8))
    assert len(seen) == 1
    assert float(seen[0].detach().min()) == 0


def test_parts_of_a_sequence_compute_on_their_own() -> None:
    """A slice that ends with the ReLU, and the pool called by itself, as a user's forward might."""
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.part[2](-self.part[:2](x))
            return out

    model = Net()
    fast, x = prepare(model), torch.randn(5, 3, 8, 8)
    use_native(fast)
    assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_a_relu_before_a_pool_is_left_to_the_pool_where_the_chain_is_called_whole() -> None:
    inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    model = nn.Sequential(inner, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    fast, x = prepare(model), torch.randn(5, 3, 10, 10)
    use_native(fast)
    assert isinstance(fast, nn.Sequential)
    assert [type(m) for m in fast[0]][1:] == [type(m) for m in fast][1:3] == [nn.Identity, NativeMaxPool2d]  # type: ignore[arg-type]
    assert torch.allclose(fast(x), model(x), atol=1e-5)


def test_memory_is_turned_around_only_where_a_model_begins() -> None:
    """Outputs are image-last, so that the next kernel takes them as they are."""
    x = torch.randn(6, 3, 8, 8)
    y = conv2d(x, torch.randn(8, 3, 3, 3), None, 1, 1)
    norm = GroupNormReLU(2, 8)
    for value in (y, group_norm(y, y, norm.weight, norm.bias, 2, 1e-5), max_pool2d(y, 2, 2), subsample(y, 2, 0, 1)):
        assert value.permute(1, 2, 3, 0).is_contiguous()
