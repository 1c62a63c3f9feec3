"""One ONNX model per width, from the float graph, the trained steps and what integer kernels need besides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from anybit.export.extras import need
from anybit.export.graph import DEFAULT_OPSET, check_opset, float_graph, uses
from anybit.export.integer import FUSED, Activations, kernel, quantize_all
from anybit.export.lowbit import Editor, float_weights, storage, weight_only
from anybit.export.reference import Additions, output_grids
from anybit.export.subject import QuantizedWeight, Subject
from anybit.quant.grid import FLOAT, Width


@dataclass(frozen=True)
class OnnxModel:
    """A model ready to be written, with what it promises."""

    proto: Any
    width: Width
    added: Additions
    kernels: dict[str, int]
    """Integer kernels that a runtime must fuse: {kind: how many}."""
    in_float: dict[str, str]
    """{layer: why it is computed in float}."""
    storage: dict[str, str]
    """{bits: how weights of so many bits are stored}."""


@dataclass(frozen=True)
class OnnxExporter:
    """Makes models of one subject; the float graph is exported once."""

    subject: Subject
    opset: int = DEFAULT_OPSET
    signed: bool = False
    """Weights as int8 instead of uint8 where activations are quantized."""
    exact: bool = False
    """No output quantizers: convolutions as ConvInteger, slower."""
    metadata: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _float(self) -> Any:
        return float_graph(self.subject.model, self.subject.images, self.subject.layers, check_opset(self.opset))

    def model(self, width: Width) -> OnnxModel:
        """The model at a width: FP32, weight-only, or weights and activations."""
        proto = type(self._float)()
        proto.CopyFrom(self._float)
        editor, weights = Editor(proto), self.subject.quantized_weights(width)
        plain = {f"{n}.weight" for n in self.subject.layers} - set(weights)
        w = self.subject.w()
        float_weights(editor, {name: w[name].numpy() for name in sorted(plain)})
        stored = {str(q.bits): storage(q.bits, self.opset) for q in weights.values()}
        if width.activations == FLOAT:
            weight_only(editor, weights, self.opset)
            return OnnxModel(self._finished(editor, width), width, Additions(), {}, {}, stored)
        return self._integer(editor, width, weights, stored)

    def _integer(self, editor: Editor, width: Width, weights: Mapping[str, QuantizedWeight],
                 stored: dict[str, str]) -> OnnxModel:
        found = uses(editor.graph, self.subject.layers)
        inputs = {layer: self.subject.grid(f"{layer}.input_quantizer", width) for layer in self.subject.layers
                  if self.subject.bits(f"{layer}.input_quantizer", width) != FLOAT}
        integer = [u for u in found if u.layer in inputs and f"{u.layer}.weight" in weights]
        kernels = Counter(kernel(u.node.op_type, self.exact) for u in integer)
        fused = [] if self.exact else [u for u in integer if kernel(u.node.op_type, self.exact) == FUSED]
        outputs = output_grids(self.subject, width, list(dict.fromkeys(u.layer for u in fused)))
        added = Additions(outputs, tuple(dict.fromkeys(u.layer for u in fused if u.bias)))
        in_float = quantize_all(editor, found, weights, Activations(inputs, outputs), self.opset,
                                self.signed and not self.exact)
        return OnnxModel(self._finished(editor, width), width, added, {k: n for k, n in kernels.items() if k}, in_float,
                         stored)

    def _finished(self, editor: Editor, width: Width) -> Any:
        onnx = need("onnx")
        proto = editor.finish()
        proto.producer_name, proto.producer_version = "anybit", ""
        onnx.helper.set_model_props(proto, {"width": str(width), **self.metadata})
        onnx.checker.check_model(proto)
        return proto
