"""Integer arithmetic in an ONNX graph, with activations as uint8 and an explicit zero point.

* A convolution stands between QuantizeLinear and DequantizeLinear on all sides, which a runtime fuses into one
  QLinearConv; that needs its output on a grid too. With `exact` it is a ConvInteger, whose 32-bit sums become floats.
* A linear layer is a MatMulInteger, whose 32-bit sums become floats.

Activations below 8 bits are clipped to their grid, then quantized in 8 bits with the same step size. Weights are uint8 or
int8: x86 processors multiply uint8 by int8 fastest, browsers refuse int8 with zero point 0. Half-integer levels, of either,
are odd numbers at half the step size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from anybit.export.graph import Use
from anybit.export.lowbit import Editor, operands
from anybit.export.subject import QuantizedWeight
from anybit.quant.grid import Grid

CENTRE = 128
FUSED, EXACT, LINEAR = "QLinearConv", "ConvInteger", "MatMulInteger"


@dataclass(frozen=True)
class Activations:
    """The grids of layer inputs and, where an output quantizer is added, of layer outputs."""

    inputs: Mapping[str, Grid]
    outputs: Mapping[str, Grid]


@dataclass(frozen=True)
class _Weight:
    """A weight as an operand in the graph."""

    integers: str
    zero: str
    quantized: QuantizedWeight


def kernel(op: str, exact: bool) -> str:
    """Return the integer kernel that is promised for an operator; empty if there is none."""
    return {"Conv": EXACT if exact else FUSED, "Gemm": LINEAR, "MatMul": LINEAR}.get(op, "")


def quantize_all(editor: Editor, uses: list[Use], weights: Mapping[str, QuantizedWeight], activations: Activations,
                 opset: int, signed: bool) -> dict[str, str]:
    """Put weights and activations on their grids; return {layer: why it is computed in float}."""
    stored = {name: _Weight(integers, editor.constant(zero), weights[name])
              for name, (integers, zero) in operands(editor, weights, opset, signed).items()}
    in_float: dict[str, str] = {}
    for number, use in enumerate(uses):
        _quantize(editor, use, stored.get(use.weight), activations, number, in_float)
    for name, weight in stored.items():
        editor.drop_input(name)
        if any(name in node.input for node in editor.graph.node):
            _dequantized(editor, weight, name)
    return in_float


def _quantize(editor: Editor, use: Use, weight: _Weight | None, activations: Activations, number: int,
              in_float: dict[str, str]) -> None:
    grid = activations.inputs.get(use.layer)
    if grid is None or weight is None or not use.whole or not kernel(use.node.op_type, exact=False):
        in_float[use.layer] = ("its input is not quantized" if grid is None else "its weight is not quantized"
                               if weight is None else "its weight is a part of a matrix" if not use.whole
                               else f"no runtime has an integer {use.node.op_type}")
        if grid is not None:
            _replace_input(editor, use.node, grid, number)
    elif use.node.op_type == "Conv" and use.layer in activations.outputs:
        _replace_input(editor, use.node, grid, number)
        _quantize_bias(editor, use, weight.quantized, grid, number)
        _replace_output(editor, use.node, activations.outputs[use.layer], number)
    else:
        _integer_product(editor, use, weight, grid, number)


def _on_grid(editor: Editor, x: str, grid: Grid, prefix: str) -> tuple[str, str, str]:
    """Return the names of (x as uint8, step size, zero point); x is first clipped to a grid that does not fill uint8."""
    if grid.offset:
        x, grid = _halfway(editor, x, float(grid.step), prefix), _whole(grid)
    low, high, step = int(grid.low), int(grid.high), np.float32(grid.step)
    if (low, high) not in ((0, 255), (-CENTRE, CENTRE - 1)):
        edges = [editor.constant(np.array(step * np.float32(n))) for n in (low, high)]
        x = editor.node("Clip", [x, *edges], f"{prefix}.k")
    step_name, zero = editor.constant(np.array(step)), editor.constant(np.array(0 if low == 0 else CENTRE, np.uint8))
    return editor.node("QuantizeLinear", [x, step_name, zero], f"{prefix}.u"), step_name, zero


def _halfway(editor: Editor, x: str, step: float, prefix: str) -> str:
    """Round x to half-integer levels: step · (⌊x/step − ½⌉ + ½); 8 bits hold more of them than any such grid has."""
    half, zero = editor.constant(np.array(step / 2, np.float32)), editor.constant(np.array(CENTRE, np.uint8))
    on_step = [editor.constant(np.array(step, np.float32)), zero]
    below = editor.node("QuantizeLinear", [editor.node("Sub", [x, half], f"{prefix}.l"), *on_step], f"{prefix}.m")
    return editor.node("Add", [editor.node("DequantizeLinear", [below, *on_step], f"{prefix}.n"), half], f"{prefix}.h")


def _whole(grid: Grid) -> Grid:
    """Return the grid with whole numbers as levels."""
    return Grid(grid.step / 2, 2 * grid.low, 2 * grid.high) if grid.offset else grid


def _replace_input(editor: Editor, node: Any, grid: Grid, number: int) -> None:
    parts = _on_grid(editor, node.input[0], grid, f"x{number}")
    node.input[0] = editor.node("DequantizeLinear", list(parts), f"x{number}")


def _replace_output(editor: Editor, node: Any, grid: Grid, number: int) -> None:
    y, node.output[0] = node.output[0], f"y{number}"
    editor.node("DequantizeLinear", list(_on_grid(editor, f"y{number}", grid, f"q{number}")), y)


def _dequantized(editor: Editor, weight: _Weight, name: str) -> None:
    """Add the float weight, for a layer that is fused or has no integer kernel."""
    scale, zero = _flat_step(weight.quantized), weight.zero
    if scale.ndim:
        value = editor.initializer(zero)
        assert value is not None
        zero = editor.constant(np.full(scale.shape, value, value.dtype))
    editor.node("DequantizeLinear", [weight.integers, editor.constant(scale), zero], name, **_axis(scale))


def _quantize_bias(editor: Editor, use: Use, weight: QuantizedWeight, grid: Grid, number: int) -> None:
    """Store the bias of a fused layer as int32 with step size (input step · weight step), as integer kernels add it."""
    bias = editor.initializer(use.bias) if use.bias else None
    if bias is not None:
        scale = bias_scale(weight, grid)
        parts = [editor.constant(bias_codes(bias, scale)), editor.constant(scale),
                 editor.constant(np.zeros(scale.shape, np.int32))]
        use.node.input[2] = editor.node("DequantizeLinear", parts, f"b{number}", **_axis(scale))


def _integer_product(editor: Editor, use: Use, weight: _Weight, grid: Grid, number: int) -> None:
    """Compute x·w = (input step · weight step) · Σ integers, plus the bias in float."""
    node, convolution = use.node, use.node.op_type == "Conv"
    x, _, zero = _on_grid(editor, node.input[0], grid, f"x{number}")
    integers = weight.integers if convolution else editor.node("Transpose", [weight.integers], f"t{number}", perm=[1, 0])
    sums = editor.node(EXACT if convolution else LINEAR, [x, integers, zero, weight.zero], f"s{number}")
    if convolution:
        editor.nodes[-1].attribute.extend(node.attribute)
    scale = bias_scale(weight.quantized, grid)
    per_channel = (-1, *[1] * (weight.quantized.codes.ndim - 2)) if convolution else (-1,)
    shaped = editor.constant(scale.reshape(per_channel) if scale.ndim else scale)
    scaled = editor.node("Mul", [editor.cast(sums, "FLOAT", f"f{number}"), shaped],
                         f"p{number}" if use.bias else node.output[0])
    if use.bias:
        bias = use.bias
        if convolution:
            bias = editor.node("Reshape", [bias, editor.constant(np.array(per_channel, np.int64))], f"b{number}")
        editor.node("Add", [scaled, bias], node.output[0])
    editor.graph.node.remove(node)


def bias_scale(weight: QuantizedWeight, grid: Grid) -> np.ndarray:
    """Return input step · weight step of the whole numbers that are multiplied, per tensor or per channel."""
    return np.asarray(_flat_step(weight) * np.float32(_whole(grid).step), np.float32)


def _flat_step(weight: QuantizedWeight) -> np.ndarray:
    step = weight.integers().step.numpy().astype(np.float32)
    return step.reshape(-1) if step.ndim else step


def _axis(scale: np.ndarray) -> dict[str, int]:
    return {"axis": 0} if scale.ndim else {}


def bias_codes(bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return ⌊bias/scale⌉ as int32."""
    top = np.iinfo(np.int32).max
    codes: np.ndarray = np.clip(np.round(bias.astype(np.float64) / scale), -top, top).astype(np.int32)
    return codes
