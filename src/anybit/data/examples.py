"""Examples on the training device, and checks of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anybit.data.pipeline import Pipeline as Pipeline
from anybit.errors import DataError, printable


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, the example as first dimension. Images may stay uint8: the pipeline turns batches into floats."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Data:
    """A data set: examples for the clients to train on, and for the server to be evaluated on.

    coarse, ids: coarse label and owner's number of each training example, on the host, where splits use them.
    """

    train: Examples
    test: Examples
    pipeline: Pipeline = Pipeline()
    class_names: tuple[str, ...] = ()
    coarse: np.ndarray | None = None
    ids: np.ndarray | None = None

    def to(self, device: torch.device) -> Data:
        return replace(self, train=self.train.to(device), test=self.test.to(device), pipeline=self.pipeline.to(device))

    def labels(self) -> dict[str, np.ndarray | None]:
        """Return the arrays that a split may need, by the names of its arguments."""
        return {"labels": self.train.y.cpu().numpy(), "coarse": self.coarse, "ids": self.ids}


def channel_statistics(x: Tensor) -> Pipeline:
    """Return the pipeline that gives these images mean 0 and standard deviation 1 per channel."""
    x = Pipeline()(x).transpose(0, 1).flatten(1).double()
    return Pipeline(tuple(x.mean(1).tolist()), tuple(x.std(1, correction=0).clamp_min(1e-12).tolist()))


def as_examples(x: Any, y: Any, what: str) -> Examples:
    """Make examples of arrays or tensors; raise for unequal lengths, no examples, NaN or infinity."""
    x, y = _tensor(x, f"{what}: the inputs"), _tensor(y, f"{what}: the targets")
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        raise DataError(f"{what}: {tuple(x.shape)} inputs and {tuple(y.shape)} targets do not have the same length")
    if not len(x):
        raise DataError(f"{what} has no examples: drop it, or give it some")
    for name, values in (("inputs", x), ("targets", y)):
        if values.is_floating_point() and not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).nonzero()[0, 0])
            raise DataError(f"{what}: the {name} of example {bad} hold NaN or infinity")
    x = x.to(torch.float32) if x.is_floating_point() else x
    return Examples(x, y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64))


def _tensor(values: Any, what: str) -> Tensor:
    """Make a tensor of real numbers, or say what the values are instead."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    except (TypeError, ValueError, RuntimeError):
        first = np.asarray(values, dtype=object).reshape(-1)[:1].tolist()
        fix = "number the classes 0, 1, …" if first and isinstance(first[0], str) else "give one array, padded to one shape"
        raise DataError(f"{what} are not an array of numbers, but {printable(repr(first))[:40]}…: {fix}") from None
    if tensor.is_complex():
        raise DataError(f"{what} are complex numbers: give real ones, e.g. real and imaginary part as two channels")
    return tensor


def check_pairs(clients: Any) -> None:
    """Raise unless `clients` lists clients: one loader, data set or array would make each batch or row a client."""
    if isinstance(clients, DataLoader | Dataset | Tensor | np.ndarray | Mapping) or not isinstance(clients, Iterable):
        raise DataError(f"clients is a {type(clients).__name__}: give a list with one (inputs, targets) pair per client")


def check_one_type(parts: Sequence[Examples], test: Examples) -> None:
    """Raise where some inputs are uint8, which the pipeline scales to [0, 1], and others are numbers that it does not."""
    first = parts[0].x.dtype
    for number, part in enumerate((*parts, test)):
        if part.x.dtype != first:
            what = f"client {number}" if number < len(parts) else "test data"
            raise DataError(f"{what} has inputs of type {part.x.dtype}, and client 0 of {first}: bytes are scaled to "
                            "[0, 1], other numbers are not: give all of them one type")


def check_labels(examples: Examples, outputs: Sequence[int], what: str) -> None:
    """Raise unless the labels are 0 … C − 1 for outputs of shape (N, C, …): one per example, pixel or token."""
    if examples.y.is_floating_point() or len(outputs) < 2 or examples.y.shape[1:] != tuple(outputs[2:]):
        raise DataError(f"{what}: the default loss needs one whole-number label per example; pass your own loss, e.g. "
                        f"loss='mse' (outputs have shape {tuple(outputs)}, targets {tuple(examples.y.shape)})")
    classes = outputs[1]
    bad = (examples.y < 0) | (examples.y >= classes)
    if bool(bad.any()):
        i = int(bad.nonzero()[0, 0])
        raise DataError(f"{what}: example {i} has label {int(examples.y[bad][0])}, but the model's {classes} outputs allow "
                        f"0…{classes - 1}")


def check_split(split: Sequence[np.ndarray], examples: int) -> None:
    """Raise unless every client has examples that exist, and no example is used twice."""
    for client, index in enumerate(split):
        if not len(index):
            raise DataError(f"client {client} has no examples: use fewer clients or another split")
    if not len(split):
        raise DataError("the split has no clients")
    positions = np.concatenate(list(split))
    if positions.min() < 0 or positions.max() >= examples:
        raise DataError(f"the split names example {int(positions.max())} of {examples}")
    if len(np.unique(positions)) != len(positions):
        raise DataError("the split gives an example to two clients")
