"""Low-bit weights in an ONNX graph.

Every weight starts as unsigned codes: native UINT4 (opset 21) and UINT2 (opset 25), plain bytes at 8 bits, and
otherwise one packed bit stream per bit-width, which standard nodes unpack. Runtimes do so once, at load. The codes become

* float weights (weight-only): step · (codes + low), also computed once at load;
* the operand of an integer kernel (weights and activations): the codes as uint8 with zero point −low, or codes + low as
  int8 with zero point 0; of half-integer levels, twice that (see `QuantizedWeight.integers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from anybit.export.extras import need
from anybit.export.graph import NATIVE
from anybit.export.packing import pack
from anybit.export.subject import QuantizedWeight


class Editor:
    """An editor of a graph: new nodes come before the existing ones, constants of equal content are shared."""

    def __init__(self, proto: Any) -> None:
        self.proto, self.graph = proto, proto.graph
        self.nodes: list[Any] = []
        self._onnx = need("onnx")
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._taken = {value.name for value in (*self.graph.initializer, *self.graph.input)} | \
            {name for node in self.graph.node for name in node.output}

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """Add a constant and return its name."""
        key = (str(array.dtype), array.tobytes(), array.shape)
        if not name and key in self._constants:
            return self._constants[key]
        name = name or next(free for i in itertools.count(len(self._constants)) if (free := f"c{i}") not in self._taken)
        self._constants[key] = name
        self._taken.add(name)
        self.graph.initializer.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], output: str | list[str], **settings: Any) -> str:
        """Add a node and return its (first) output."""
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(self._onnx.helper.make_node(op, inputs, outputs, **settings))
        return outputs[0]

    def cast(self, name: str, to: str, output: str) -> str:
        return self.node("Cast", [name], output, to=getattr(self._onnx.TensorProto, to))

    def initializer(self, name: str) -> np.ndarray | None:
        """Return the value of a constant, or None if there is none of that name."""
        return next((self._onnx.numpy_helper.to_array(t) for t in self.graph.initializer if t.name == name), None)

    def drop_input(self, name: str) -> None:
        self.graph.input.remove(next(value for value in self.graph.input if value.name == name))

    def finish(self) -> Any:
        """Put all nodes in a valid order, drop constants that no node reads, and return the model."""
        nodes = _ordered([*self.nodes, *self.graph.node],
                         {v.name for v in (*self.graph.initializer, *self.graph.input)} | {""})
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input}
        for tensor in [t for t in self.graph.initializer if t.name not in read]:
            self.graph.initializer.remove(tensor)
        return self.proto


def _ordered(nodes: list[Any], available: set[str]) -> list[Any]:
    """Order nodes so that each comes after those whose outputs it reads."""
    out, waiting = [], nodes
    while waiting:
        later = []
        for node in waiting:
            if available.issuperset(node.input):
                available.update(node.output)
                out.append(node)
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise AssertionError(f"the graph has a cycle or an unknown input: {list(later[0].input)}")
        waiting = later
    return out


def store_codes(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int) -> dict[str, str]:
    """Store every bit-width natively or as one stream; return {parameter: name of its uint8 codes}."""
    out: dict[str, str] = {}
    for bits in sorted({weight.bits for weight in weights.values()}):
        same = {name: w for name, w in weights.items() if w.bits == bits}
        if bits == 8:
            out |= {name: editor.constant(w.codes, f"{name}.q") for name, w in same.items()}
        elif bits in NATIVE and opset >= NATIVE[bits]:
            kind = getattr(need("ml_dtypes"), f"uint{bits}")
            for name, w in same.items():
                stored = editor.constant(w.codes.astype(kind), f"{name}.q{bits}")
                out[name] = editor.cast(stored, "UINT8", f"{name}.q")
        else:
            out |= _stream(editor, same, bits)
    return out


def storage(bits: int, opset: int) -> str:
    """Return the storage type of weights of so many bits."""
    if bits == 8:
        return "uint8"
    return f"native uint{bits}" if opset >= NATIVE.get(bits, opset + 1) else f"{bits}-bit stream"


def _stream(editor: Editor, weights: Mapping[str, QuantizedWeight], bits: int) -> dict[str, str]:
    """Store weights as one bit stream, whose bits are masked out and added up by an integer product.

    Nothing is shifted: OpenVINO on x86-64 shifts bytes wrongly, without an error.
    """
    sizes = [w.codes.size for w in weights.values()]
    stream = pack(np.concatenate([w.codes.reshape(-1) for w in weights.values()]), bits)
    prefix, total = f"u{bits}", sum(sizes)
    packed = editor.constant(stream.reshape(-1, 1), f"packed{bits}")
    masks = editor.constant((1 << np.arange(8)).astype(np.uint8).reshape(1, 8))
    masked = editor.node("BitwiseAnd", [packed, masks], f"{prefix}.m")
    digits = editor.cast(editor.cast(masked, "BOOL", f"{prefix}.t"), "UINT8", f"{prefix}.b")
    flat = editor.node("Reshape", [digits, editor.constant(np.array([-1], np.int64))], f"{prefix}.f")
    ends = [editor.constant(np.array([n], np.int64)) for n in (0, total * bits)]
    exact = editor.node("Slice", [flat, *ends], f"{prefix}.e")
    rows = editor.node("Reshape", [exact, editor.constant(np.array([total, bits], np.int64))], f"{prefix}.r")
    powers = editor.constant((1 << np.arange(bits)).astype(np.uint8).reshape(bits, 1))
    numbers = editor.node("MatMulInteger", [rows, powers], f"{prefix}.n")
    codes = editor.cast(numbers, "UINT8", f"{prefix}.c")
    editor.node("Split", [codes, editor.constant(np.array(sizes, np.int64))], [f"{name}.p" for name in weights], axis=0)
    return {name: editor.node("Reshape", [f"{name}.p", editor.constant(np.array(w.codes.shape, np.int64))], f"{name}.q")
            for name, w in weights.items()}


def operands(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int,
             signed: bool) -> dict[str, tuple[str, np.ndarray]]:
    """Return {parameter: (name of its integers, their zero point)}."""
    out = {}
    for name, codes in store_codes(editor, weights, opset).items():
        factor, low, _ = weights[name].integers()
        if factor == 2:
            codes = editor.node("BitShift", [codes, editor.constant(np.array(1, np.uint8))], f"{name}.d", direction="LEFT")
        if signed and low < 0:
            unsigned = editor.cast(codes, "INT32", f"{name}.w")
            centred = editor.node("Add", [unsigned, editor.constant(np.array(low, np.int32))], f"{name}.m")
            out[name] = (editor.cast(centred, "INT8", f"{name}.i"), np.array(0, np.int8))
        else:
            out[name] = (codes, np.array(-low, np.uint8))
    return out


def weight_only(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int) -> None:
    """Add float weights step · (codes + low), which a runtime folds at load, so that they add no latency."""
    for name, codes in store_codes(editor, weights, opset).items():
        weight = weights[name]
        editor.drop_input(name)
        unsigned = editor.cast(codes, "FLOAT", f"{name}.f")
        centred = editor.node("Add", [unsigned, editor.constant(np.array(weight.low, np.float32))], f"{name}.z")
        editor.node("Mul", [centred, editor.constant(weight.step.numpy().astype(np.float32))], name)
