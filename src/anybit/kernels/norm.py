"""ReLU(GroupNorm(x) + shortcut) of many clients at once: one read and one write instead of a chain of passes.

One program takes one image of one client, in channels-last order, and holds all of it. The gradient needs the input, two
moments per group and the ReLU's mask; the sums over pixels for γ and β are added up over the images outside the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from anybit.kernels.operators import channels_last, laid_out, operator

MOST = 16384
"""Most values of an image that a program can hold; larger images stay with the library's kernels."""

FORWARD, BACKWARD = 64, 32
"""Values of an image that a thread holds."""


@triton.jit
def _of_group(sums, C: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr):
    """Sum over the group of each channel, from sums per channel."""
    if C == BC:
        group = tl.sum(tl.reshape(sums, (GROUPS, BC // GROUPS)), 1)
        out = tl.reshape(tl.broadcast_to(group[:, None], (GROUPS, BC // GROUPS)), (BC,))
    else:
        c = tl.arange(0, BC)
        same = (c[:, None] // (C // GROUPS)) == (c[None, :] // (C // GROUPS))
        out = tl.sum(tl.where(same, sums[None, :], 0.0), 1)
    return out


@triton.jit
def _over_group(a, C: tl.constexpr, GROUPS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Sum over all pixels of the group of each channel; over channels first, which lie in one thread."""
    if C == BC:
        group = tl.sum(tl.sum(tl.reshape(a, (BP, GROUPS, BC // GROUPS)), 2), 0)
        out = tl.reshape(tl.broadcast_to(group[:, None], (GROUPS, BC // GROUPS)), (BC,))
    else:
        out = _of_group(tl.sum(a, 0), C, GROUPS, BC)
    return out


@triton.jit
def _read(at, alive, EVEN: tl.constexpr):
    # A tile that is all image needs no mask.
    return tl.load(at) if EVEN else tl.load(at, mask=alive, other=0.0)


@triton.jit
def _write(at, value, alive, EVEN: tl.constexpr):
    if EVEN:
        tl.store(at, value.to(at.dtype.element_ty))
    else:
        tl.store(at, value.to(at.dtype.element_ty), mask=alive)


@triton.jit
def _forward_kernel(x, shortcut, gamma, beta, y, moments, eps, IMAGES: tl.constexpr, P: tl.constexpr, C: tl.constexpr,
                    GROUPS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Compute y = ReLU(x·factor + level + shortcut) with factor = γ/σ, level = β − μ·factor; and μ, 1/σ per channel."""
    even: tl.constexpr = P == BP and C == BC
    count: tl.constexpr = P * (C // GROUPS)
    image = tl.program_id(0).to(tl.int64)
    p, c = tl.arange(0, BP), tl.arange(0, BC)
    alive = (p < P)[:, None] & (c < C)[None, :]
    place = image * (P * C) + p[:, None] * C + c[None, :]
    a = _read(x + place, alive, even).to(tl.float32)
    mean = _over_group(a, C, GROUPS, BP, BC) / count
    centred = a - mean[None, :]
    if not even:
        centred = tl.where(alive, centred, 0.0)
    scale = tl.rsqrt(_over_group(centred * centred, C, GROUPS, BP, BC) / count + eps)
    factor = scale * tl.load(gamma + image // IMAGES * C + c, mask=c < C, other=0.0).to(tl.float32)
    level = tl.load(beta + image // IMAGES * C + c, mask=c < C, other=0.0).to(tl.float32) - mean * factor
    out = a * factor[None, :] + level[None, :]
    if HAS_SHORTCUT:
        out += _read(shortcut + place, alive, even).to(tl.float32)
    _write(y + place, tl.where(out < 0, 0.0, out), alive, even)  # a maximum would make 0 of what is not a number
    tl.store(moments + image * 2 * C + c, mean, mask=c < C)
    tl.store(moments + image * 2 * C + C + c, scale, mask=c < C)


@triton.jit
def _backward_kernel(dy, y, x, moments, gamma, beta, dx, dshortcut, sums, IMAGES: tl.constexpr, P: tl.constexpr,
                     C: tl.constexpr, GROUPS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    """Compute dx = dz·factor − x·along + rest, dz the gradient where the ReLU passed; and the sums over pixels for dγ, dβ.

    Without a shortcut the sign of y follows from x, so that y need not be read.
    """
    even: tl.constexpr = P == BP and C == BC
    count: tl.constexpr = P * (C // GROUPS)
    image = tl.program_id(0).to(tl.int64)
    p, c = tl.arange(0, BP), tl.arange(0, BC)
    alive = (p < P)[:, None] & (c < C)[None, :]
    place = image * (P * C) + p[:, None] * C + c[None, :]
    mean = tl.load(moments + image * 2 * C + c, mask=c < C, other=0.0)
    scale = tl.load(moments + image * 2 * C + C + c, mask=c < C, other=0.0)
    weight = tl.load(gamma + image // IMAGES * C + c, mask=c < C, other=0.0).to(tl.float32)
    factor = scale * weight
    a = _read(x + place, alive, even).to(tl.float32)
    if HAS_SHORTCUT:
        passed = _read(y + place, alive, even) > 0
    else:
        level = tl.load(beta + image // IMAGES * C + c, mask=c < C, other=0.0).to(tl.float32) - mean * factor
        passed = a * factor[None, :] + level[None, :] > 0
    dz = tl.where(passed, _read(dy + place, alive, even).to(tl.float32), 0.0)
    if HAS_SHORTCUT:
        _write(dshortcut + place, dz, alive, even)
    dgamma, dbeta = tl.sum(dz * (a - mean[None, :]), 0) * scale, tl.sum(dz, 0)
    tl.store(sums + image * 2 * C + c, dgamma, mask=c < C)
    tl.store(sums + image * 2 * C + C + c, dbeta, mask=c < C)
    along = scale * scale * _of_group(dgamma * weight, C, GROUPS, BC) / count
    rest = mean * along - scale * _of_group(dbeta * weight, C, GROUPS, BC) / count
    _write(dx + place, dz * factor[None, :] - a * along[None, :] + rest[None, :], alive, even)


def fits(x: Tensor, channels: int, groups: int) -> bool:
    """Tell if one program can hold an image, in a precision that the kernel has."""
    tile = int(triton.next_power_of_2(x.shape[-1] * x.shape[-2])) * int(triton.next_power_of_2(channels))
    return x.dtype != torch.float64 and channels <= 128 and channels % groups == 0 and tile <= MOST


def _sizes(x: Tensor) -> dict[str, int]:
    channels, pixels = x.shape[2], x.shape[3] * x.shape[4]
    return {"IMAGES": x.shape[1], "P": pixels, "C": channels, "BP": max(16, int(triton.next_power_of_2(pixels))),
            "BC": max(16, int(triton.next_power_of_2(channels)))}


def _warps(sizes: dict[str, int], held: int) -> int:
    return min(16, max(4, sizes["BP"] * sizes["BC"] // (32 * held)))


def _norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
               eps: float) -> tuple[Tensor, Tensor]:
    """Return (y, moments (client, image, 2, channel)); γ and β are (client, channel)."""
    x = laid_out(x)
    shortcut = None if shortcut is None else laid_out(shortcut)
    y, moments = _fake_norm_relu(x, shortcut, gamma, beta, groups, eps)
    sizes = _sizes(x)
    _forward_kernel[(x.shape[0] * x.shape[1],)](
        x, x if shortcut is None else shortcut, gamma.contiguous(), beta.contiguous(), y, moments, eps, GROUPS=groups,
        HAS_SHORTCUT=shortcut is not None, num_warps=_warps(sizes, FORWARD), **sizes)
    return y, moments


def _norm_relu_grad(dy: Tensor, y: Tensor, x: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, groups: int,
                    has_shortcut: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dx, dshortcut (empty if there is none), sums (client, image, 2, channel) for dγ and dβ)."""
    dy, y, x = laid_out(dy), laid_out(y), laid_out(x)
    dx, dshortcut, sums = _fake_norm_relu_grad(dy, y, x, moments, gamma, beta, groups, has_shortcut)
    sizes = _sizes(x)
    _backward_kernel[(x.shape[0] * x.shape[1],)](
        dy, y, x, moments.contiguous(), gamma.contiguous(), beta.contiguous(), dx, dshortcut, sums, GROUPS=groups,
        HAS_SHORTCUT=has_shortcut, num_warps=_warps(sizes, BACKWARD), **sizes)
    return dx, dshortcut, sums


def _fake_norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
                    eps: float) -> tuple[Tensor, Tensor]:
    return channels_last(x, *x.shape), x.new_empty((*x.shape[:2], 2, x.shape[2]), dtype=torch.float32)


def _fake_norm_relu_grad(dy: Tensor, y: Tensor, x: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, groups: int,
                         has_shortcut: bool) -> tuple[Tensor, Tensor, Tensor]:
    dshortcut = channels_last(x, *x.shape) if has_shortcut else x.new_empty((x.shape[0], 0))
    return channels_last(x, *x.shape), dshortcut, torch.empty_like(moments)


norm_relu_forward = operator("norm_relu(Tensor x, Tensor? shortcut, Tensor gamma, Tensor beta, int groups, float eps)"
                             " -> (Tensor, Tensor)", _norm_relu, _fake_norm_relu)
norm_relu_grad = operator("norm_relu_grad(Tensor dy, Tensor y, Tensor x, Tensor moments, Tensor gamma, Tensor beta,"
                          " int groups, bool has_shortcut) -> (Tensor, Tensor, Tensor)", _norm_relu_grad,
                          _fake_norm_relu_grad)


class _NormReLU(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
                eps: float) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = norm_relu_forward(x, shortcut, gamma, beta, groups, eps)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, shortcut, gamma, beta, ctx.groups, _ = inputs
        y, moments = output
        ctx.has_shortcut = shortcut is not None
        ctx.mark_non_differentiable(moments)
        # Without a shortcut y is not read again, so it is not kept.
        ctx.save_for_backward(x, gamma, beta, x if shortcut is None else y, moments)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, y, moments = ctx.saved_tensors
        dx, dshortcut, sums = norm_relu_grad(laid_out(dy), y, x, moments, gamma, beta, ctx.groups, ctx.has_shortcut)
        dgamma, dbeta = sums.sum(1).to(gamma.dtype).unbind(1)
        return dx, dshortcut if ctx.has_shortcut else None, dgamma, dbeta, None, None


def norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> Tensor:
    """Compute ReLU(GroupNorm(x) + shortcut) of one client, (image, channel, row, column), in the precision of x."""
    added = None if shortcut is None else laid_out(shortcut.to(x.dtype)[None])
    y: Tensor = _NormReLU.apply(laid_out(x[None]), added, gamma[None], beta[None], groups, eps)[0]
    return y.squeeze(0)
