"""The kernels as differentiable operations. Tensors keep their shape (image, channel, row, column); memory is image-last.

Inputs that a kernel does not take (other types, empty batches) go to the library.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from anybit.kernels.native.compiled import library
from anybit.quant import single_client


def fits(*tensors: Tensor | None) -> bool:
    """Tell if a kernel takes these tensors: float32 in a CPU's memory, and at least one value."""
    return all(t is None or (t.dtype == torch.float32 and t.device.type == "cpu" and t.numel() > 0) for t in tensors)


def _inner(x: Tensor) -> Tensor:
    """Turn (image, channel, row, column) into contiguous (channel, row, column, image), copied only if necessary."""
    inner = x.permute(1, 2, 3, 0)
    if inner.is_contiguous():
        return inner
    # As a matrix if that needs no copy, because the library transposes matrices fast.
    return x.flatten(1).t().contiguous().view(inner.shape) if x.is_contiguous() else inner.contiguous()


def _empty(images: int, channels: int, rows: int, columns: int) -> Tensor:
    """Make an image-last tensor that is no view, so that a ReLU in place can overwrite it."""
    return torch.empty_strided((images, channels, rows, columns),
                               (1, rows * columns * images, columns * images, images))


def _like(inner: Tensor) -> Tensor:
    channels, rows, columns, images = inner.shape
    return _empty(images, channels, rows, columns)


_ConvolutionSizes, _PoolSizes, _DrawSizes = ctypes.c_int64 * 8, ctypes.c_int64 * 7, ctypes.c_int64 * 4


class _NormSizes(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in ("images", "channels", "pixels", "groups", "relu")),
                ("eps", ctypes.c_double))


class _GridSizes(ctypes.Structure):
    _fields_ = (*((name, ctypes.c_int64) for name in ("channels", "size")),
                *((name, ctypes.c_double) for name in ("low", "high")))


@functools.lru_cache(maxsize=2048)
def _sizes(kind: Callable[..., Any], *values: float) -> Any:
    return kind(*values)


def _call(function: str, *tensors: Tensor | None, sizes: Any) -> None:
    pointers = [None if t is None else t.data_ptr() for t in tensors]
    getattr(library(), function)(*pointers, ctypes.addressof(sizes))


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        inner, w = _inner(x), w.contiguous()
        channels, rows, columns, images = inner.shape
        outputs, kernel = w.shape[0], w.shape[2]
        ctx.sizes = _sizes(_ConvolutionSizes, images, channels, rows, columns, outputs, kernel, stride, padding)
        y = _empty(images, outputs, *((side + 2 * padding - kernel) // stride + 1 for side in (rows, columns)))
        _call("conv_forward", inner, w, bias, y, sizes=ctx.sizes)
        ctx.save_for_backward(inner, w)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, (inner, w) = _inner(gradients[0]), ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = _like(inner)
            _call("conv_grad_input", g, w, dx, sizes=ctx.sizes)
        if ctx.needs_input_grad[1]:
            dw = torch.empty_like(w)
            _call("conv_grad_weight", inner, g, dw, sizes=ctx.sizes)
        if ctx.needs_input_grad[2]:
            db = torch.empty(w.shape[0])
            _call("conv_grad_bias", g, db, sizes=ctx.sizes)
        return dx, dw, db, None, None


def conv2d(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """Compute x ∗ w + bias, for square kernels."""
    if x.dim() != 4 or not fits(x, w, bias) or min(x.shape[2:]) + 2 * padding < w.shape[2]:
        return F.conv2d(x, w, bias, stride, padding)
    return cast(Tensor, _Convolution.apply(x, w, bias, stride, padding))


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float,
                relu: bool) -> Tensor:
        inner, gamma, beta = _inner(x), gamma.contiguous(), beta.contiguous()
        channels, rows, columns, images = inner.shape
        ctx.sizes = _sizes(_NormSizes, images, channels, rows * columns, groups, relu, eps)
        y, mean, rstd = _like(inner), torch.empty(groups, images), torch.empty(groups, images)
        shortcut = None if shortcut is None else _inner(shortcut)
        _call("norm_forward", inner, shortcut, gamma, beta, y, mean, rstd, sizes=ctx.sizes)
        ctx.save_for_backward(inner, y if relu and shortcut is not None else None, gamma, beta, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, (inner, y, gamma, beta, mean, rstd) = _inner(gradients[0]), ctx.saved_tensors
        dx, dgamma, dbeta = _like(inner), torch.empty_like(gamma), torch.empty_like(gamma)
        dshortcut = _like(inner) if ctx.needs_input_grad[1] else None
        _call("norm_backward", g, inner, y, gamma, beta, mean, rstd, dx, dshortcut, dgamma, dbeta, sizes=ctx.sizes)
        return dx, dshortcut, dgamma, dbeta, None, None, None


def group_norm(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float,
               relu: bool = True) -> Tensor:
    """Compute ReLU(GroupNorm(x) + shortcut), or GroupNorm(x) + shortcut."""
    if x.dim() != 4 or (shortcut is not None and shortcut.shape != x.shape) or not fits(x, shortcut, gamma, beta):
        y = F.group_norm(x, groups, gamma, beta, eps)
        y = y if shortcut is None else y + shortcut
        return F.relu(y) if relu else y
    return cast(Tensor, _Norm.apply(x, shortcut, gamma, beta, groups, eps, relu))


class _Subsampled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, before: int, after: int) -> Tensor:
        part = _inner(x)[:, ::stride, ::stride]
        channels, rows, columns, images = part.shape
        ctx.taken, ctx.shape = (stride, slice(before, before + channels)), x.shape
        y = _empty(images, before + channels + after, rows, columns).zero_()
        y.permute(1, 2, 3, 0)[ctx.taken[1]] = part
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        stride, channels = ctx.taken
        dx = _empty(*ctx.shape).zero_()
        dx.permute(1, 2, 3, 0)[:, ::stride, ::stride] = _inner(gradients[0])[channels]
        return dx, None, None, None


def subsample(x: Tensor, stride: int, before: int, after: int) -> Tensor:
    """Take every `stride`-th pixel, between new channels of zeros, and keep memory image-last, as the library would not."""
    return cast(Tensor, _Subsampled.apply(x, stride, before, after))


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: int, stride: int, relu: bool) -> Tensor:
        images, channels, rows, columns = ctx.shape = x.shape
        ctx.sizes = _sizes(_PoolSizes, images, channels, rows, columns, kernel, stride, relu)
        y = _empty(images, channels, (rows - kernel) // stride + 1, (columns - kernel) // stride + 1)
        where = torch.empty_like(y)
        _call("pool_forward", _inner(x), y, where, sizes=ctx.sizes)
        ctx.save_for_backward(y if relu else None, where)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, (y, where) = _inner(gradients[0]), ctx.saved_tensors
        dx = _empty(*ctx.shape)
        _call("pool_backward", g, y, where, dx, sizes=ctx.sizes)
        return dx, None, None, None


def max_pool2d(x: Tensor, kernel: int, stride: int, relu: bool = False) -> Tensor:
    """Compute MaxPool(x) without padding, or MaxPool(ReLU(x)), which is ReLU(MaxPool(x)) with the same gradient."""
    if x.dim() != 4 or not fits(x) or min(x.shape[2:]) < kernel:
        return F.max_pool2d(F.relu(x) if relu else x, kernel, stride)
    return cast(Tensor, _Pool.apply(x, kernel, stride, relu))


def on_grid(x: Tensor, step: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Compute (Q(x), ∂Q/∂x), one step size for x or one per first index, with the library's bits, in one pass."""
    dense = x.is_contiguous() or (step.dim() == 0 and x.dim() == 4 and x.permute(1, 2, 3, 0).is_contiguous())
    if not dense or not fits(x, step):
        return single_client.on_grid(x, step, low, high)
    y, inside, step = torch.empty_like(x), torch.empty_like(x), step.contiguous()
    sizes = _sizes(_GridSizes, step.numel(), x.numel() // step.numel(), low, high)
    _call("round_forward", x, step, y, inside, sizes=sizes)
    return y, inside


def uniform(key: Tensor, step: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """Make the draws of `anybit.randomness.uniform`, in one pass."""
    u = torch.empty(tuple(shape))
    _call("draw", u, sizes=_DrawSizes(u.numel(), int(key), int(step), site))
    return u
