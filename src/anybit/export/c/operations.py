"""What a traced network may hold beside layers, and how each becomes a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from anybit.errors import ModelError, option
from anybit.export.c.layers import Geometry, check_channels, conv, linear
from anybit.export.c.moves import cat, expand, pad, permute, same, select, slices, spread, transpose
from anybit.export.c.program import Lowering, Program, Value, number

UNARY = {
    "relu": "v > 0.0f ? v : 0.0f",
    "clamp": "v < low ? low : v > high ? high : v",
    "leaky_relu": "v > 0.0f ? v : v * slope",
    "elu": "v > 0.0f ? v : slope * expm1f(v)",
    "hardswish": "v * (v < -3.0f ? 0.0f : v > 3.0f ? 6.0f : v + 3.0f) / 6.0f",
    "hardsigmoid": "(v < -3.0f ? 0.0f : v > 3.0f ? 6.0f : v + 3.0f) / 6.0f",
    "sigmoid": "1.0f / (1.0f + expf(-v))",
    "silu": "v / (1.0f + expf(-v))",
    "gelu": "0.5f * v * (1.0f + erff(v * 0.707106781f))",
    "tanh": "tanhf(v)",
    "exp": "expf(v)",
    "sqrt": "sqrtf(v)",
    "abs": "v < 0.0f ? -v : v",
    "neg": "-v",
    "add_scalar": "v + c",
    "mul_scalar": "v * c",
    "copy": "v",
}
"""{kernel: what it makes of a number v}."""
BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
PARAMETERS = {"clamp": ", float low, float high", "leaky_relu": ", float slope", "elu": ", float slope",
              "add_scalar": ", float c", "mul_scalar": ", float c"}


def unary(program: Program, x: Value, name: str, *parameters: float) -> Value:
    """Add a function of single numbers."""
    kernel = program.use(f"each_{name}", "unary", expression=UNARY[name], parameters=PARAMETERS.get(name, ""))
    extra = "".join(f", {number(p)}" for p in parameters)
    return program.call(f"{kernel}({{0}}, {{y}}, {x.size}{extra});", [x], x.shape, True)


def _plain(name: str) -> Lowering:
    return lambda program, given, shape, layer: unary(program, given["self"], name)


def _clamp(low: str, high: str) -> Lowering:
    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        ends = (given.get(low), given.get(high))
        if not all(end is None or isinstance(end, int | float) for end in ends):
            place = f"layer '{layer}': " if layer else ""
            raise ModelError(f"{place}the C export clamps to numbers, and not to tensors: use a Python number, or "
                             f"{option('runtime', 'onnx')}")
        return unary(program, given["self"], "clamp", *(e if e is not None else s * math.inf
                                                       for e, s in zip(ends, (-1, 1), strict=True)))
    return lowering


def _slope(name: str) -> Lowering:
    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        if given.get("scale", 1) != 1 or given.get("input_scale", 1) != 1:
            raise ModelError(f"layer '{layer}': its activation has scales of its own; use {option('runtime', 'onnx')}")
        return unary(program, given["self"], name, given["negative_slope" if name == "leaky_relu" else "alpha"])
    return lowering


def _gelu(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    if given["approximate"] != "none":
        raise ModelError(f"layer '{layer}': GELU by tanh is not in the C export; use approximate='none', or "
                         + option("runtime", "onnx"))
    return unary(program, given["self"], "gelu")


def _binary(name: str) -> Lowering:
    sign = BINARY[name]

    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        a, b, alpha = given["self"], given["other"], given.get("alpha", 1)
        if given.get("rounding_mode") is not None:
            raise ModelError(f"layer '{layer}': the C export does not round quotients (rounding_mode); use "
                             f"{option('runtime', 'onnx')}")
        if not isinstance(b, Value):
            shift = (-1 if name == "sub" else 1) * b * alpha
            factor = 1 / b if name == "div" else b
            return unary(program, a, *(("add_scalar", shift) if name in ("add", "sub") else ("mul_scalar", factor)))
        b = unary(program, b, "mul_scalar", alpha) if alpha != 1 else b
        if a.shape == b.shape:
            kernel = program.use(name, "binary", sign=sign)
            return program.call(f"{kernel}({{0}}, {{1}}, {{y}}, {a.size});", [a, b], shape, True)
        return spread(program, program.use(f"{name}_spread", "spread", sign=sign), a, b, shape, layer)
    return lowering


def _batch_norm(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Add y = x · γ/√(σ² + ε) + (β − μ · γ/√(σ² + ε)), with both factors computed here."""
    x, mean = given["input"], given["running_mean"].double()
    scale = (given["running_var"].double() + given["eps"]).rsqrt()
    scale = scale if given["weight"] is None else scale * given["weight"].detach().double()
    shift = -mean * scale if given["bias"] is None else given["bias"].detach().double() - mean * scale
    names = [program.array(t.numpy().astype(np.float32), f"{layer}.{n}") for t, n in ((scale, "scale"), (shift, "shift"))]
    area = x.size // x.shape[1]
    return program.call(f"{program.use('affine')}({{0}}, {{y}}, {x.shape[1]}, {area}, {names[0]}, {names[1]});", [x], shape,
                        True)


def _group_norm(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x, groups = given["input"], given["num_groups"]
    channels = x.shape[1]
    names = [_array(program, given[key], f"{layer}.{key}") for key in ("weight", "bias")]
    return program.call(f"{program.use('group_norm')}({{0}}, {{y}}, {groups}, {channels // groups}, {x.size // channels}, "
                        f"{number(given['eps'])}, {names[0]}, {names[1]});", [x], shape, True)


def _array(program: Program, tensor: Tensor | None, name: str) -> str:
    return "0" if tensor is None else program.array(tensor.detach().numpy().astype(np.float32), name)


def _pool(name: str, dims: int) -> Lowering:
    flat = dims == 1

    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        x = given["self"]
        check_channels(x.shape, dims, layer)
        sizes = [_pair(given[key], flat) for key in ("kernel_size", "stride")]
        where = Geometry(x.shape[1], _pair(x.shape[2:], flat), x.shape[1], _pair(shape[2:], flat), 1, sizes[0],
                         sizes[1] or sizes[0], _pair(given.get("dilation", (1,)), flat),
                         _pair(given["padding"], flat, 0)).structure(program, layer)
        extra = "" if name == "max_pool" else \
            f", {int(given['count_include_pad'])}, {given.get('divisor_override') or 0}"
        return program.call(f"{program.use(name)}({{0}}, {{y}}, {where}{extra});", [x], shape)
    return lowering


def _pair(numbers: Sequence[int], flat: bool, across: int = 1) -> tuple[int, int]:
    """Return (rows, columns); of one dimension, what is `flat`, with one row."""
    return (across if flat else numbers[0], numbers[-1]) if numbers else ()  # type: ignore[return-value]


def _adaptive(dims: int) -> Lowering:
    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        x = given["self"]
        check_channels(x.shape, dims, layer)
        sizes = ", ".join(map(str, (x.shape[1], *_pair(x.shape[2:], dims == 1), *_pair(shape[2:], dims == 1))))
        return program.call(f"{program.use('adaptive_avg_pool')}({{0}}, {{y}}, {sizes});", [x], shape)
    return lowering


def _mean(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = given["self"]
    dims = sorted(d % len(x.shape) for d in given["dim"] or range(1, len(x.shape)))
    if dims != list(range(len(x.shape) - len(dims), len(x.shape))) or 0 in dims:
        raise ModelError(f"layer '{layer}': the C export takes means over the last dimensions alone; permute before")
    size = math.prod(x.shape[d] for d in dims)
    return program.call(f"{program.use('mean')}({{0}}, {{y}}, {x.size // size}, {size});", [x], shape)


def _softmax(logarithm: bool) -> Lowering:
    def lowering(program: Program, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        x, dim = given["self"], given["dim"] % len(shape)
        sizes = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1:]), int(logarithm))
        return program.call(f"{program.use('softmax')}({{0}}, {{y}}, {', '.join(map(str, sizes))});", [x], shape, True)
    return lowering


OPERATIONS: dict[str, Lowering] = {
    "conv1d": conv, "conv2d": conv, "linear": linear,
    "_native_batch_norm_legit_no_training": _batch_norm, "group_norm": _group_norm,
    **{name: _plain(name) for name in ("relu", "hardswish", "hardsigmoid", "sigmoid", "silu", "tanh", "exp", "sqrt", "abs",
                                       "neg")},
    "hardtanh": _clamp("min_val", "max_val"), "relu6": lambda p, given, s, n: unary(p, given["self"], "clamp", 0, 6),
    "clamp": _clamp("min", "max"), "clamp_min": _clamp("min", "max"), "leaky_relu": _slope("leaky_relu"),
    "elu": _slope("elu"), "gelu": _gelu, **{name: _binary(name) for name in BINARY},
    **{f"{name}{dims}d": _pool(name, dims) for name in ("max_pool", "avg_pool") for dims in (1, 2)},
    **{f"adaptive_avg_pool{dims}d": _adaptive(dims) for dims in (1, 2)}, "mean": _mean,
    "softmax": _softmax(False), "_softmax": _softmax(False), "log_softmax": _softmax(True), "_log_softmax": _softmax(True),
    "cat": cat, "pad": pad, "constant_pad_nd": pad, "permute": permute, "transpose": transpose, "slice": slices,
    "select": select, "expand": expand,
    **dict.fromkeys(("view", "reshape", "flatten", "_unsafe_view", "unsqueeze", "squeeze", "clone", "contiguous", "dropout",
                     "alias", "detach", "unflatten", "to", "_to_copy", "lift_fresh_copy"), same),
}
"""{operation of torch: how it becomes C}."""
