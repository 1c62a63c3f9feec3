"""The float ONNX graph of a model: made once, then quantized to every width.

The weights of quantized layers are graph *inputs* while the exporter's optimizer runs. As constants it would fold batch
normalization or a transpose into them, and the trained grid would be lost.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anybit.errors import ConfigError, ModelError, option
from anybit.export.extras import need, quiet
from anybit.export.positional import INNER, Positional, batch_of, positional, two_of
from anybit.inputs import Inputs, called, leaves, mapped

BASE = 18
"""The opset that torch exports: it has GroupNormalization as InstanceNormalization, opset 21 as 17 nodes at load."""
OPSETS = range(BASE, 27)
DEFAULT_OPSET = 21
NATIVE = {4: 21, 2: 25}
"""{bits: the first opset with an ONNX type for them}; others, and older runtimes, get packed bit streams."""
MULTIPLIES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
KNOWN = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.ReLU, nn.Identity, nn.Flatten, nn.MaxPool2d, nn.GroupNorm)
"""Modules on which the exporter never fails."""


@dataclass(frozen=True)
class Use:
    """One use of a quantized layer: a node that multiplies an input with the layer's weight."""

    layer: str
    node: Any
    bias: str
    """The name of a bias that is an input of the node; empty if there is none."""
    weight: str
    """The name of the parameter."""
    whole: bool
    """The node multiplies all of it, not a part."""


def check_opset(opset: int) -> int:
    """Return the opset if the exporter can write it and it has the operators for unpacking."""
    if opset not in OPSETS:
        raise ConfigError(f"--opset {opset}: must be {OPSETS[0]} to {OPSETS[-1]} (native 4 bits from {NATIVE[4]}, native "
                          f"2 bits from {NATIVE[2]}, otherwise packed)")
    return opset


def float_graph(model: nn.Module, example: Inputs, weights: Sequence[str], opset: int,
                output: str | int | None = None) -> Any:
    """Export an onnx.ModelProto with a dynamic batch; its inputs are those of `example`, and these parameters by name."""
    need("onnxscript")
    onnx, ir = need("onnx"), need("onnx_ir")
    if bag := next((name for name, layer in model.named_modules() if isinstance(layer, nn.EmbeddingBag)), ""):
        raise ModelError(f"layer '{bag}' (EmbeddingBag): the exporter makes a graph of it that is not valid; use "
                         f"nn.Embedding and its .sum(1) or .mean(1), or {option('runtime', 'archive')}")
    with quiet():
        try:
            program = _attempt(positional(model, example, output), two_of(example), list(leaves(example)))
        except Exception as error:  # of any kind: the layer's name is what helps
            text = reason(error)
            if "data-dependent" in text:
                text = "it decides by values of tensors, as in 'if mask.all()': compute both, and choose by torch.where"
            raise ModelError(f"the model cannot be exported to ONNX{_culprit(model, example)}: {text}") from error
        parameters, initializers = dict(model.named_parameters(remove_duplicate=False)), program.graph.initializers
        for name in weights:
            # The exporter keeps one of the names of a tied parameter.
            known = next((n for n, p in parameters.items() if p is parameters[name] and n in initializers), None)
            value = initializers.pop(known) if known else None
            if value is None:
                raise ModelError(f"layer '{name.removesuffix('.weight')}': its weight does not appear in the ONNX graph; "
                                 f"use {option('runtime', 'archive')}, or train it anew with the layer in full_precision")
            value.name = name
            program.graph.inputs.append(value)
            value.const_value = None
        need("onnxscript.optimizer").optimize(program)
        proto = ir.serde.serialize_model(program)
    if opset != BASE:
        proto = onnx.version_converter.convert_version(proto, opset)
    # Runtimes refuse a version younger than themselves, and the exporter writes the newest it knows.
    proto.ir_version = onnx.helper.find_min_ir_version_for(proto.opset_import)
    _strip(proto)
    return proto


def _attempt(model: nn.Module, tensors: tuple[torch.Tensor, ...], names: Sequence[str] | None = None) -> Any:
    shapes = batch_of(model, tensors, torch.export.Dim("batch"))
    program = _exported(model, tensors, names, dynamic_shapes=shapes)
    if _batch_is_fixed(program):  # len(x) is a constant unless the code itself is read
        strict = torch.export.export(model, tensors, dynamic_shapes=shapes, strict=True)
        program = _exported(strict, (), names)
    for name in list(program.model.graph.initializers) if isinstance(model, Positional) else []:
        value = program.model.graph.initializers.pop(name)
        value.name = name.removeprefix(f"{INNER}.")
        program.model.graph.initializers[value.name] = value
    return program.model


def _exported(model: Any, tensors: tuple[torch.Tensor, ...], names: Sequence[str] | None, **settings: Any) -> Any:
    program = torch.onnx.export(model, tensors, dynamo=True, opset_version=BASE, optimize=False, verbose=False,
                                external_data=False, input_names=names, output_names=["output"], **settings)
    assert program is not None
    return program


def _batch_is_fixed(program: Any) -> bool:
    return any(value.shape is not None and len(value.shape) and isinstance(value.shape[0], int)
               for value in program.model.graph.inputs)


def _culprit(model: nn.Module, example: Inputs) -> str:
    """Find the innermost module that cannot be exported alone, by trying them from the deepest."""
    seen: dict[str, tuple[Any, ...]] = {}

    def note(name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and all(isinstance(x, torch.Tensor) for x in inputs):
            seen.setdefault(name, inputs)

    hooks = [module.register_forward_pre_hook(functools.partial(note, name))
             for name, module in model.named_modules() if name and type(module) not in KNOWN]
    try:
        with torch.no_grad(), contextlib.suppress(Exception):
            called(model, mapped(example, lambda x: torch.cat([x[:1]] * 2)))
    finally:
        for hook in hooks:
            hook.remove()
    for name in sorted(seen, key=lambda name: -name.count(".")):
        try:
            _attempt(model.get_submodule(name), seen[name])
        except Exception:
            return f" because of layer '{name}' ({type(model.get_submodule(name)).__name__})"
    return ""


def reason(error: BaseException) -> str:
    """Return the first line of an error's first cause."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def _strip(proto: Any) -> None:
    """Drop the exporter's notes, which would outweigh weights of few bits."""
    proto.ClearField("metadata_props")
    proto.graph.ClearField("metadata_props")
    proto.graph.ClearField("value_info")
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")
    for node in proto.graph.node:
        for field in ("metadata_props", "doc_string", "name"):
            node.ClearField(field)


def uses(graph: Any, matrices: Mapping[str, Sequence[str]]) -> list[Use]:
    """List the nodes that multiply quantized matrices (possibly transposed, or in parts); a layer may be called repeatedly.

    matrices: {parameter: the layers or inputs with which it, or its parts in this order, is multiplied}. An embedding, whose
    rows are looked up, multiplies nothing.
    """
    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    products = []
    for weight, layers in matrices.items():
        for node, part in _readers(readers, weight):
            if node.op_type == "Gather":
                continue
            layer = layers[part or 0] if layers else weight
            if node.op_type not in MULTIPLIES:
                raise ModelError(f"layer '{layer}': its weight goes into a {node.op_type} node, which cannot be "
                                 f"quantized; name it in full_precision, or use {option('runtime', 'archive')}")
            if part is None and len(layers) > 1:
                raise ModelError(f"layers {', '.join(layers)} share the weight '{weight}', and their inputs cannot be told "
                                 f"apart in the graph: quantize weights alone, or use {option('runtime', 'archive')}")
            products.append(Use(layer, node, node.input[2] if len(node.input) > 2 else "", weight, part is None))
    return products


def _readers(readers: Mapping[str, Sequence[Any]], name: str, part: int | None = None) -> Iterator[tuple[Any, int | None]]:
    """Yield (node, part) of what reads a value, its transpose or its parts; part: none of the whole."""
    for node in readers.get(name, ()):
        if node.op_type == "Transpose":
            yield from _readers(readers, node.output[0], part)
        elif node.op_type == "Split":
            for number, output in enumerate(node.output):
                yield from _readers(readers, output, number)
        else:
            yield node, part
