"""The float ONNX graph of a model: made once, then quantized to every width.

The weights of quantized layers are graph *inputs* while the exporter's optimizer runs. As constants it would fold batch
normalization or a transpose into them, and the trained grid would be lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anybit.errors import ConfigError, ModelError
from anybit.export.extras import need, quiet

BASE = 18
"""What the exporter writes: there GroupNormalization becomes InstanceNormalization, from 21 on 17 nodes at load."""
OPSETS = range(BASE, 27)
DEFAULT_OPSET = 21
NATIVE = {4: 21, 2: 25}
"""The opset from which bits have an ONNX type of their own; others, and older runtimes, get packed bit streams."""
MULTIPLIES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
KNOWN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.Identity, nn.Flatten, nn.MaxPool2d, nn.GroupNorm)
"""Modules that are never what the exporter stumbles over."""
INPUT, OUTPUT = "input", "output"


@dataclass(frozen=True)
class Use:
    """Where a quantized layer went: a node that multiplies an input with the layer's weight."""

    layer: str
    node: Any
    bias: str
    """The name of a bias that is an input of the node; empty if there is none."""


def check_opset(opset: int) -> int:
    """An opset that the exporter writes and that has the operators an unpacking graph needs."""
    if opset not in OPSETS:
        raise ConfigError(f"--opset {opset}: from {OPSETS[0]} (all packed) over {NATIVE[4]} (native 4 bits) to "
                          f"{OPSETS[-1]} (native 4 and 2 bits)")
    return opset


def float_graph(model: nn.Module, example: torch.Tensor, layers: Sequence[str], opset: int) -> Any:
    """An onnx.ModelProto with a dynamic batch, whose layer weights are inputs '{layer}.weight'."""
    need("onnxscript")
    onnx, ir = need("onnx"), need("onnx_ir")
    with quiet():
        program = _exported(model, example)
        weights = [f"{layer}.weight" for layer in layers]
        for layer, weight in zip(layers, weights, strict=True):
            value = program.graph.initializers.pop(weight, None)
            if value is None:
                raise ModelError(f"layer '{layer}': its weight does not appear in the ONNX graph; name it in "
                                 "full_precision, or use --runtime archive")
            program.graph.inputs.append(value)
            value.const_value = None
        need("onnxscript.optimizer").optimize(program)
        proto = ir.serde.serialize_model(program)
    if opset != BASE:
        proto = onnx.version_converter.convert_version(proto, opset)
    proto.ir_version = 13 if opset >= NATIVE[2] else 10
    _strip(proto)
    return proto


def _exported(model: nn.Module, example: torch.Tensor) -> Any:
    try:
        return _attempt(model, torch.cat([example[:1]] * 2))
    except Exception as error:  # whatever the exporter stumbles over, the layer's name is what helps
        reason = _reason(error)
        raise ModelError(f"the model cannot be exported to ONNX{_culprit(model, example)}: {reason}") from error


def _attempt(model: nn.Module, x: torch.Tensor) -> Any:
    program = torch.onnx.export(model, (x,), dynamo=True, opset_version=BASE, optimize=False, verbose=False,
                                dynamic_shapes=({0: torch.export.Dim("batch")},), external_data=False,
                                input_names=[INPUT], output_names=[OUTPUT])
    assert program is not None
    return program.model


def _culprit(model: nn.Module, example: torch.Tensor) -> str:
    """The innermost module that cannot be exported on its own, found by trying: one of each kind, the deepest first."""
    seen: dict[str, torch.Tensor] = {}
    hooks = [module.register_forward_pre_hook(lambda _, inputs, name=name: seen.setdefault(name, inputs[0]))
             for name, module in model.named_modules() if name and type(module) not in KNOWN]
    try:
        with torch.no_grad(), contextlib.suppress(Exception):
            model(torch.cat([example[:1]] * 2))
    finally:
        for hook in hooks:
            hook.remove()
    for name in sorted(seen, key=lambda name: -name.count(".")):
        try:
            _attempt(model.get_submodule(name), seen[name])
        except Exception:
            return f" because of layer '{name}' ({type(model.get_submodule(name)).__name__})"
    return ""


def _reason(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text[:200]


def _strip(proto: Any) -> None:
    """Drop what no runtime reads: with few bits, the exporter's notes would outweigh the weights."""
    proto.ClearField("metadata_props")
    proto.graph.ClearField("metadata_props")
    proto.graph.ClearField("value_info")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")
    for node in proto.graph.node:
        for field in ("metadata_props", "doc_string", "name"):
            node.ClearField(field)


def uses(graph: Any, layers: Sequence[str]) -> list[Use]:
    """The nodes in which layer weights (possibly transposed) are multiplied; a layer may be called more than once."""
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found = []
    for layer in layers:
        ends = [end for node in readers.get(f"{layer}.weight", [])
                for end in (readers.get(node.output[0], []) if node.op_type == "Transpose" else [node])]
        for node in ends:
            if node.op_type not in MULTIPLIES:
                raise ModelError(f"layer '{layer}': its weight goes into a {node.op_type} node, which cannot be "
                                 "quantized; name it in full_precision, or use --runtime archive")
            found.append(Use(layer, node, node.input[2] if len(node.input) > 2 else ""))
    return found
