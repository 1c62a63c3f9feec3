"""2-d convolutions of many clients at once, each with its own weights, on a GPU's matrix units.

A stack of clients is a grouped convolution, for which libraries convert layouts and waste most of a tile on 16 channels.
Here a client is one dimension of the launch grid, and images lie in channels-last order: the taps of a kernel row read one
contiguous piece of (column, channel), so that a convolution is a matrix product whose left side is gathered while it is
multiplied, with nothing unfolded in memory. Tiles are the fastest of those tried on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from anybit.kernels.operators import channels_last, laid_out, operator
from anybit.kernels.tiles import fitting, shared_memory, tile, weight_plan

MANY = 16
"""Input channels that fill a tile with one tap; with fewer, several taps share a tile."""


@triton.jit
def _pixel(m, H: tl.constexpr, W: tl.constexpr):
    """Return (image, row, column) of pixel number m."""
    rest = m // W
    return rest // H, rest % H, m % W


@triton.jit
def _convolve_kernel(x, w, y, pixels, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, I: tl.constexpr,
                     O: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, MANY: tl.constexpr,
                     BM: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr):
    """Compute y[g, m, o] = Σ_j x[g, corner(m) + place(j)] · w[g, o, j], j = (kernel row, tap, channel).

    Sizes are constants: divisions by them would cost more than the products. With many channels a piece of j lies in one
    tap, so that the mask depends on the pixel alone and channels are read in full vectors.
    """
    g = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    image, row, column = _pixel(m, OH, OW)
    top, left = row * STRIDE - PAD, column * STRIDE - PAD
    corner = ((image * H + top) * W + left) * I
    alive = m < pixels
    x += g * (pixels // (OH * OW)) * (H * W * I)
    w += g * (K * K * I * O)
    per: tl.constexpr = (I + BJ - 1) // BJ
    pieces: tl.constexpr = K * K * per if I >= MANY else (K * K * I + BJ - 1) // BJ
    total = tl.zeros((BM, BO), tl.float32)
    for piece in tl.range(pieces, num_stages=3):
        if I >= MANY:
            tap, i = piece // per, piece % per * BJ + tl.arange(0, BJ)
            j, real = tap * I + i, i < I
            k, r, c = tap // K, top + tap // K, left + tap % K
            seen = (alive & (r >= 0) & (r < H) & (c >= 0) & (c < W))[:, None]
        else:
            j = piece * BJ + tl.arange(0, BJ)
            k, real = j // (K * I), j < K * K * I
            r, c = top[:, None] + k[None, :], left[:, None] + (j // I % K)[None, :]
            seen = alive[:, None] & (r >= 0) & (r < H) & (c >= 0) & (c < W)
        a = tl.load(x + corner[:, None] + (k * (W - K) * I + j)[None, :], mask=seen & real[None, :], other=0.0)
        b = tl.load(w + o[:, None] * (K * K * I) + j[None, :], mask=(o < O)[:, None] & real[None, :], other=0.0)
        total = tl.dot(a, tl.trans(b), total)
    tl.store(y + (g * pixels + m[:, None]) * O + o[None, :], total.to(y.dtype.element_ty),
             mask=alive[:, None] & (o < O)[None, :])


@triton.jit
def _strided_grad_kernel(dy, w, dx, pixels, H: tl.constexpr, W: tl.constexpr, IH: tl.constexpr, IW: tl.constexpr,
                         O: tl.constexpr, I: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
                         BM: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr):
    """Compute the gradient of the input when stride > 1, w as [g, i, row, tap, o].

    Pixels whose position has the same remainder by the stride meet the same taps, so a program takes one remainder.
    """
    g = tl.program_id(2).to(tl.int64)
    remainder = tl.program_id(1) % (STRIDE * STRIDE)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    image, row, column = _pixel(m, (IH + STRIDE - 1) // STRIDE, (IW + STRIDE - 1) // STRIDE)
    top, left = remainder // STRIDE, remainder % STRIDE
    row, column = row * STRIDE + top, column * STRIDE + left
    images = pixels // (IH * IW)
    inside = (image < images) & (row < IH) & (column < IW)
    i, o = tl.program_id(1) // (STRIDE * STRIDE) * BI + tl.arange(0, BI), tl.arange(0, BO)
    dy += g * images * (H * W * O)
    w += g * (K * K * O * I)
    total = tl.zeros((BM, BI), tl.float32)
    for k in tl.static_range(K):
        for t in tl.static_range(K):
            if (top + PAD - k) % STRIDE == 0 and (left + PAD - t) % STRIDE == 0:
                r, c = (row + PAD - k) // STRIDE, (column + PAD - t) // STRIDE
                seen = inside & (row + PAD >= k) & (column + PAD >= t) & (r < H) & (c < W)
                for start in tl.range(0, O, BO):
                    n = start + o
                    a = tl.load(dy + ((image * H + r) * W + c)[:, None] * O + n[None, :],
                                mask=seen[:, None] & (n < O)[None, :], other=0.0)
                    b = tl.load(w + (i[:, None] * (K * K) + k * K + t) * O + n[None, :],
                                mask=(i < I)[:, None] & (n < O)[None, :], other=0.0)
                    total = tl.dot(a, tl.trans(b), total)
    place = g * pixels + (image * IH + row) * IW + column
    tl.store(dx + place[:, None] * I + i[None, :], total.to(dx.dtype.element_ty), mask=inside[:, None] & (i < I)[None, :])


@triton.jit
def _halves(a):
    """Split float32 a into a sum of two bfloat16: the upper half of its bits, and the remainder."""
    bits = a.to(tl.uint32, bitcast=True)
    high = (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return high, (a - (bits & 0xFFFF0000).to(tl.float32, bitcast=True)).to(tl.bfloat16)


@triton.jit
def _transposed_dot(a, b, total, SPLIT: tl.constexpr):
    """Compute total + aᵀ·b. Matrix units transpose 16-bit tiles only, so float32 is split into sums of two bfloat16:
    three products, closer to float32 than one in TF32."""
    if SPLIT:
        a_high, a_low = _halves(a)
        b_high, b_low = _halves(b)
        total = tl.dot(tl.trans(a_low), b_high, total)
        total = tl.dot(tl.trans(a_high), b_low, total)
        total = tl.dot(tl.trans(a_high), b_high, total)
    else:
        total = tl.dot(tl.trans(a), b, total)
    return total


@triton.jit
def _weight_grad_kernel(x, dy, out, pixels, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
                        I: tl.constexpr, O: tl.constexpr, K: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
                        SPLIT: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
                        BM: tl.constexpr, BJ: tl.constexpr, BO: tl.constexpr):
    """Compute out[g, part, row, j, o] = Σ over the part's pixels m of x[g, segment(m, row) + j] · dy[g, m, o].

    A program reads dy once for ROWS rows of the kernel. Parts are added up afterwards in a fixed order, without atomics:
    always the same bits.
    """
    part, g = tl.program_id(0), tl.program_id(2).to(tl.int64)
    blocks: tl.constexpr = (K * I + BJ - 1) // BJ
    turns: tl.constexpr = K // ROWS
    first = tl.program_id(1) % turns * ROWS
    j = (tl.program_id(1) // turns % blocks) * BJ + tl.arange(0, BJ)
    o = (tl.program_id(1) // turns // blocks) * BO + tl.arange(0, BO)
    tap = j // I
    x += g * (pixels // (OH * OW)) * (H * W * I)
    dy += g * pixels * O
    totals = (tl.zeros((BJ, BO), tl.float32),) * ROWS
    for step in tl.range(STEPS, num_stages=STAGES):
        m = (part * STEPS + step) * BM + tl.arange(0, BM)
        image, row, column = _pixel(m, OH, OW)
        top, left = row * STRIDE - PAD + first, column * STRIDE - PAD
        c = left[:, None] + tap[None, :]
        inside = (m < pixels)[:, None] & (c >= 0) & (c < W) & (j < K * I)[None, :]
        corner = ((image * H + top) * W + left) * I
        b = tl.load(dy + m[:, None] * O + o[None, :], mask=(m < pixels)[:, None] & (o < O)[None, :], other=0.0)
        for k in tl.static_range(ROWS):
            seen = inside & ((top + k >= 0) & (top + k < H))[:, None]
            a = tl.load(x + (corner + k * W * I)[:, None] + j[None, :], mask=seen, other=0.0)
            totals = totals[1:] + (_transposed_dot(a, b, totals[0], SPLIT),)  # noqa: RUF005 (Triton has no stars)
    for k in tl.static_range(ROWS):
        place = (((g * tl.num_programs(0) + part) * K + first + k) * K * I + j[:, None]) * O + o[None, :]
        tl.store(out + place, totals[k], mask=(j < K * I)[:, None] & (o < O)[None, :])


def _convolve(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Compute x ∗ w; x (client, image, channel, row, column), w (client, out, row, tap, in)."""
    x, w = laid_out(x), w.contiguous()
    clients, images, inner, rows, columns = x.shape
    outer, kernel = w.shape[1:3]
    y = _fake_convolve(x, w, stride, padding)
    out_rows, out_columns = y.shape[3:]
    pixels, tile_o, length = images * out_rows * out_columns, tile(outer, 64), kernel * kernel * inner
    tile_j = tile(inner, 32) if inner >= MANY else tile(length, 128)
    _convolve_kernel[(triton.cdiv(pixels, 128), triton.cdiv(outer, tile_o), clients)](
        x, w, y, pixels, H=rows, W=columns, OH=out_rows, OW=out_columns, I=inner, O=outer, K=kernel, STRIDE=stride,
        PAD=padding, MANY=MANY, BM=128, BO=tile_o,
        BJ=fitting(tile_j, length, (128 + tile_o) * x.element_size(), shared_memory(x)), num_warps=4)
    return y


def _strided_grad(dy: Tensor, w: Tensor, rows: int, columns: int, stride: int, padding: int) -> Tensor:
    """Compute the gradient of the input when stride > 1; w (client, in, row, tap, out)."""
    dy, w = laid_out(dy), w.contiguous()
    clients, images, outer = dy.shape[:3]
    inner, kernel = w.shape[1:3]
    dx = _fake_strided_grad(dy, w, rows, columns, stride, padding)
    per_remainder, tile_i = images * triton.cdiv(rows, stride) * triton.cdiv(columns, stride), tile(inner, 64)
    _strided_grad_kernel[(triton.cdiv(per_remainder, 128), stride * stride * triton.cdiv(inner, tile_i), clients)](
        dy, w, dx, images * rows * columns, H=dy.shape[3], W=dy.shape[4], IH=rows, IW=columns, O=outer, I=inner, K=kernel,
        STRIDE=stride, PAD=padding, BM=128, BI=tile_i,
        BO=fitting(tile(outer, 64), outer, (128 + tile_i) * dy.element_size(), shared_memory(dy)), num_warps=4)
    return dx


def _weight_grad(x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """Compute the gradient of w (client, part, row, tap, in, out) in float32, still to be summed over parts."""
    x, dy = laid_out(x), laid_out(dy)
    clients, images, inner, rows, columns = x.shape
    outer, out_rows, out_columns = dy.shape[2:]
    plan = weight_plan(x, dy, kernel)
    out = x.new_empty((clients, plan.parts, kernel, kernel, inner, outer), dtype=torch.float32)
    _weight_grad_kernel[(plan.parts, plan.programs, clients)](
        x, dy, out, images * out_rows * out_columns, H=rows, W=columns, OH=out_rows, OW=out_columns,
        I=inner, O=outer, K=kernel, STRIDE=stride, PAD=padding, SPLIT=x.is_cuda and x.dtype == torch.float32,
        STEPS=plan.steps, ROWS=plan.rows, STAGES=plan.stages, BM=plan.pixels, BJ=plan.tile_j, BO=plan.tile_o, num_warps=4)
    return out


def _fake_convolve(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    rows, columns = ((side + 2 * padding - w.shape[2]) // stride + 1 for side in x.shape[3:])
    return channels_last(x, x.shape[0], x.shape[1], w.shape[1], rows, columns)


def _fake_strided_grad(dy: Tensor, w: Tensor, rows: int, columns: int, stride: int, padding: int) -> Tensor:
    return channels_last(dy, dy.shape[0], dy.shape[1], w.shape[1], rows, columns)


def _fake_weight_grad(x: Tensor, dy: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    parts = weight_plan(x, dy, kernel).parts
    return x.new_empty((x.shape[0], parts, kernel, kernel, x.shape[2], dy.shape[2]), dtype=torch.float32)


convolve = operator("convolve(Tensor x, Tensor w, int stride, int padding) -> Tensor", _convolve, _fake_convolve)
strided_grad = operator("strided_grad(Tensor dy, Tensor w, int rows, int columns, int stride, int padding) -> Tensor",
                        _strided_grad, _fake_strided_grad)
weight_grad = operator("weight_grad(Tensor x, Tensor dy, int kernel, int stride, int padding) -> Tensor",
                       _weight_grad, _fake_weight_grad)


class _Conv2d(torch.autograd.Function):
    """The operators as one differentiable function of x (client, image, channel, row, column) and w in torch's layout."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
        out: Tensor = convolve(x, w.permute(0, 1, 3, 4, 2).contiguous(), stride, padding)
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
            turned = w.permute(0, 2, 3, 4, 1)
            if ctx.stride == 1:  # a convolution again, with the taps in opposite order
                dx = convolve(dy, turned.flip(2, 3).contiguous(), 1, kernel - 1 - ctx.padding)
            else:
                dx = strided_grad(dy, turned.contiguous(), x.shape[3], x.shape[4], ctx.stride, ctx.padding)
        if ctx.needs_input_grad[1]:
            parts = weight_grad(x, dy, kernel, ctx.stride, ctx.padding)
            dw = parts.sum(1).permute(0, 4, 3, 1, 2).to(w.dtype)
        return dx, dw, None, None


def conv2d(x: Tensor, w: Tensor, stride: int, padding: int) -> Tensor:
    """Compute x ∗ w of one client, (image, channel, row, column), in bf16 under autocast; map it over clients with vmap."""
    if x.dtype == torch.float64:  # which the matrix units do not take
        return F.conv2d(x, w, stride=stride, padding=padding)
    if torch.is_autocast_enabled(x.device.type):
        x, w = x.to(torch.bfloat16), w.to(torch.bfloat16)
    y: Tensor = _Conv2d.apply(laid_out(x[None]), w[None], stride, padding)
    return y.squeeze(0)
