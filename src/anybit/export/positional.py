"""A model as a runtime calls it: tensors by position in, the one output out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anybit.inputs import Inputs, called, leaves, selected
from anybit.tensors import picked

INNER = "model"
"""The name of the model in its wrapper: the first part of the names of its parameters."""


class Positional(nn.Module):
    """Calls a model with inputs of the form of `example`, given one after another, and selects its output."""

    def __init__(self, model: nn.Module, example: Inputs, output: str | int | None) -> None:
        super().__init__()
        self.model, self.output = model, output
        self.form = pytree.tree_structure(example)

    def forward(self, *tensors: Tensor) -> Tensor:
        return selected(called(self.model, pytree.tree_unflatten(tensors, self.form)), self.output)


def positional(model: nn.Module, example: Inputs, output: str | int | None) -> nn.Module:
    """Return the model itself if it takes one tensor and returns one; else wrapped."""
    with torch.no_grad():
        plain = isinstance(example, Tensor) and isinstance(called(model, example), Tensor)
    return model if plain and output is None else Positional(model, example, output)


def two_of(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return a batch of the first example twice, as positional arguments: a batch of 1 would be taken for a constant."""
    return tuple(torch.cat([x] * 2) for x in leaves(picked(inputs, slice(1))).values())


def batch_of(model: nn.Module, tensors: tuple[Tensor, ...], batch: torch.export.Dim) -> tuple[object, ...]:
    """Return the dynamic shapes of a call: the first dimension of every tensor is the batch."""
    shapes = tuple({0: batch} for _ in tensors)
    return (shapes,) if isinstance(model, Positional) else shapes
