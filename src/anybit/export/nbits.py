"""Linear layers as MatMulNBits: ONNX Runtime's own operator, which multiplies packed weights and never unpacks them all.

y = x · Bᵀ with B[n, k] = scale · (code − zero point), codes of 4 bits in blocks of 32 along k, each with a scale of its own;
ours repeat, as a step size is one per tensor or per channel, so the file holds them once and the graph expands them at
load. Activations stay in float32, so nothing is added to the training. Other bit-widths are left out: at 2 bits the
operator is slow unless it rounds activations to 8 bits, which no training saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anybit.export.graph import Use
from anybit.export.lowbit import Editor
from anybit.export.subject import QuantizedWeight

KERNEL, DOMAIN = "MatMulNBits", "com.microsoft"
STORAGE = "4-bit blocks"
BITS, BLOCK = 4, 32


def multiply_packed(editor: Editor, uses: Sequence[Use],
                    weights: Mapping[str, QuantizedWeight]) -> tuple[set[str], dict[str, str]]:
    """Replace products by MatMulNBits; return (the weights that it took, {layer: why it is computed in float})."""
    taken, left = set[str](), dict[str, str]()
    for name, weight in weights.items():
        mine = [use for use in uses if use.weight == name]
        if why := _obstacle(editor, mine, weight, name):
            left |= {use.layer: why for use in mine}
            continue
        operands = _operands(editor, weight, name)
        for number, use in enumerate(mine):
            _replace(editor, use, operands, weight.codes.shape, f"{name}.y{number}")
        taken.add(name)
        editor.drop_input(name)
        for node in [n for n in editor.graph.node if name in n.input]:
            editor.graph.node.remove(node)
    if taken:
        editor.proto.opset_import.add(domain=DOMAIN, version=1)
    return taken, left


def _obstacle(editor: Editor, uses: Sequence[Use], weight: QuantizedWeight, name: str) -> str:
    """Say why a weight cannot be multiplied packed; empty if it can."""
    if other := next((use.node.op_type for use in uses if use.node.op_type not in ("Gemm", "MatMul")), ""):
        return f"{KERNEL} is no {other}"
    if weight.bits != BITS:
        return f"{KERNEL} is taken at {BITS} bits, not at {weight.bits}"
    if weight.low != int(weight.low):
        return f"{KERNEL} has no half-integer levels"
    turned = {n.output[0] for n in editor.graph.node if n.op_type == "Transpose" and name in n.input}
    readers = [n for n in editor.graph.node if n.op_type != "Transpose" and turned.union([name]).intersection(n.input)]
    if len(readers) != len(uses) or not all(use.whole and _is_linear(use.node, name, turned) for use in uses):
        return "its weight has other uses"
    return ""


def _is_linear(node: Any, name: str, turned: set[str]) -> bool:
    """Tell whether a node computes x · wᵀ, plus a bias."""
    if node.op_type == "MatMul":
        return node.input[1] in turned
    settings = {a.name: a.i if a.name.startswith("trans") else a.f for a in node.attribute}
    return node.input[1] == name and {"transA": 0, "transB": 0, "alpha": 1, "beta": 1} | settings == {
        "transA": 0, "transB": 1, "alpha": 1, "beta": 1}


def _operands(editor: Editor, weight: QuantizedWeight, name: str) -> list[str]:
    """Store the codes in blocks, and the scales and zero points that the operator takes beside them."""
    (rows, columns), zero = weight.codes.shape, -int(weight.low)
    blocks = -(-columns // BLOCK)
    codes = np.full((rows, blocks * BLOCK), zero, np.uint8)
    codes[:, :columns] = weight.codes
    packed = (codes[:, ::2] | codes[:, 1::2] << BITS).reshape(rows, blocks, BLOCK // 2)
    step = weight.step.numpy().astype(np.float32).reshape(-1, 1)
    shape = editor.constant(np.array([rows, blocks], np.int64))
    scales = editor.node("Expand", [editor.constant(step), shape], f"{name}.e")
    flat = editor.node("Reshape", [scales, editor.constant(np.array([-1], np.int64))], f"{name}.s")
    operands = [editor.constant(packed, f"{name}.q{BITS}"), flat]
    if zero != 2 ** (BITS - 1):
        operands.append(editor.constant(np.full(rows * -(-blocks // 2), zero | zero << BITS, np.uint8)))
    return operands


def _replace(editor: Editor, use: Use, operands: list[str], shape: tuple[int, ...], prefix: str) -> None:
    node, (rows, columns) = use.node, shape
    product = editor.node(KERNEL, [node.input[0], *operands], prefix if use.bias else node.output[0], domain=DOMAIN,
                          K=columns, N=rows, bits=BITS, block_size=BLOCK)
    if use.bias:
        editor.node("Add", [product, use.bias], node.output[0])
    editor.graph.node.remove(node)
