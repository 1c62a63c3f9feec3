"""2-d convolutions of many clients at once, each with its own weights, on a GPU's matrix units.

A stack of clients is a grouped convolution, for which libraries convert layouts and waste most of a tile on 16 channels.
Here a client is one dimension of the launch grid, and images lie in channels-last order: what the taps of one kernel row
read is one contiguous piece of (column, channel), so that a convolution is a plain matrix product whose left side is
gathered while it is multiplied, with nothing unfolded in memory. Tiles are the fastest of those tried on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from anybit.kernels.operators import channels_last, laid_out, operator

PROGRAMS = 1056
"""Programs that keep a large GPU busy; a sum over pixels is cut into as many parts as that takes."""


@triton.jit
def _pixel(m, height, width):
    """(image, row, column) of pixel number m."""
    rest = m // width
    return rest // height, rest % height, m % width


@triton.jit
def _convolve_kernel(x, w, y, pixels, height, width, out_height, out_width, I: tl.constexpr, O: tl.constexpr,
                     K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BJ: tl.constexpr,
                     BO: tl.constexpr):
    """y[g, m, o] = Σ_j x[g, corner(m) + place(j)] · w[g, j, o], j = (kernel row, tap, channel)."""
    g = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    image, row, column = _pixel(m, out_height, out_width)
    top, left = row * STRIDE - PAD, column * STRIDE - PAD
    corner = ((image * height + top) * width + left) * I
    images = pixels // (out_height * out_width)
    x += g * images * height * width * I
    w += g * K * K * I * O
    total = tl.zeros((BM, BO), tl.float32)
    for start in tl.static_range(0, K * K * I, BJ):
        j = start + tl.arange(0, BJ)
        k, rest = j // (K * I), j % (K * I)
        r, c = top[:, None] + k[None, :], left[:, None] + (rest // I)[None, :]
        alive = (m < pixels)[:, None] & (j < K * K * I)[None, :]
        a = tl.load(x + corner[:, None] + (k * width * I + rest)[None, :], other=0.0,
                    mask=alive & (r >= 0) & (r < height) & (c >= 0) & (c < width))
        b = tl.load(w + j[:, None] * O + o[None, :], other=0.0, mask=(j < K * K * I)[:, None] & (o < O)[None, :])
        total = tl.dot(a, b, total)
    tl.store(y + (g * pixels + m[:, None]) * O + o[None, :], total.to(y.dtype.element_ty),
             mask=(m < pixels)[:, None] & (o < O)[None, :])


@triton.jit
def _strided_grad_kernel(dy, w, dx, pixels, height, width, in_height, in_width, O: tl.constexpr, I: tl.constexpr,
                         K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BM: tl.constexpr, BO: tl.constexpr,
                         BI: tl.constexpr):
    """The gradient of the input when stride > 1, w as [g, row, tap, o, i].

    Pixels whose position has the same remainder by the stride meet the same taps, so a program takes one remainder.
    """
    g = tl.program_id(2).to(tl.int64)
    remainder = tl.program_id(1)
    across, down = (in_width + STRIDE - 1) // STRIDE, (in_height + STRIDE - 1) // STRIDE
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    image, row, column = _pixel(m, down, across)
    top, left = remainder // STRIDE, remainder % STRIDE
    row, column = row * STRIDE + top, column * STRIDE + left
    images = pixels // (in_height * in_width)
    inside = (image < images) & (row < in_height) & (column < in_width)
    i, o = tl.arange(0, BI), tl.arange(0, BO)
    dy += g * images * height * width * O
    w += g * K * K * O * I
    total = tl.zeros((BM, BI), tl.float32)
    for k in tl.static_range(K):
        for t in tl.static_range(K):
            if (top + PAD - k) % STRIDE == 0 and (left + PAD - t) % STRIDE == 0:
                r, c = (row + PAD - k) // STRIDE, (column + PAD - t) // STRIDE
                seen = inside & (row + PAD >= k) & (column + PAD >= t) & (r < height) & (c < width)
                for start in tl.static_range(0, O, BO):
                    n = start + o
                    a = tl.load(dy + ((image * height + r) * width + c)[:, None] * O + n[None, :],
                                mask=seen[:, None] & (n < O)[None, :], other=0.0)
                    b = tl.load(w + ((k * K + t) * O + n[:, None]) * I + i[None, :],
                                mask=(n < O)[:, None] & (i < I)[None, :], other=0.0)
                    total = tl.dot(a, b, total)
    place = g * pixels + (image * in_height + row) * in_width + column
    tl.store(dx + place[:, None] * I + i[None, :], total.to(dx.dtype.element_ty), mask=inside[:, None] & (i < I)[None, :])


@triton.jit
def _transposed_dot(a, b, total, SPLIT: tl.constexpr):
    """total + aᵀ·b. The matrix units transpose 16-bit tiles only, so float32 goes through as sums of two bfloat16:
    three products, closer to float32 than one in TF32."""
    if SPLIT:
        a_high, b_high = a.to(tl.bfloat16), b.to(tl.bfloat16)
        a_low, b_low = (a - a_high.to(tl.float32)).to(tl.bfloat16), (b - b_high.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(tl.trans(a_low), b_high, total)
        total = tl.dot(tl.trans(a_high), b_low, total)
        total = tl.dot(tl.trans(a_high), b_high, total)
    else:
        total = tl.dot(tl.trans(a), b, total)
    return total


@triton.jit
def _weight_grad_kernel(x, dy, out, pixels, height, width, out_height, out_width, I: tl.constexpr, O: tl.constexpr,
                        K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, STEPS: tl.constexpr, SPLIT: tl.constexpr,
                        BM: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr):
    """out[g, part, row, j, o] = Σ over the part's pixels m of x[g, segment(m, row) + j] · dy[g, m, o].

    Parts are added up afterwards in a fixed order: no atomics, the same bits always.
    """
    part, g = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    blocks: tl.constexpr = (K * I + BJ - 1) // BJ
    k = tl.program_id(1) % K
    j = (tl.program_id(1) // K % blocks) * BJ + tl.arange(0, BJ)
    o = (tl.program_id(1) // K // blocks) * BO + tl.arange(0, BO)
    tap = j // I
    images = pixels // (out_height * out_width)
    x += g * images * height * width * I
    dy += g * pixels * O
    total = tl.zeros((BJ, BO), tl.float32)
    for step in range(STEPS):
        m = ((part * STEPS + step) * BM + tl.arange(0, BM)).to(tl.int32)
        image, row, column = _pixel(m, out_height, out_width)
        r, first = row * STRIDE - PAD + k, column * STRIDE - PAD
        c = first[:, None] + tap[None, :]
        alive = (m < pixels) & (r >= 0) & (r < height)
        a = tl.load(x + (((image * height + r) * width + first) * I)[:, None] + j[None, :], other=0.0,
                    mask=alive[:, None] & (c >= 0) & (c < width) & (j < K * I)[None, :])
        b = tl.load(dy + m[:, None] * O + o[None, :], mask=(m < pixels)[:, None] & (o < O)[None, :], other=0.0)
        total = _transposed_dot(a, b, total, SPLIT)
    place = (((g * tl.num_programs(0) + part) * K + k) * K * I + j[:, None]) * O + o[None, :]
    tl.store(out + place, total, mask=(j < K * I)[:, None] & (o < O)[None, :])


def _tile(size: int, most: int) -> int:
    return min(most, max(16, int(triton.next_power_of_2(size))))


def _out(side: int, kernel: int, stride: int, padding: int) -> int:
    return (side + 2 * padding - kernel) // stride + 1


def _convolve(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """x ∗ w; x (client, image, channel, row, column), w (client, row, tap, in, out)."""
    x, w = laid_out(x), w.contiguous()
    clients, images, inner, height, width = x.shape
    kernel, outer = w.shape[1], w.shape[4]
    out_height, out_width = _out(height, kernel, stride, padding), _out(width, kernel, stride, padding)
    y = channels_last(x, clients, images, outer, out_height, out_width)
    pixels, tile = images * out_height * out_width, _tile(outer, 64)
    together = inner if inner >= 16 else kernel * kernel * inner
    _convolve_kernel[(triton.cdiv(pixels, 128), triton.cdiv(outer, tile), clients)](
        x, w, y, pixels, height, width, out_height, out_width, I=inner, O=outer, K=kernel, STRIDE=stride, PAD=padding,
        BM=128, BJ=_tile(together, 64), BO=tile, num_warps=4)
    return y


def _strided_grad(dy: Tensor, w: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    """The gradient of the input when stride > 1; w (client, row, tap, out, in)."""
    dy, w = laid_out(dy), w.contiguous()
    clients, images, outer = dy.shape[:3]
    kernel, inner = w.shape[1], w.shape[4]
    dx = channels_last(dy, clients, images, inner, height, width)
    each = images * triton.cdiv(height, stride) * triton.cdiv(width, stride)
    _strided_grad_kernel[(triton.cdiv(each, 128), stride * stride, clients)](
        dy, w, dx, images * height * width, dy.shape[3], dy.shape[4], height, width, O=outer, I=inner, K=kernel,
        STRIDE=stride, PAD=padding, BM=128, BO=_tile(outer, 64), BI=_tile(inner, 512), num_warps=4)
    return dx


def _weight_grad(x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """The gradient of w (client, part, row, tap, in, out) in float32, still to be summed over parts."""
    x, dy = laid_out(x), laid_out(dy)
    clients, images, inner, height, width = x.shape
    outer, out_height, out_width = dy.shape[2:]
    parts, steps, tile_j, tile_o = _weight_plan(x, images * out_height * out_width, kernel, outer)
    out = x.new_empty((clients, parts, kernel, kernel, inner, outer), dtype=torch.float32)
    grid = (parts, kernel * triton.cdiv(kernel * inner, tile_j) * triton.cdiv(outer, tile_o), clients)
    _weight_grad_kernel[grid](
        x, dy, out, images * out_height * out_width, height, width, out_height, out_width, I=inner, O=outer, K=kernel,
        STRIDE=stride, PAD=padding, STEPS=steps, SPLIT=x.is_cuda and x.dtype == torch.float32, BM=64, BJ=tile_j, BO=tile_o,
        num_warps=4)
    return out


def _weight_plan(x: Tensor, pixels: int, kernel: int, outer: int) -> tuple[int, int, int, int]:
    """(parts, steps of 64 pixels in each, tile of (tap, channel), tile of outputs)."""
    clients, inner = x.shape[0], x.shape[2]
    room = 128 if x.element_size() == 2 and kernel * inner <= 128 else 64
    tile_j, tile_o = _tile(kernel * inner, room), _tile(outer, 64)
    programs = kernel * triton.cdiv(kernel * inner, tile_j) * triton.cdiv(outer, tile_o) * clients
    blocks = triton.cdiv(pixels, 64)
    steps = triton.cdiv(blocks, max(1, min(blocks, PROGRAMS // programs)))
    return triton.cdiv(blocks, steps), steps, tile_j, tile_o


def _fake_convolve(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    height, width = (_out(side, w.shape[1], stride, padding) for side in x.shape[3:])
    return channels_last(x, x.shape[0], x.shape[1], w.shape[4], height, width)


def _fake_strided_grad(dy: Tensor, w: Tensor, height: int, width: int, stride: int, padding: int) -> Tensor:
    return channels_last(dy, dy.shape[0], dy.shape[1], w.shape[4], height, width)


def _fake_weight_grad(x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    parts = _weight_plan(x, x.shape[1] * dy.shape[3] * dy.shape[4], kernel, dy.shape[2])[0]
    return x.new_empty((x.shape[0], parts, kernel, kernel, x.shape[2], dy.shape[2]), dtype=torch.float32)


convolve = operator("convolve(Tensor x, Tensor w, int stride, int padding) -> Tensor", _convolve, _fake_convolve)
strided_grad = operator("strided_grad(Tensor dy, Tensor w, int height, int width, int stride, int padding) -> Tensor",
                        _strided_grad, _fake_strided_grad)
weight_grad = operator("weight_grad(Tensor x, Tensor dy, int kernel, int stride, int padding) -> Tensor",
                       _weight_grad, _fake_weight_grad)


class _Conv2d(torch.autograd.Function):
    """The operators as one differentiable function of x (client, image, channel, row, column) and the usual w."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
        out: Tensor = convolve(x, w.permute(0, 3, 4, 2, 1).contiguous(), stride, padding)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int, int], output: Tensor) -> None:
        x, w, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, w = ctx.saved_tensors
        dy, kernel, dx, dw = laid_out(dy), w.shape[-1], None, None
        if ctx.needs_input_grad[0]:
            turned = w.permute(0, 3, 4, 1, 2)
            if ctx.stride == 1:  # a convolution again, with the taps in opposite order
                dx = convolve(dy, turned.flip(1, 2).contiguous(), 1, kernel - 1 - ctx.padding)
            else:
                dx = strided_grad(dy, turned.contiguous(), x.shape[3], x.shape[4], ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            parts = weight_grad(x, dy, kernel, ctx.stride, ctx.padding)
            dw = parts.sum(1).permute(0, 4, 3, 1, 2).to(w.dtype)
        return dx, dw, None, None


def conv2d(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """x ∗ w of one client, (image, channel, row, column), in bf16 under autocast; map it over clients with vmap.

    float64, which the matrix units do not take, goes to the library.
    """
    if x.dtype == torch.float64:
        return F.conv2d(x, w, stride=stride, padding=padding)
    if torch.is_autocast_enabled(x.device.type):
        x, w = x.to(torch.bfloat16), w.to(torch.bfloat16)
    y: Tensor = _Conv2d.apply(laid_out(x[None]), w[None], stride, padding)
    return y.squeeze(0)
