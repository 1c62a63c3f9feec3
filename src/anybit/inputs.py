"""What goes into a model and what comes out of it: inputs as a tree, and the one tensor of the outputs that is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anybit.errors import ModelError

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]
"""The inputs of a batch: a tensor, or several by position or by name, the example as first dimension of each."""
AnyInputs = TypeVar("AnyInputs", bound=Inputs)


def leaves(inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors by name: `input` for a single one, `input_0`, `input_1`, … by position."""
    if isinstance(inputs, Tensor):
        return {"input": inputs}
    return inputs if isinstance(inputs, dict) else {f"input_{i}": x for i, x in enumerate(inputs)}


def mapped(inputs: AnyInputs, function: Callable[[Tensor], Tensor]) -> AnyInputs:
    """Apply a function to every tensor."""
    return cast(AnyInputs, pytree.tree_map(function, inputs))


def length(inputs: Inputs) -> int:
    """Count the examples."""
    return len(next(iter(leaves(inputs).values())))


def device_of(inputs: Inputs) -> torch.device:
    """Return the device on which the tensors are."""
    return next(iter(leaves(inputs).values())).device


def split(inputs: Inputs, size: int) -> list[Inputs]:
    """Cut the examples into batches."""
    return [mapped(inputs, lambda x, start=start: x[start:start + size])  # type: ignore[misc]
            for start in range(0, length(inputs), size)]


def floats_to(inputs: AnyInputs, kind: torch.dtype) -> AnyInputs:
    """Return the inputs with their floating tensors in another type; whole numbers stay whole."""
    return mapped(inputs, lambda x: x.to(kind) if x.is_floating_point() else x)


def shapes(inputs: Inputs) -> dict[str, list[int]]:
    """Return the shape of one example, by the tensor's name."""
    return {name: list(x.shape[1:]) for name, x in leaves(inputs).items()}


def described(inputs: Inputs) -> str:
    """Return shapes and types in words: '(8, 3, 32, 32) float32', or 'ids (8, 16) int64, mask (8, 16) bool'."""
    words = {name: f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}" for name, x in leaves(inputs).items()}
    return words["input"] if isinstance(inputs, Tensor) else ", ".join(f"{name} {text}" for name, text in words.items())


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the positional and the named arguments of a model's call."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs,) if isinstance(inputs, Tensor) else inputs, {}


def called(model: nn.Module, inputs: Inputs) -> Any:
    """Call a model: model(x), model(*inputs) or model(**inputs)."""
    positional, named = arguments(inputs)
    return model(*positional, **named)


def selected(outputs: Any, output: str | int | None = None) -> Tensor:
    """Return the one tensor of a model's outputs that loss and metric see.

    A tensor is taken as it is; of several it is `output`, a key or a position; if not given "logits", or the only tensor.
    """
    if isinstance(outputs, Tensor):
        if output is not None:
            raise ModelError(f"output={output!r}: the model returns a single tensor; leave output out")
        return outputs
    parts = _parts(outputs)
    if isinstance(output, int):
        found = [*parts.values()][output] if -len(parts) <= output < len(parts) else None
    else:
        found = parts.get(output) if output is not None else _obvious(parts)
    if isinstance(found, Tensor):
        return found
    named = not isinstance(outputs, list | tuple) or hasattr(outputs, "_asdict")
    content = f"with {', '.join(map(repr, parts))}" if named else f"of {len(parts)} elements"
    fix = next((repr(key if named else i) for i, (key, part) in enumerate(parts.items()) if isinstance(part, Tensor)), None)
    if fix is None:
        raise ModelError(f"the model returns a {type(outputs).__name__} {content}, none of which is a tensor")
    problem = "say which is the output" if output is None else f"output={output!r} is no tensor of it"
    raise ModelError(f"the model returns a {type(outputs).__name__} {content}: {problem}, as in output={fix}")


def _obvious(parts: Mapping[str, Any]) -> Tensor | None:
    tensors = {key: part for key, part in parts.items() if isinstance(part, Tensor)}
    return tensors.get("logits", next(iter(tensors.values())) if len(tensors) == 1 else None)


def _parts(outputs: Any) -> dict[str, Any]:
    """Return what a model returned by key; by position as text where there are no keys."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    if dataclasses.is_dataclass(outputs) and not isinstance(outputs, type):
        return {field.name: getattr(outputs, field.name) for field in dataclasses.fields(outputs)}
    if isinstance(outputs, tuple) and hasattr(outputs, "_asdict"):
        return dict(outputs._asdict())
    if isinstance(outputs, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(outputs)}
    raise ModelError(f"the model returns a {type(outputs).__name__}: it must return a tensor, or a tuple, dict or dataclass "
                     "with one")
