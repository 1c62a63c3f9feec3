"""Convolutions and linear layers: packed weights, by float activations or, where they are on a grid, by integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from anybit.errors import ModelError, option
from anybit.export.c.blocks import HALVES, Product, fits, padding, product
from anybit.export.c.program import Layer, Program, Value, number, source
from anybit.export.integer import bias_scale
from anybit.export.packing import pack
from anybit.export.subject import QuantizedWeight
from anybit.quant.grid import FLOAT, Grid

_MOST = 2**31 - 1
_LANES = 32
"""The most bytes that a processor multiplies at a time."""
_TILE = "\n".join(f"{'':16}s{row}{n} = PRODUCTS(s{row}{n}, w{row}, x{n});" for row in range(4) for n in range(4))
_WIDE = {
    "zeros": "eight_t " + ", ".join(f"{half}{n} = {{0}}" for half in "ab" for n in range(4)) + ";",
    "steps": "\n".join(f"{'':8}const __m256i v{n} = four_$name(x{n} + i);\n"
                       f"{'':8}a{n} = (eight_t)DPBUSD_256((__m256i)a{n}, v{n}, w0);\n"
                       f"{'':8}b{n} = (eight_t)DPBUSD_256((__m256i)b{n}, v{n}, w1);" for n in range(4)),
    "results": "\n".join(f"    {half}[{n}] = {half}{n};" for half in "ab" for n in range(4))}
"""The middle of the kernel for sixteen outputs at four places."""
SIGNS = {"int8_t": "i", "uint8_t": "u"}
"""{type: how x86 and WebAssembly name instructions for it}."""


@dataclass(frozen=True)
class _Use:
    """One use of a layer's weight."""

    layer: str
    weight: Tensor
    bias: Tensor | None
    quantized: QuantizedWeight | None
    grid: Grid | None
    """The grid of the input, where the width has one."""


def conv(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Add a convolution of one or two dimensions."""
    x, weight = given["input"], given["weight"]
    use = _used(program, weight, given.get("bias"), layer)
    kernel = two(weight.shape[2:], 1)
    stride, dilation = two(given["stride"], 1), two(given["dilation"], 1)
    geometry = Geometry(x.shape[1], two(x.shape[2:], 1), shape[1], two(shape[2:], 1), given["groups"], kernel, stride,
                        dilation, first_padding(given["padding"], kernel, dilation))
    macs = weight.numel() // weight.shape[0] * int(np.prod(shape))
    if use.quantized is None or use.grid is None or not _fits(use.quantized, use.grid):
        x = _on_grid(program, x, use)
        kind, name = _weights(program, use, integer=False, macs=macs)
        kernel_name = program.use(f"conv_{kind}", "conv", **_fetch(kind))
        program.planes = max(program.planes, geometry.planes)
        program.taps = max(program.taps, kernel[0] * kernel[1])
        return program.call(f"{kernel_name}({{0}}, {{y}}, {name}, {geometry.structure(program, layer)});", [x], shape)
    kind, grid = _integer(program, use)
    _, name = _weights(program, use, integer=True, macs=macs)
    arrange = program.use(f"arrange_{kind}", "arrange", type=kind)
    inputs = geometry.channels * math.prod(geometry.padded)
    if geometry.channels == geometry.groups > 1:
        sums = Product(program.use(f"conv_single_{kind}", "conv_single", type=kind), "", inputs)
    else:
        dot = _dot(program, kind)
        pair = program.use(f"pair_{kind}", "pair", type=kind, dot=dot, i=SIGNS[kind], halves=HALVES[kind])
        blocks = fits(use.quantized, use.grid) and geometry.outputs > geometry.groups
        program.tile = max(program.tile, geometry.lanes)
        tile = program.use(f"tile_{kind}", "tile", type=kind, unsigned=str(int(kind == "uint8_t")), steps=_TILE)
        program.use("eight_lines")
        wide = program.use(f"wide_{kind}", "wide", type=kind, unsigned=str(int(kind == "uint8_t")),
                           **{key: text.replace("$name", f"wide_{kind}") for key, text in _WIDE.items()})
        sums = product(program, "conv", kind, use.quantized, blocks, inputs, dot=dot, pair=pair, tile=tile, wide=wide)
    where = geometry.structure(program, layer)
    return program.call(f"{arrange}({{0}}, ({kind} *)({{q}}), {where}, {grid});\n"
                        f"{sums.name}((const {kind} *)({{q}}), {{y}}, {name}, {where}{sums.argument});", [x], shape,
                        scratch=sums.scratch)


def linear(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Add a linear layer on one or many vectors."""
    x, weight = given["input"], given["weight"]
    use = _used(program, weight, given.get("bias"), layer)
    outputs, rows = weight.shape[0], x.size // weight.shape[1]
    if use.quantized is None or use.grid is None or not _fits(use.quantized, use.grid):
        x = _on_grid(program, x, use)
        kind, name = _weights(program, use, integer=False, macs=weight.numel() * rows)
        kernel = program.use(f"linear_{kind}", "linear", **_fetch(kind))
        return program.call(f"{kernel}({{0}}, {{y}}, {name}, {rows}, {outputs});", [x], shape)
    kind, grid = _integer(program, use)
    _, name = _weights(program, use, integer=True, macs=weight.numel() * rows)
    quantize = program.use(f"quantize_{kind}", "quantize", type=kind)
    dot = _dot(program, kind)
    sums = product(program, "linear", kind, use.quantized, fits(use.quantized, use.grid), x.size, dot=dot)
    return program.call(f"{quantize}({{0}}, ({kind} *)({{q}}), {x.size}, {grid});\n"
                        f"{sums.name}((const {kind} *)({{q}}), {{y}}, {name}, {rows}, {outputs}{sums.argument});", [x],
                        shape, scratch=sums.scratch)


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution or a pool, as (y, x)."""

    channels: int
    size: tuple[int, int]
    outputs: int
    out: tuple[int, int]
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]

    @property
    def padded(self) -> tuple[int, int]:
        """The input with the border that the windows reach."""
        y, x = (max((o - 1) * s + (k - 1) * d + 1, b + n) for o, s, k, d, b, n in zip(
            self.out, self.stride, self.kernel, self.dilation, self.before, self.size, strict=True))
        return y, x

    @property
    def planes(self) -> int:
        """Floats of the padded input, taken apart by the stride, and of the lanes that reach behind it."""
        return self.channels * math.prod(-(-n // s) * s for n, s in zip(self.padded, self.stride, strict=True)) + _LANES

    @property
    def lanes(self) -> int:
        """Bytes of a row whose pieces, one line of a window or one pixel of it, take whole lanes."""
        channels, (height, width) = self.channels // self.groups, self.kernel
        pieces, piece = (1, width * channels) if self.dilation[1] == 1 else (width, channels)
        return height * pieces * -(-piece // _LANES) * _LANES

    def structure(self, program: Program, name: str) -> str:
        numbers = (self.channels, *self.size, self.outputs, *self.out, self.groups, *self.kernel, *self.stride,
                   *self.dilation, *self.before, *self.padded)
        return program.structure("conv_t", f"{name or 'model'}.shape", numbers)


def two(numbers: Sequence[int], default: int) -> tuple[int, int]:
    """Return (y, x); of one number for a line it is x."""
    return (default, *numbers) if len(numbers) == 1 else (numbers[0], numbers[1])  # type: ignore[return-value]


def check_channels(shape: Sequence[int], dims: int, layer: str = "") -> None:
    """Raise unless the input of a pool is (batch, channels, sides): torch also pools (batch, sides)."""
    if len(shape) != dims + 2:
        place = f"layer '{layer}': " if layer else ""
        raise ModelError(f"{place}a pool of {dims} dimensions on an example of shape {tuple(shape[1:])} leaves none for "
                         "channels: give it a channel dimension, x[:, None]")


def first_padding(given: Sequence[int] | str, kernel: tuple[int, int], dilation: tuple[int, int]) -> tuple[int, int]:
    """Return the rows above and the columns left of the input; those behind follow from the shape of the result."""
    if given == "same":
        y, x = (d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
        return y, x
    return (0, 0) if isinstance(given, str) else two(given, 0)


def _used(program: Program, weight: Any, bias: Any, layer: str) -> _Use:
    subject, width = program.subject, program.width
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor | None):
        raise ModelError(f"layer '{layer}': its weight or bias is computed, which the C export does not take; use "
                         + option("runtime", "onnx"))
    parameter = next((name for name, p in subject.model.named_parameters() if p is weight), "")
    layer, site = subject.fed(parameter, layer)
    grid = subject.grid(site, width) if site and subject.bits(site, width) != FLOAT else None
    quantized = program.weights.get(parameter)
    if width.activations != FLOAT and (grid is None or quantized is None or not _fits(quantized, grid)):
        program.in_float[layer] = ("its input is not quantized" if grid is None else "its weight is not quantized"
                                   if quantized is None else "its sums may not fit 32 bits")
    return _Use(layer, weight.detach(), bias, quantized, grid)


def _fits(quantized: QuantizedWeight, grid: Grid) -> bool:
    """Return True if no sum of products can leave 32 bits."""
    factor, low, _ = quantized.integers()
    rows = np.abs(factor * quantized.codes.astype(np.int64) + low).reshape(len(quantized.codes), -1).sum(1)
    return int(rows.max()) * 2 * max(abs(float(grid.low)), abs(float(grid.high))) <= _MOST


def _fetch(kind: str) -> dict[str, str]:
    types = {"packed": ("weights_t", "row_t"), "plain": ("plain_t", "float")}[kind]
    return {"weights": types[0], "type": types[1], "fetch": source(f"fetch_{kind}").rstrip()}


def _weights(program: Program, use: _Use, integer: bool, macs: int) -> tuple[str, str]:
    """Add a layer's weight and bias; return (packed or plain, a pointer to them)."""
    name = use.layer or "model"
    bias = program.array(use.bias.detach().numpy().astype(np.float32), f"{name}.bias") if use.bias is not None else "0"
    if use.quantized is None:
        values = program.array(use.weight.numpy().astype(np.float32), f"{name}.weight")
        program.layers.append(Layer(name, macs, use.weight.numel() * 4, integer))
        size = use.weight.numel() // len(use.weight)
        return "plain", program.structure("plain_t", f"{name}.plain", (values, size, bias))
    factor, low, step = use.quantized.integers()
    codes, bits = use.quantized.codes, use.quantized.bits
    if integer and codes.ndim > 2:
        codes = np.moveaxis(codes, 1, -1)
    rows = codes.reshape(len(codes), -1)
    packed = np.concatenate([pack(row, bits) for row in rows] + [np.zeros(padding(use.quantized) * integer, np.uint8)])
    scale = np.asarray(step.numpy(), np.float32)
    if integer:
        assert use.grid is not None
        scale = bias_scale(use.quantized, use.grid)
    program.use("unpack")
    program.row = max(program.row, -(-rows.shape[1] // 4) * 4)
    program.wide |= low + factor * int(codes.max()) > 127
    program.layers.append(Layer(name, macs, packed.size, integer))
    fields = (program.array(packed, f"{name}.weight"), bits, factor, low, rows.shape[1],
              program.array(scale.reshape(-1), f"{name}.scale"), int(scale.size > 1), bias)
    return "packed", program.structure("weights_t", f"{name}.packed", fields)


def _dot(program: Program, kind: str) -> str:
    """Have the sum of products defined, with instructions for several at once where a processor has them."""
    loaded = "vld1q_s8(w + i)", f"vld1q_{'u' if kind == 'uint8_t' else 's'}8(x + i)"
    neon, vdot = ("__ARM_FEATURE_MATMUL_INT8", f"vusdotq_s32(sums, {loaded[1]}, {loaded[0]})") if kind == "uint8_t" else \
        ("__ARM_FEATURE_DOTPROD", f"vdotq_s32(sums, {loaded[0]}, {loaded[1]})")
    return program.use(f"dot_{kind}", "dot", type=kind, i=SIGNS[kind], up="0" if kind == "uint8_t" else "128",
                       halves=HALVES[kind], neon=neon, vdot=vdot)


def _integer(program: Program, use: _Use) -> tuple[str, str]:
    """Add the grid of an input; return (the type of its numbers, a pointer to it)."""
    assert use.grid is not None
    return "uint8_t" if float(use.grid.low) >= 0 else "int8_t", _grid(program, use)


def _grid(program: Program, use: _Use) -> str:
    assert use.grid is not None
    offset = float(use.grid.offset)
    program.use("level")
    fields = (*(number(v) for v in (float(use.grid.step), offset, float(use.grid.low) - offset,
                                    float(use.grid.high) - offset)), *((2, 1) if offset else (1, 0)))
    return program.structure("grid_t", f"{use.layer or 'model'}.grid", fields)


def _on_grid(program: Program, x: Value, use: _Use) -> Value:
    """Round an input that is on a grid for a layer that computes in float."""
    if use.grid is None:
        return x
    grid = _grid(program, use)
    return program.call(f"{program.use('rounded')}({{0}}, {{y}}, {x.size}, {grid});", [x], x.shape, True)
