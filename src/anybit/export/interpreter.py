"""The graph of an archive in torch: what its readers in C and JavaScript compute, for whole batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anybit.export.nodes import OPERATIONS, Node
from anybit.quant.grid import Grid, quantize

LARGEST = 1 << 28
"""Most numbers of a value of one example: a small file cannot ask for all memory."""


def computed(nodes: Sequence[Node], tensors: Mapping[str, Tensor], grids: Mapping[str, Grid], x: Tensor,
             precise: bool = False) -> Tensor:
    """Return the output of a graph for a batch of normalized inputs.

    precise: every node computes in float64 and is rounded to float32, as readers do, instead of in float32, as evaluations.
    """
    kind = torch.float64 if precise else torch.float32
    values = [x]
    for number, node in enumerate(nodes):
        if node["op"] not in OPERATIONS:
            raise ValueError(f"operation '{node['op']}' is unknown")
        if math.prod(node["shape"]) > LARGEST or not all(0 <= i <= number for i in node["in"]):
            raise ValueError(f"node {number} has an impossible size or input")
        given = [values[i] for i in node["in"]]
        if node["op"] == "quantize":
            values.append(quantize(given[0], grids[node["site"]]))
            continue
        own = {key: tensors[node[key]].to(kind) for key in ("weight", "bias", "mean", "variance") if key in node}
        result = _FUNCTIONS[node["op"]](node, own, *(v.to(kind) for v in given))
        values.append(result.reshape(len(x), *node["shape"]).to(torch.float32))
    return values[-1]


Function = Callable[..., Tensor]
"""(node, its tensors, what it reads) → the result."""


def _conv(node: Node, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    line, weight = x.dim() == 3, own["weight"]
    x, weight = (x.unsqueeze(2), weight.unsqueeze(2)) if line else (x, weight)
    rows, columns = _sides(node)
    settings = {"stride": node["stride"], "dilation": node["dilation"], "groups": node["groups"]}
    y = F.conv2d(x, weight, own.get("bias"), padding=node["padding"], **settings)
    if y.shape[2:] == (rows, columns):
        return y
    top, left = node["padding"]  # an even window that keeps the size has one more row or column behind
    return F.conv2d(F.pad(x, (left, left + 1, top, top + 1)), weight, own.get("bias"), **settings)[..., :rows, :columns]


def _sides(node: Node) -> tuple[int, int]:
    return (1, *node["shape"][1:]) if len(node["shape"]) == 2 else tuple(node["shape"][1:])


def _max_pool(node: Node, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return _fitting(node, lambda ceil: F.max_pool2d(x, node["kernel"], node["stride"], node["padding"], node["dilation"],
                                                    ceil_mode=ceil))


def _avg_pool(node: Node, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return _fitting(node, lambda ceil: F.avg_pool2d(x, node["kernel"], node["stride"], node["padding"], ceil,
                                                    bool(node["border"])))


def _fitting(node: Node, pool: Callable[[bool], Tensor]) -> Tensor:
    y = pool(False)
    return y if list(y.shape[1:]) == node["shape"] else pool(True)


def _batch_norm(node: Node, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return F.batch_norm(x, own["mean"], own["variance"], own.get("weight"), own.get("bias"), eps=node["eps"])


def _window(node: Node, own: Mapping[str, Tensor], x: Tensor) -> Tensor:
    x = x.permute(0, *(axis + 1 for axis in node["axes"]))
    for dim, (size, start, step) in enumerate(zip(node["shape"], node["start"], node["step"], strict=True), 1):
        place = start + step * torch.arange(size)
        inside = ((place >= 0) & (place < x.shape[dim])).reshape(-1, *[1] * (x.dim() - 1 - dim))
        x = torch.where(inside, x.index_select(dim, place.clamp(0, x.shape[dim] - 1)), node["value"])
    return x


def _spread(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda node, own, a, b: function(a, b)


def _each(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda node, own, x: function(x)


_FUNCTIONS: dict[str, Function] = {
    "conv": _conv, "linear": lambda node, own, x: F.linear(x, own["weight"], own.get("bias")),
    "group_norm": lambda node, own, x: F.group_norm(x, node["groups"], own.get("weight"), own.get("bias"), node["eps"]),
    "batch_norm": _batch_norm,
    "relu": _each(torch.relu), "sigmoid": _each(torch.sigmoid), "silu": _each(F.silu), "tanh": _each(torch.tanh),
    "hardsigmoid": _each(F.hardsigmoid), "hardswish": _each(F.hardswish),
    "leaky_relu": lambda node, own, x: F.leaky_relu(x, node["slope"]),
    "clamp": lambda node, own, x: x.clamp(node.get("low"), node.get("high")),
    "scale": lambda node, own, x: x * node["factor"] + node["shift"],
    "add": _spread(torch.add), "sub": _spread(torch.sub), "mul": _spread(torch.mul),
    "max_pool": _max_pool, "avg_pool": _avg_pool,
    "mean": lambda node, own, x: x.reshape(len(x), math.prod(node["shape"]), -1).mean(-1),
    "reshape": lambda node, own, x: x, "window": _window, "cat": lambda node, own, *parts: torch.cat(parts, 1),
}


def normalized(facts: Mapping[str, Any], x: Tensor) -> Tensor:
    """Return what value 0 is of raw inputs: bytes/255, then (x − mean)/std per channel, every step in float32."""
    x = x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x
    if not facts["mean"]:
        return x
    mean, std = (torch.tensor(facts[key], dtype=torch.float32).reshape(-1, *[1] * (x.dim() - 2)) for key in ("mean", "std"))
    return (x - mean) / std
