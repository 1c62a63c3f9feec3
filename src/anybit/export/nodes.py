"""The graph of an archive: the traced network as a list of operations, in words that a reader of a few pages knows.

Value 0 is the normalized input, node k makes value k + 1, the last one is the output. A node is {"op", "in": [values],
"shape"} and what its operation needs; shapes are of one example, without the batch. Parameters are named as in the file;
quantizers of activations are nodes of their own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, fx

from anybit.errors import ModelError
from anybit.export.c.layers import check_channels, first_padding, two
from anybit.export.c.trace import layer_of, lowered, operation
from anybit.export.subject import Subject
from anybit.quant.grid import FLOAT, Width

OPERATIONS = ("quantize", "conv", "linear", "group_norm", "batch_norm", "relu", "leaky_relu", "clamp", "sigmoid", "silu",
              "tanh", "hardsigmoid", "hardswish", "scale", "add", "sub", "mul", "max_pool", "avg_pool", "mean",
              "reshape", "window", "cat")
"""Every operation that a graph may hold."""
Node = dict[str, Any]
DIMENSIONS = 4
"""Most dimensions of a value, beside the batch."""


class Value(NamedTuple):
    """A tensor of the graph."""

    number: int
    shape: tuple[int, ...]
    """Batch included, as torch has it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Nodes:
    """The nodes of a network at one width, while they are made."""

    subject: Subject
    width: Width
    names: Mapping[int, str]
    """{identity of a parameter or buffer: its name in the file}."""
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, reads: Sequence[Value], shape: Sequence[int], **attributes: Any) -> Value:
        """Add a node; return what it makes."""
        if not shape or shape[0] != 1 or len(shape) > 1 + DIMENSIONS:
            raise ModelError(f"the graph of an archive is of one example with at most {DIMENSIONS} dimensions, but '{op}' "
                             f"makes {tuple(shape)}")
        self.nodes.append({"op": op, "in": [x.number for x in reads], "shape": list(shape[1:]), **attributes})
        return Value(len(self.nodes), tuple(shape))

    def parameters(self, given: Mapping[str, Any], **keys: str) -> dict[str, str]:
        """Return {key in a node: name in the file} of the tensors that are there."""
        known = {key: given.get(argument) for key, argument in keys.items()}
        if unknown := [key for key, t in known.items() if t is not None and id(t) not in self.names]:
            raise ModelError(f"its {unknown[0]} is computed, and no parameter of the model")
        return {key: self.names[id(t)] for key, t in known.items() if t is not None}

    def on_grid(self, x: Value, parameter: str, layer: str) -> Value:
        """Return the input of a layer, rounded where the width rounds it."""
        _, site = self.subject.fed(parameter, layer)
        quantized = site is not None and self.subject.bits(site, self.width) != FLOAT
        return self.add("quantize", [x], x.shape, site=site) if quantized else x


Lowering = Callable[[Nodes, dict[str, Any], tuple[int, ...], str], Value]
"""(nodes, arguments by name, shape of the result, layer) → the result."""


def nodes_of(subject: Subject, graph: fx.Graph, tensors: Mapping[str, Tensor], width: Width) -> list[Node]:
    """Return the nodes of a traced network at a width; raise for an operation that graphs do not have."""
    names: dict[int, str] = {}
    for name, tensor in subject.model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), name)
    made = Nodes(subject, width, names)
    result = lowered(graph, tensors, partial(Value, 0), partial(_lowered, made))
    if result.number != len(made.nodes) or not made.nodes:
        made.add("reshape", [result], result.shape)
    return made.nodes


def _lowered(nodes: Nodes, node: fx.Node, given: dict[str, Any]) -> Any:
    name, layer = operation(node), layer_of(node)
    if node.target is operator.getitem and node.args[1] == 0:
        return given["self"]
    result = node.meta["val"]
    shape = tuple((result[0] if isinstance(result, list | tuple) else result).shape)
    try:
        if name not in _LOWERINGS:
            raise ModelError(f"the graph of an archive has no operation '{name}'")
        return _LOWERINGS[name](nodes, given, shape, layer)
    except ModelError as error:
        raise ModelError(f"layer '{layer}': {error}" if layer else str(error)) from None


def _x(given: Mapping[str, Any]) -> Value:
    x = given.get("self", given.get("input"))
    if not isinstance(x, Value):
        raise ModelError("it computes with a parameter that is no layer's")
    return x


def _conv(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    names = nodes.parameters(given, weight="weight", bias="bias")
    kernel, dilation = two(given["weight"].shape[2:], 1), two(given["dilation"], 1)
    return nodes.add("conv", [nodes.on_grid(_x(given), names["weight"], layer)], shape, **names, kernel=list(kernel),
                     stride=list(two(given["stride"], 1)), padding=list(first_padding(given["padding"], kernel, dilation)),
                     dilation=list(dilation), groups=given["groups"])


def _linear(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    names = nodes.parameters(given, weight="weight", bias="bias")
    return nodes.add("linear", [nodes.on_grid(_x(given), names["weight"], layer)], shape, **names)


def _group_norm(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    return nodes.add("group_norm", [_x(given)], shape, **nodes.parameters(given, weight="weight", bias="bias"),
                     groups=given["num_groups"], eps=given["eps"])


def _batch_norm(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    names = nodes.parameters(given, weight="weight", bias="bias", mean="running_mean", variance="running_var")
    return nodes.add("batch_norm", [_x(given)], shape, **names, eps=given["eps"])


def _plain(op: str, **attributes: Any) -> Lowering:
    return lambda nodes, given, shape, layer: nodes.add(op, [_x(given)], shape, **attributes)


def _clamp(low: str, high: str) -> Lowering:
    def lowering(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        ends = {"low": given.get(low), "high": given.get(high)}
        if not all(end is None or isinstance(end, int | float) for end in ends.values()):
            raise ModelError("the graph of an archive clamps to numbers alone")
        finite = {key: end for key, end in ends.items() if end is not None and math.isfinite(end)}
        return nodes.add("clamp", [_x(given)], shape, **finite)
    return lowering


def _binary(op: str) -> Lowering:
    def lowering(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        a, b, alpha = _x(given), given["other"], given.get("alpha", 1)
        if given.get("rounding_mode") is not None:
            raise ModelError("the graph of an archive does not round quotients (rounding_mode)")
        if isinstance(b, int | float):
            sign = -1 if op == "sub" else 1
            factor, shift = (b if op == "mul" else 1 / b, 0) if op in ("mul", "div") else (1, sign * b * alpha)
            return nodes.add("scale", [a], shape, factor=factor, shift=shift)
        b = _x({"self": b})
        a, b = (b, a) if op in ("add", "mul") and b.size > a.size else (a, b)
        leading = len(b.shape) - next((i for i, n in enumerate(reversed(b.shape)) if n != 1), len(b.shape))
        if op == "div" or alpha != 1 or a.shape != shape or len(a.shape) != len(b.shape) or \
                a.shape[:leading] != b.shape[:leading]:
            raise ModelError(f"the graph of an archive does not {op} {b.shape} to {a.shape}")
        return nodes.add(op, [a, b], shape)
    return lowering


def _pool(op: str) -> Lowering:
    def lowering(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
        check_channels(_x(given).shape, 2)
        pairs = {key: [n[0], n[-1]] for key, n in (("kernel", given["kernel_size"]),
                                                   ("stride", given["stride"] or given["kernel_size"]),
                                                   ("padding", given["padding"]))}
        if given.get("divisor_override"):
            raise ModelError("the graph of an archive has no divisor_override")
        wide = given.get("dilation", [1])
        own = {} if op == "max_pool" else {"border": int(given["count_include_pad"])}
        return nodes.add(op, [_x(given)], shape, **pairs, dilation=[wide[0], wide[-1]], **own)
    return lowering


def _adaptive(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    """Add windows of equal size, where the sides can be divided so."""
    x = _x(given)
    check_channels(x.shape, 2)
    sides = [n // m for n, m in zip(x.shape[2:], shape[2:], strict=True)]
    if any(n % m for n, m in zip(x.shape[2:], shape[2:], strict=True)):
        raise ModelError(f"the graph of an archive does not divide {x.shape[2:]} into {shape[2:]} equal windows")
    return nodes.add("avg_pool", [x], shape, kernel=sides, stride=sides, padding=[0, 0], dilation=[1, 1], border=0)


def _mean(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = _x(given)
    dims = sorted(d % len(x.shape) for d in given["dim"] or range(1, len(x.shape)))
    if dims != list(range(len(x.shape) - len(dims), len(x.shape))) or 0 in dims:
        raise ModelError("the graph of an archive has means over the last dimensions alone")
    return nodes.add("mean", [x], shape)


def _same(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x = _x(given)
    return x if x.shape == shape else nodes.add("reshape", [x], shape)


def _slice(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    x, dim, first = _x(given), given["dim"] % len(shape), given["start"] or 0
    start, step = [0] * len(shape), [1] * len(shape)
    start[dim], step[dim] = max(first + x.shape[dim] if first < 0 else first, 0), given["step"]
    return x if x.shape == shape else _window(nodes, x, shape, start=start, step=step)


def _window(nodes: Nodes, x: Value, shape: tuple[int, ...], axes: Sequence[int] = (), start: Sequence[int] = (),
            step: Sequence[int] = (), value: float = 0) -> Value:
    """Add y[i] = x[j] with j[axes[d]] = start[d] + step[d] · i[d], or `value` where that is outside; batch included."""
    if axes and axes[0] != 0:
        raise ModelError("the graph of an archive does not move the batch")
    size = len(shape) - 1
    return nodes.add("window", [x], shape, axes=[d - 1 for d in axes[1:]] or list(range(size)),
                     start=list(start[1:]) or [0] * size, step=list(step[1:]) or [1] * size, value=value)


def _permute(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    return _window(nodes, _x(given), shape, axes=[d % len(shape) for d in given["dims"]])


def _transpose(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    axes, (a, b) = list(range(len(shape))), (given[key] % len(shape) for key in ("dim0", "dim1"))
    axes[a], axes[b] = axes[b], axes[a]
    return _window(nodes, _x(given), shape, axes=axes)


def _pad(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    border = list(given["pad"])
    if given.get("mode", "constant") != "constant" or not math.isfinite(given.get("value") or 0):
        raise ModelError("the graph of an archive has borders of a finite constant alone")
    before = [0] * (len(shape) - len(border) // 2) + border[-2::-2]
    return _window(nodes, _x(given), shape, start=[-n for n in before], value=given.get("value") or 0)


def _cat(nodes: Nodes, given: dict[str, Any], shape: tuple[int, ...], layer: str) -> Value:
    if given["dim"] % len(shape) != 1:
        raise ModelError("the graph of an archive joins channels alone")
    return nodes.add("cat", [_x({"self": x}) for x in given["tensors"]], shape)


_LOWERINGS: dict[str, Lowering] = {
    "conv1d": _conv, "conv2d": _conv, "linear": _linear, "group_norm": _group_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    **{op: _plain(op) for op in ("relu", "sigmoid", "silu", "tanh", "hardsigmoid", "hardswish")},
    "relu6": _plain("clamp", low=0, high=6), "hardtanh": _clamp("min_val", "max_val"), "clamp": _clamp("min", "max"),
    "clamp_min": _clamp("min", "max"), "neg": _plain("scale", factor=-1, shift=0),
    "leaky_relu": lambda nodes, given, shape, layer: nodes.add("leaky_relu", [_x(given)], shape,
                                                               slope=given["negative_slope"]),
    **{op: _binary(op) for op in ("add", "sub", "mul", "div")},
    "max_pool2d": _pool("max_pool"), "avg_pool2d": _pool("avg_pool"), "adaptive_avg_pool2d": _adaptive,
    "mean": _mean, "slice": _slice, "permute": _permute, "transpose": _transpose, "pad": _pad,
    "constant_pad_nd": _pad, "cat": _cat,
    **dict.fromkeys(("view", "reshape", "flatten", "_unsafe_view", "unsqueeze", "squeeze", "clone", "contiguous", "dropout",
                     "alias", "detach", "unflatten", "to", "_to_copy", "lift_fresh_copy"), _same),
}
