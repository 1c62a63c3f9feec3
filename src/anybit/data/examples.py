"""Examples on the training device, and checks of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.data.pipeline import Pipeline as Pipeline
from anybit.errors import DataError
from anybit.tensors import picked


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, the example as first dimension. Images may stay uint8: the pipeline turns batches into floats."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.y.to(device))

    def rows(self, index: Tensor) -> Examples:
        """Return the examples at these positions."""
        return Examples(*picked((self.x, self.y), index))

    def when_loaded(self, check: Check, what: str) -> None:
        """Check the examples: now, as they are in memory; those of `OnDemand` part by part, whenever one is loaded."""
        check(self, what)


Check = Callable[[Examples, str], None]
"""(examples, what they are) → raises for examples that are wrong."""


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
    x, y = (torch.as_tensor(np.asarray(v) if not isinstance(v, Tensor) else v) for v in (x, y))
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


def check_labels(examples: Examples, classes: int, what: str) -> None:
    """Raise unless the labels are 0 … classes − 1."""
    if examples.y.is_floating_point() or examples.y.dim() != 1:
        raise DataError(f"{what}: the default loss needs one whole-number label per example; pass your own loss")
    bad = (examples.y < 0) | (examples.y >= classes)
    if bool(bad.any()):
        i = int(bad.nonzero()[0])
        raise DataError(f"{what}: example {i} has label {int(examples.y[i])}, but the model's {classes} outputs allow "
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
