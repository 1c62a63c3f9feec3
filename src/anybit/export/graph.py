"""The float ONNX graph of a model: made once, then quantized to every width.

The weights of quantized layers are graph *inputs* while the exporter's optimizer runs. As constants it would fold batch
normalization or a transpose into them, and the trained grid would be lost.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anybit.errors import ConfigError, ModelError
from anybit.export.extras import need

BASE = 18
"""What the exporter writes: there GroupNormalization becomes InstanceNormalization, from 21 on 17 nodes at load."""
OPSETS = range(BASE, 27)
DEFAULT_OPSET = 21
NATIVE = {4: 21, 2: 25}
"""The opset from which bits have an ONNX type of their own; others, and older runtimes, get packed bit streams."""
MULTIPLIES = ("Conv", "ConvTranspose", "Gemm", "MatMul")
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
    with _quiet():
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
    batch = torch.export.Dim("batch")
    try:
        program = torch.onnx.export(model, (torch.cat([example[:1]] * 2),), dynamo=True, opset_version=BASE,
                                    dynamic_shapes=({0: batch},), external_data=False, optimize=False, verbose=False,
                                    input_names=[INPUT], output_names=[OUTPUT])
    except Exception as error:  # whatever the exporter stumbles over, the layer's name is what helps
        raise ModelError(f"the model cannot be exported to ONNX{_where(error)}: {_reason(error)}") from error
    assert program is not None
    return program.model


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _where(error: BaseException) -> str:
    """' (layer …)' if the exporter's message names the module it came from."""
    for each in _chain(error):
        for line in str(each).splitlines():
            if "nn_module_stack" in line or "L['self']" in line:
                return f" ({line.strip()[:120]})"
    return ""


def _reason(error: BaseException) -> str:
    last = list(_chain(error))[-1]
    text = next((line.strip() for line in str(last).splitlines() if line.strip()), type(last).__name__)
    return text[:200]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter speaks of packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


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
