"""Weights in an ONNX graph, in as many bits as they have.

Every weight starts as unsigned codes: native UINT4 (opset 21) and UINT2 (opset 25), plain bytes at 8 bits, and
otherwise one packed bit stream per bit-width that a few standard nodes unpack. Runtimes compute all of that once, at
load. The codes then become

* float weights (weight-only): step · (codes + low), also computed once at load;
* the operand of an integer kernel (weights and activations): the codes as uint8 with zero point −low, or codes + low as
  int8 with zero point 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from anybit.export.extras import need
from anybit.export.graph import NATIVE
from anybit.export.packing import pack
from anybit.export.subject import QuantizedWeight


class Editor:
    """A graph being rewritten: new nodes come before the existing ones, constants of equal content are shared."""

    def __init__(self, proto: Any) -> None:
        self.proto, self.graph = proto, proto.graph
        self.nodes: list[Any] = []
        self._onnx = need("onnx")
        self._known: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def constant(self, array: np.ndarray, name: str = "") -> str:
        """The name of a constant."""
        key = (str(array.dtype), array.tobytes(), array.shape)
        if not name and key in self._known:
            return self._known[key]
        name = name or f"c{len(self._known)}"
        self._known[key] = name
        self.graph.initializer.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: list[str], output: str | list[str], **settings: Any) -> str:
        """Add a node; returns its (first) output."""
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(self._onnx.helper.make_node(op, inputs, outputs, **settings))
        return outputs[0]

    def cast(self, name: str, to: str, output: str) -> str:
        return self.node("Cast", [name], output, to=getattr(self._onnx.TensorProto, to))

    def initializer(self, name: str) -> np.ndarray | None:
        """The value of a constant, or none if the name is no constant."""
        for tensor in self.graph.initializer:
            if tensor.name == name:
                array: np.ndarray = self._onnx.numpy_helper.to_array(tensor)
                return array
        return None

    def drop_input(self, name: str) -> None:
        self.graph.input.remove(next(value for value in self.graph.input if value.name == name))

    def finish(self) -> Any:
        """The graph with the new nodes in a valid order, less what nobody reads."""
        nodes = _ordered([*self.nodes, *self.graph.node],
                         {v.name for v in (*self.graph.initializer, *self.graph.input)} | {""})
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input}
        for tensor in [t for t in self.graph.initializer if t.name not in read]:
            self.graph.initializer.remove(tensor)
        return self.proto


def _ordered(nodes: list[Any], known: set[str]) -> list[Any]:
    """Every node after those whose outputs it reads."""
    out, waiting = [], nodes
    while waiting:
        later = []
        for node in waiting:
            if all(name in known for name in node.input):
                known.update(node.output)
                out.append(node)
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise AssertionError(f"the graph has a cycle or an unknown input: {list(later[0].input)}")
        waiting = later
    return out


def float_weights(editor: Editor, weights: Mapping[str, np.ndarray]) -> None:
    """Weights as they are."""
    for name, array in weights.items():
        editor.drop_input(name)
        editor.constant(array, name)


def store_codes(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int) -> dict[str, str]:
    """{parameter: name of its uint8 codes}. Each bit-width is stored natively or as one stream."""
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
    """How weights of so many bits lie in the file."""
    if bits == 8:
        return "uint8"
    return f"native uint{bits}" if opset >= NATIVE.get(bits, opset + 1) else f"{bits}-bit stream"


def _stream(editor: Editor, weights: Mapping[str, QuantizedWeight], bits: int) -> dict[str, str]:
    """One bit stream for many weights. Bits are spread out by shift and mask and added up by an integer product."""
    sizes = [w.codes.size for w in weights.values()]
    stream = pack(np.concatenate([w.codes.reshape(-1) for w in weights.values()]), bits)
    prefix, total = f"u{bits}", sum(sizes)
    bytes_ = editor.constant(stream.reshape(-1, 1), f"packed{bits}")
    shifted = editor.node("BitShift", [bytes_, editor.constant(np.arange(8, dtype=np.uint8).reshape(1, 8))],
                          f"{prefix}.s", direction="RIGHT")
    digits = editor.node("BitwiseAnd", [shifted, editor.constant(np.ones((1, 1), np.uint8))], f"{prefix}.b")
    flat = editor.node("Reshape", [digits, editor.constant(np.array([-1], np.int64))], f"{prefix}.f")
    ends = [editor.constant(np.array([n], np.int64)) for n in (0, total * bits)]
    exact = editor.node("Slice", [flat, *ends], f"{prefix}.e")
    rows = editor.node("Reshape", [exact, editor.constant(np.array([total, bits], np.int64))], f"{prefix}.r")
    powers = editor.constant((1 << np.arange(bits)).astype(np.uint8).reshape(bits, 1))
    numbers = editor.node("MatMulInteger", [rows, powers], f"{prefix}.n")
    codes = editor.cast(numbers, "UINT8", f"{prefix}.c")
    parts = [f"{name}.p" for name in weights]
    editor.node("Split", [codes, editor.constant(np.array(sizes, np.int64))], parts, axis=0)
    return {name: editor.node("Reshape", [f"{name}.p", editor.constant(np.array(w.codes.shape, np.int64))], f"{name}.q")
            for name, w in weights.items()}


def operands(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int,
             signed: bool) -> dict[str, tuple[str, np.ndarray]]:
    """{parameter: (its integers, their zero point)}."""
    out = {}
    for name, codes in store_codes(editor, weights, opset).items():
        low = weights[name].low
        if signed and low < 0:
            wide = editor.cast(codes, "INT32", f"{name}.w")
            moved = editor.node("Add", [wide, editor.constant(np.array(low, np.int32))], f"{name}.m")
            out[name] = (editor.cast(moved, "INT8", f"{name}.i"), np.array(0, np.int8))
        else:
            out[name] = (codes, np.array(-low, np.uint8))
    return out


def weight_only(editor: Editor, weights: Mapping[str, QuantizedWeight], opset: int) -> None:
    """Float weights from few bits: step · (codes + low). A runtime folds these nodes at load: no latency is added."""
    for name, codes in store_codes(editor, weights, opset).items():
        weight = weights[name]
        editor.drop_input(name)
        whole = editor.cast(codes, "FLOAT", f"{name}.f")
        centred = editor.node("Add", [whole, editor.constant(np.array(weight.low, np.float32))], f"{name}.z")
        editor.node("Mul", [centred, editor.constant(weight.step.numpy().astype(np.float32))], name)
