"""ReLU(GroupNorm(x) + shortcut) of many clients at once: one read and one write instead of a chain of passes.

One program takes one image of one client, in channels-last order. The gradient needs the output's sign, the input, and
the two moments per group; sums over pixels for γ and β leave the kernel per image and are added up outside.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from anybit.kernels.operators import channels_last, laid_out, operator

MOST = 16384
"""Values of one image that a program can hold; larger images stay with the library's kernels."""


@triton.jit
def _group_mean(sums, GROUP: tl.constexpr, BC: tl.constexpr, count):
    """Per channel the mean over its group, from the sums per channel."""
    c = tl.arange(0, BC)
    same = (c[:, None] // GROUP) == (c[None, :] // GROUP)
    return tl.sum(tl.where(same, sums[None, :], 0.0), 1) / count


@triton.jit
def _forward_kernel(x, shortcut, gamma, beta, y, moments, pixels, eps, IMAGES: tl.constexpr, C: tl.constexpr,
                    GROUPS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    p, c = tl.arange(0, BP), tl.arange(0, BC)
    alive = (p < pixels)[:, None] & (c < C)[None, :]
    place = image * pixels * C + p[:, None] * C + c[None, :]
    a = tl.load(x + place, mask=alive, other=0.0).to(tl.float32)
    count = pixels * (C // GROUPS)
    mean = _group_mean(tl.sum(a, 0), C // GROUPS, BC, count)
    centred = tl.where(alive, a - mean[None, :], 0.0)
    scale = tl.rsqrt(_group_mean(tl.sum(centred * centred, 0), C // GROUPS, BC, count) + eps)
    client = image // IMAGES
    weight = tl.load(gamma + client * C + c, mask=c < C, other=0.0).to(tl.float32)
    bias = tl.load(beta + client * C + c, mask=c < C, other=0.0).to(tl.float32)
    out = centred * (scale * weight)[None, :] + bias[None, :]
    if HAS_SHORTCUT:
        out += tl.load(shortcut + place, mask=alive, other=0.0).to(tl.float32)
    tl.store(y + place, tl.maximum(out, 0.0).to(y.dtype.element_ty), mask=alive)
    tl.store(moments + image * 2 * C + c, mean, mask=c < C)
    tl.store(moments + image * 2 * C + C + c, scale, mask=c < C)


@triton.jit
def _backward_kernel(dy, y, x, moments, gamma, dx, dshortcut, sums, pixels, IMAGES: tl.constexpr, C: tl.constexpr,
                     GROUPS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    p, c = tl.arange(0, BP), tl.arange(0, BC)
    alive = (p < pixels)[:, None] & (c < C)[None, :]
    place = image * pixels * C + p[:, None] * C + c[None, :]
    passed = tl.load(y + place, mask=alive, other=0.0) > 0
    dz = tl.where(passed, tl.load(dy + place, mask=alive, other=0.0).to(tl.float32), 0.0)
    if HAS_SHORTCUT:
        tl.store(dshortcut + place, dz.to(dshortcut.dtype.element_ty), mask=alive)
    mean = tl.load(moments + image * 2 * C + c, mask=c < C, other=0.0)
    scale = tl.load(moments + image * 2 * C + C + c, mask=c < C, other=0.0)
    normal = (tl.load(x + place, mask=alive, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    weight = tl.load(gamma + image // IMAGES * C + c, mask=c < C, other=0.0).to(tl.float32)
    dgamma, dbeta = tl.sum(tl.where(alive, dz * normal, 0.0), 0), tl.sum(dz, 0)
    tl.store(sums + image * 2 * C + c, dgamma, mask=c < C)
    tl.store(sums + image * 2 * C + C + c, dbeta, mask=c < C)
    count = pixels * (C // GROUPS)
    along = _group_mean(dgamma * weight, C // GROUPS, BC, count)
    level = _group_mean(dbeta * weight, C // GROUPS, BC, count)
    d = scale[None, :] * (dz * weight[None, :] - level[None, :] - normal * along[None, :])
    tl.store(dx + place, d.to(dx.dtype.element_ty), mask=alive)


def fits(x: Tensor, channels: int, groups: int) -> bool:
    """Whether one program can hold an image, in a precision the kernel has."""
    if x.dtype == torch.float64:
        return False
    pixels = x.shape[-1] * x.shape[-2]
    return channels <= 128 and channels % groups == 0 and \
        int(triton.next_power_of_2(pixels)) * int(triton.next_power_of_2(channels)) <= MOST


def _sizes(x: Tensor) -> dict[str, int]:
    channels, pixels = x.shape[2], x.shape[3] * x.shape[4]
    return {"IMAGES": x.shape[1], "C": channels, "BP": max(16, int(triton.next_power_of_2(pixels))),
            "BC": max(16, int(triton.next_power_of_2(channels)))}


def _norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
               eps: float) -> tuple[Tensor, Tensor]:
    """(y, moments (client, image, 2, channel)); γ and β (client, channel)."""
    x = laid_out(x)
    shortcut = None if shortcut is None else laid_out(shortcut)
    y, moments = _fake_norm_relu(x, shortcut, gamma, beta, groups, eps)
    sizes = _sizes(x)
    _forward_kernel[(x.shape[0] * x.shape[1],)](
        x, x if shortcut is None else shortcut, gamma.contiguous(), beta.contiguous(), y, moments, x.shape[3] * x.shape[4],
        eps, GROUPS=groups, HAS_SHORTCUT=shortcut is not None, num_warps=4, **sizes)
    return y, moments


def _norm_relu_grad(dy: Tensor, y: Tensor, x: Tensor, moments: Tensor, gamma: Tensor, groups: int,
                    has_shortcut: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dshortcut (dx again if there is none), sums (client, image, 2, channel) for dγ and dβ)."""
    dy, y, x = laid_out(dy), laid_out(y), laid_out(x)
    dx, dshortcut, sums = _fake_norm_relu_grad(dy, y, x, moments, gamma, groups, has_shortcut)
    sizes = _sizes(x)
    _backward_kernel[(x.shape[0] * x.shape[1],)](
        dy, y, x, moments.contiguous(), gamma.contiguous(), dx, dshortcut, sums, x.shape[3] * x.shape[4], GROUPS=groups,
        HAS_SHORTCUT=has_shortcut, num_warps=min(16, max(4, sizes["BP"] * sizes["BC"] // 1024)), **sizes)
    return dx, dshortcut, sums


def _like(x: Tensor) -> Tensor:
    return channels_last(x, *x.shape[:3], *x.shape[3:])


def _fake_norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
                    eps: float) -> tuple[Tensor, Tensor]:
    return _like(x), x.new_empty((*x.shape[:2], 2, x.shape[2]), dtype=torch.float32)


def _fake_norm_relu_grad(dy: Tensor, y: Tensor, x: Tensor, moments: Tensor, gamma: Tensor, groups: int,
                         has_shortcut: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _like(x), _like(x) if has_shortcut else x.new_empty((x.shape[0], 0)), torch.empty_like(moments)


norm_relu_forward = operator("norm_relu(Tensor x, Tensor? shortcut, Tensor gamma, Tensor beta, int groups, float eps)"
                             " -> (Tensor, Tensor)", _norm_relu, _fake_norm_relu)
norm_relu_grad = operator("norm_relu_grad(Tensor dy, Tensor y, Tensor x, Tensor moments, Tensor gamma, int groups,"
                          " bool has_shortcut) -> (Tensor, Tensor, Tensor)", _norm_relu_grad, _fake_norm_relu_grad)


class _NormReLU(torch.autograd.Function):
    """The two operators as one differentiable function."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int,
                eps: float) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = norm_relu_forward(x, shortcut, gamma, beta, groups, eps)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, shortcut, gamma, _, ctx.groups, _ = inputs
        y, moments = output
        ctx.has_shortcut = shortcut is not None
        ctx.mark_non_differentiable(moments)
        ctx.save_for_backward(x, gamma, y, moments)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, y, moments = ctx.saved_tensors
        dx, dshortcut, sums = norm_relu_grad(laid_out(dy), y, x, moments, gamma, ctx.groups, ctx.has_shortcut)
        dgamma, dbeta = sums.sum(1).to(gamma.dtype).unbind(1)
        return dx, dshortcut if ctx.has_shortcut else None, dgamma, dbeta, None, None


def norm_relu(x: Tensor, shortcut: Tensor | None, gamma: Tensor, beta: Tensor, groups: int, eps: float) -> Tensor:
    """ReLU(GroupNorm(x) + shortcut) of one client, (image, channel, row, column), in the precision of x."""
    more = None if shortcut is None else laid_out(shortcut.to(x.dtype)[None])
    y, _ = _NormReLU.apply(laid_out(x[None]), more, gamma[None], beta[None], groups, eps)
    out: Tensor = y.squeeze(0)
    return out
