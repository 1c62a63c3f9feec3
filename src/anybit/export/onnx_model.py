"""One ONNX model per width, from the float graph, the trained step sizes and the additions for integer kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from anybit.export.extras import need
from anybit.export.graph import DEFAULT_OPSET, check_opset, float_graph, uses
from anybit.export.integer import FUSED, Activations, kernel, quantize_all
from anybit.export.lowbit import Editor, storage, weight_only
from anybit.export.nbits import KERNEL, STORAGE, multiply_packed
from anybit.export.reference import Additions, output_grids
from anybit.export.subject import QuantizedWeight, Subject
from anybit.quant.grid import FLOAT, Width
from anybit.quant.kinds import kind_of
from anybit.quant.sites import prepare


@dataclass(frozen=True)
class OnnxModel:
    """A model ready to be written, with its promises."""

    proto: Any
    added: Additions
    kernels: dict[str, int]
    """{kind of integer kernel: how many a runtime must fuse}."""
    in_float: dict[str, str]
    """{layer: why it is computed in float}."""
    storage: dict[str, str]
    """{bits: storage type of their weights}."""


@dataclass(frozen=True)
class OnnxExporter:
    """A maker of models of one subject; the float graph is exported once."""

    subject: Subject
    opset: int = DEFAULT_OPSET
    signed: bool = False
    """Weights as int8 instead of uint8 where activations are quantized."""
    exact: bool = False
    packed: bool = False
    """Linear layers of 4-bit weights as MatMulNBits where activations are not quantized."""
    metadata: dict[str, str] = field(default_factory=dict)

    @cached_property
    def _float(self) -> Any:
        return float_graph(self._plain, self.subject.images, list(self.subject.matrices), check_opset(self.opset),
                           self.subject.output)

    @cached_property
    def _plain(self) -> nn.Module:
        """The model; in plain operations, as it is trained, where the exporter would put other matrices in their place."""
        model = self.subject.model
        if any((kind := kind_of(module)) and kind.rebuilt for module in model.modules()):
            return prepare(model, options=self.subject.evaluator.sites).eval()
        return model

    def model(self, width: Width) -> OnnxModel:
        """Make the model at a width: FP32, weight-only, or weights and activations."""
        proto = type(self._float)()
        proto.CopyFrom(self._float)
        editor, weights = Editor(proto), self.subject.quantized_weights(width)
        w = self.subject.w()
        for name in sorted(set(self.subject.matrices) - set(weights)):
            editor.drop_input(name)
            editor.constant(w[name].numpy(), name)
        stored = {str(q.bits): storage(q.bits, self.opset) for q in weights.values()}
        if width.activations == FLOAT:
            return self._weight_only(editor, width, weights, stored)
        return self._integer(editor, width, weights, stored)

    def _weight_only(self, editor: Editor, width: Width, weights: Mapping[str, QuantizedWeight],
                     stored: dict[str, str]) -> OnnxModel:
        products = uses(editor.graph, self.subject.matrices) if self.packed else []
        taken, in_float = multiply_packed(editor, products, weights) if self.packed else (set[str](), {})
        rest = {name: weight for name, weight in weights.items() if name not in taken}
        weight_only(editor, rest, self.opset)
        if taken:
            kinds = [stored[str(bits)] for bits in {w.bits for w in rest.values()} & {w.bits for w in weights.values()}]
            stored = stored | {str(weights[name].bits): ", ".join((*kinds, STORAGE)) for name in taken}
        kernels = {KERNEL: sum(use.weight in taken for use in products)} if taken else {}
        return OnnxModel(self._finished(editor, width), Additions(), kernels, in_float, stored)

    def _integer(self, editor: Editor, width: Width, weights: Mapping[str, QuantizedWeight],
                 stored: dict[str, str]) -> OnnxModel:
        products = uses(editor.graph, self.subject.matrices)
        inputs = {layer: self.subject.grid(site, width) for layer, site in self.subject.input_sites.items()
                  if self.subject.bits(site, width) != FLOAT}
        integer = [u for u in products if u.layer in inputs and u.weight in weights and u.whole]
        kernels = Counter(kernel(u.node.op_type, self.exact) for u in integer)
        fused = [] if self.exact else [u for u in integer if kernel(u.node.op_type, self.exact) == FUSED]
        outputs = output_grids(self.subject, width, list(dict.fromkeys(u.layer for u in fused)))
        added = Additions(outputs, tuple(dict.fromkeys(u.layer for u in fused if u.bias)))
        in_float = quantize_all(editor, products, weights, Activations(inputs, outputs), self.opset,
                                self.signed and not self.exact)
        return OnnxModel(self._finished(editor, width), added, {k: n for k, n in kernels.items() if k}, in_float, stored)

    def _finished(self, editor: Editor, width: Width) -> Any:
        onnx = need("onnx")
        proto = editor.finish()
        proto.producer_name, proto.producer_version = "anybit", ""
        onnx.helper.set_model_props(proto, {"width": str(width), "steps": self.subject.steps_at(width), **self.metadata})
        onnx.checker.check_model(proto)
        return proto
