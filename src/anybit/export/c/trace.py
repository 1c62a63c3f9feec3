"""From a model to a program: torch traces the network on one example, and every operation becomes calls."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from anybit.errors import ModelError, option
from anybit.export.c.moves import split
from anybit.export.c.operations import OPERATIONS, unary
from anybit.export.c.program import INPUT, Program, Value
from anybit.export.extras import quiet
from anybit.export.graph import reason
from anybit.export.positional import INNER, Positional, positional
from anybit.export.subject import Subject, Trace
from anybit.inputs import described
from anybit.quant.grid import Width

SPLITS = ("split", "split_with_sizes", "chunk")


def traced(subject: Subject) -> Trace:
    """Return the network's operations on one example."""
    if not isinstance(subject.images, Tensor) or subject.images.dtype != torch.float32:
        raise ModelError("C artifacts and graphs of archives are for one float32 input, not "
                         f"{described(subject.images)}; use " + option("runtime", "onnx"))
    model: nn.Module = positional(subject.model, subject.images, subject.output)
    with quiet():
        try:
            # An empty table of decompositions: operations stay as torch names them, and none is in place.
            program = torch.export.export(model, (subject.images[:1].clone(),)).run_decompositions({})
        except Exception as error:  # of any kind: torch's tracer runs the user's code
            raise ModelError(f"the model cannot be traced: {reason(error)}") from error
    tensors = {**dict(model.named_buffers(remove_duplicate=False)), **dict(model.named_parameters(remove_duplicate=False)),
               **program.constants}
    known = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
    return program.graph, {name: tensors[target] for name, target in known.items()}


def build(subject: Subject, graph: fx.Graph, tensors: Mapping[str, Tensor], width: Width) -> Program:
    """Make the program of a traced network at a width."""
    program = Program(subject, width, subject.quantized_weights(width))
    result = lowered(graph, tensors, partial(Value, INPUT), partial(_lowered, program))
    copied = result.constant or result.buffer == INPUT
    program.output = unary(program, result, "copy") if copied else result
    return program


def lowered(graph: fx.Graph, tensors: Mapping[str, Tensor], first: Callable[[tuple[int, ...]], Any],
            lower: Callable[[fx.Node, dict[str, Any]], Any]) -> Any:
    """Lower every operation, given its arguments by name, in order, and return the output.

    The model's tensors stand for themselves, and the input for what `first` makes of its shape.
    """
    values = dict[fx.Node, Any]()
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = tensors[node.name] if node.name in tensors else first(tuple(node.meta["val"].shape))
        elif node.op == "call_function" and operation(node) != "_assert_tensor_metadata":  # of x.float()
            if operation(node) in ("to", "_to_copy") and (kind := node.meta["val"].dtype) != torch.float32:
                made = str(kind).removeprefix("torch.")
                raise ModelError(f"the model makes {made} of its numbers, and C artifacts and archives compute in float32: "
                                 f"leave it out, or {option('runtime', 'onnx')}")
            values[node] = lower(node, fx.map_arg(_arguments(node), values.__getitem__))
    output = values[graph.output_node().args[0][0]]  # type: ignore[index]
    if isinstance(output, Tensor):
        raise ModelError("the model's output does not depend on its input")
    return output


def _lowered(program: Program, node: fx.Node, given: dict[str, Any]) -> Any:
    layer = layer_of(node)
    if node.target is operator.getitem:  # of a list of parts, or of the first of several results
        parts, index = given["self"], int(str(node.args[1]))
        return parts[index] if isinstance(parts, list) else parts
    name = operation(node)
    lowering = OPERATIONS.get(name)
    if lowering is None and name not in SPLITS:
        place = f"layer '{layer}': " if layer else ""
        raise ModelError(f"{place}the C export has no operation '{name}'; it has convolutions, linear layers, GroupNorm, "
                         f"BatchNorm, pools and common activations: use one of them, or {option('runtime', 'onnx')}")
    needed = {key: _operand(program, value, f"{layer}.{key}", key) for key, value in given.items()}
    result = node.meta["val"]
    shapes = [tuple(r.shape) for r in (result if isinstance(result, list | tuple) else [result])]
    known = len(program.steps)
    made = lowering(program, needed, shapes[0], layer) if lowering else split(program, needed, shapes, layer)
    program.steps[known:] = [replace(step, layer=layer) for step in program.steps[known:]]
    return made


def operation(node: fx.Node) -> str:
    """Return the name of an operation, as torch has it."""
    return str(node.target).split(".")[1] if "." in str(node.target) else str(node.target)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a call by name, with their defaults."""
    if node.target is operator.getitem:
        return {"self": node.args[0]}
    expected = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in expected}
    given.update({a.name: value for a, value in zip(expected, node.args, strict=False)})
    return {**given, **node.kwargs}


_PARAMETERS = ("weight", "bias", "running_mean", "running_var")


def _operand(program: Program, value: Any, name: str, key: str) -> Any:
    """Return a tensor of the model that is added or multiplied as an array in flash; those of layers stay as they are."""
    if isinstance(value, list | tuple):
        return [_operand(program, v, name, key) for v in value]
    if not isinstance(value, Tensor) or key in _PARAMETERS:
        return value
    array = program.array(value.detach().to(torch.float32).contiguous().numpy(), name)
    return Value(array, tuple(value.shape), constant=True)


def layer_of(node: fx.Node) -> str:
    """Return the name of the module that an operation belongs to."""
    stack = [(str(name), str(kind)) for name, kind in (node.meta.get("nn_module_stack") or {}).values()]
    if not stack:
        return ""
    name = stack[-1][0]
    wrapped = stack[0][1].endswith(f"{Positional.__module__}.{Positional.__qualname__}")  # models may have a "model", too
    return name if not wrapped else name.removeprefix(f"{INNER}.") if name != INNER else ""
