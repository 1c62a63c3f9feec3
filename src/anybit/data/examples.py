"""Examples on the training device, and checks of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.data.pipeline import Pipeline as Pipeline
from anybit.errors import DataError, printable
from anybit.inputs import Inputs, described, device_of, leaves, length, mapped
from anybit.tensors import moved, picked

IGNORED = -100
"""The target of a position that counts neither in the default loss nor in the default metric, as in torch."""


@dataclass(frozen=True)
class Examples:
    """Inputs and targets, the example as first dimension. Images may stay uint8: the pipeline turns batches into floats."""

    x: Inputs
    y: Tensor

    def __len__(self) -> int:
        return length(self.x)

    @property
    def images(self) -> Tensor:
        """The inputs, where they are one tensor."""
        if not isinstance(self.x, Tensor):
            raise DataError(f"one array of images is needed here, but the inputs are {described(self.x)}")
        return self.x

    @property
    def device(self) -> torch.device:
        return device_of(self.x)

    def to(self, device: torch.device) -> Examples:
        return Examples(moved(self.x, device), self.y.to(device))

    def rows(self, index: Tensor) -> Examples:
        """Return the examples at these positions."""
        return Examples(*picked((self.x, self.y), index))

    def part(self, start: int, end: int) -> Examples:
        """Return the examples from a position to another, or to the end."""
        return Examples(*picked((self.x, self.y), slice(start, end)))

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
    """Make examples of arrays or tensors; raise for unequal lengths, no examples, NaN or infinity.

    The inputs may be several, in a tuple or a dict. Floats become float32, whole numbers int64; bytes and bools stay.
    """
    y = _tensor(y, f"{what}: the targets")
    inputs = as_inputs(x, what, len(y) if y.dim() else None)
    for name, values in leaves(inputs).items():
        if y.dim() == 0 or len(values) != len(y):
            one = "inputs" if isinstance(inputs, Tensor) else f"'{name}'"
            raise DataError(f"{what}: {tuple(values.shape)} {one} and {tuple(y.shape)} targets do not have the same length")
    if not len(y):
        raise DataError(f"{what} has no examples: give it some" + (", or drop it" if what.startswith("client") else ""))
    _check_finite(y, f"{what}: the targets")
    return Examples(inputs, y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64))


def as_inputs(x: Any, what: str, examples: int | None = None) -> Inputs:
    """Make the inputs of a model of an array or tensor, or of several in a tuple, list or dict.

    A sequence of rows, one per example, is one array; `examples`: their number, where targets tell it.
    """
    inputs: Inputs
    if isinstance(x, Mapping):
        if not x or not all(isinstance(name, str) for name in x):
            raise DataError(f"{what}: a dict of inputs has a name and an array for each of the model's arguments")
        inputs = {name: _tensor(value, f"{what}: input '{name}'") for name, value in x.items()}
    elif _several(x, examples):
        inputs = tuple(_tensor(value, f"{what}: input {i}") for i, value in enumerate(x))
    else:
        inputs = _tensor(x, f"{what}: the inputs")
    for name, values in leaves(inputs).items():
        if values.dim() == 0:
            raise DataError(f"{what}: {name} is a single number: its first dimension must be the example")
        if not isinstance(inputs, Tensor) and values.dtype == torch.uint8 and values.dim() < 3:
            raise DataError(f"{what}: '{name}' is uint8 {tuple(values.shape)}, which may be pixels or whole numbers: give "
                            "float32 (scaled) or int64")
        _check_finite(values, f"{what}: the inputs" if isinstance(inputs, Tensor) else f"{what}: the '{name}'")
    return mapped(inputs, _plain_type)


def _several(x: Any, examples: int | None) -> bool:
    """Tell if a sequence holds several inputs, and not the rows of one, which are as many as the examples."""
    if not isinstance(x, list | tuple) or not x or not all(hasattr(part, "__array__") and np.ndim(part) for part in x):
        return False
    if len(x) != examples:
        return isinstance(x, tuple) or examples is not None
    return isinstance(x, tuple) and all(len(part) == examples for part in x)


def _tensor(values: Any, what: str) -> Tensor:
    """Make a tensor of real numbers, or say what the values are instead."""
    try:
        tensor = values if isinstance(values, Tensor) else _without_copy(np.asarray(values))
    except (TypeError, ValueError, RuntimeError):
        first = np.asarray(values, dtype=object).reshape(-1)[:1].tolist()
        fix = "number the classes 0, 1, …" if first and isinstance(first[0], str) else "give one array, padded to one shape"
        if first and isinstance(first[0], int | float):
            fix = "give them a number type, as in .astype('int64') or .astype('float32')"
        raise DataError(f"{what} are not an array of numbers, but {printable(repr(first))[:40]}…: {fix}") from None
    if tensor.layout != torch.strided:
        raise DataError(f"{what} are a sparse tensor: give a dense one, e.g. by .to_dense()")
    if tensor.is_complex():
        raise DataError(f"{what} are complex numbers: give real ones, e.g. real and imaginary part as two channels")
    return tensor


def _without_copy(values: np.ndarray) -> Tensor:
    """Make a tensor on the array's memory, which may be a file's. torch warns where it is read-only; nobody writes to it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(values if min(values.strides, default=0) >= 0 else values.copy())  # torch knows no way back


def _plain_type(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x.to(torch.float32)
    return x if x.dtype in (torch.uint8, torch.bool) else x.to(torch.int64)


def _check_finite(values: Tensor, what: str) -> None:
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).nonzero()[0, 0])
        raise DataError(f"{what} of example {bad} hold NaN or infinity")


def joined(parts: Sequence[Examples]) -> Examples:
    """Join the clients' examples; raise where their arrays do not fit together, or bytes meet other numbers."""
    first = leaves(parts[0].x)
    for i, part in enumerate(parts):
        check_alike(part, parts[0], f"client {i}", "client 0")
        here, there = ([tuple(leaf.shape[1:]) for leaf in (*leaves(each.x).values(), each.y)] for each in (part, parts[0]))
        if here != there:
            raise DataError(f"client {i}: inputs and target of an example have shape {_listed(here)}, but those of client 0 "
                            f"{_listed(there)}: give all in one shape")
    columns = [torch.cat([leaves(part.x)[name] for part in parts]) for name in first]
    x, y = parts[0].x, torch.cat([part.y for part in parts])
    return Examples(columns[0] if isinstance(x, Tensor) else dict(zip(first, columns, strict=True)) if isinstance(x, dict)
                    else tuple(columns), y)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))


def check_alike(examples: Examples, others: Examples, what: str, other: str) -> None:
    """Raise where the inputs have other names or types than those of others; uint8 alone is scaled."""
    here, there = leaves(examples.x), leaves(others.x)
    if here.keys() != there.keys():
        raise DataError(f"{what}: its inputs are {', '.join(here)}, but those of {other} are {', '.join(there)}")
    for name in here:
        kinds = [str(values[name].dtype).removeprefix("torch.") for values in (here, there)]
        if kinds[0] != kinds[1]:
            why = ", and uint8 alone is scaled to [0, 1]" if "uint8" in kinds else ""
            raise DataError(f"{what}: {name} is {kinds[0]}, but that of {other} is {kinds[1]}{why}: give all in one type")


def check_labels(examples: Examples, what: str, outputs: Sequence[int], split: Sequence[np.ndarray] | None = None) -> None:
    """Raise unless the labels are 0 … C − 1 for outputs of shape (N, C, d1, …): one per example, or per position."""
    positions = tuple(outputs[2:])
    if examples.y.is_floating_point() or len(outputs) < 2 or examples.y.shape[1:] != positions:
        wanted = "one whole-number label per example" + (" and position" if positions else "")
        raise DataError(f"{what}: the default loss needs {wanted}; {_instead(examples.y, outputs)} (outputs have shape "
                        f"{tuple(outputs)}, targets {tuple(examples.y.shape)})")
    classes = outputs[1]
    bad = (examples.y < 0) | (examples.y >= classes)
    if positions:
        bad &= examples.y != IGNORED
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise DataError(f"{_located(place[0], what, split)} has label {int(examples.y[tuple(place)])}, but the model's "
                        f"{classes} outputs allow 0…{classes - 1}")


def check_labelled(examples: Examples, what: str) -> None:
    """Raise where no position of an example has a label: its mean over them would be 0, as if all were wrong."""
    if examples.y.dim() > 1 and bool((bare := (examples.y == IGNORED).flatten(1).all(1)).any()):
        raise DataError(f"{what}: example {int(bare.nonzero()[0])} has no label, all are {IGNORED}, and would count as "
                        "wrong: leave it out")


def check_binary(examples: Examples, what: str, of: str, split: Sequence[np.ndarray] | None = None) -> None:
    """Raise unless all targets are from 0 to 1, the probabilities of a loss or metric `of` yes and no."""
    bad = (examples.y < 0) | (examples.y > 1)
    if bool(bad.any()):
        place = bad.nonzero()[0].tolist()
        raise DataError(f"{_located(place[0], what, split)} has the target {examples.y[tuple(place)].item():g}, but {of} "
                        "takes 0, 1 and what lies between: rescale the targets, or use a loss of your own")


def check_ids(examples: Examples, what: str, read: Mapping[str, tuple[str, int]],
              split: Sequence[np.ndarray] | None = None) -> None:
    """Raise where a number has no row in the embedding that reads it. read: {input: (the embedding, its rows)}.

    Clients that are computed together have their rows one after another: the number would mean another client's row.
    """
    inputs = leaves(examples.x)
    for name, (layer, rows) in read.items():
        bad = (inputs[name] < 0) | (inputs[name] >= rows)
        if bool(bad.any()):
            place = bad.nonzero()[0].tolist()
            raise DataError(f"{_located(place[0], what, split)} holds the number {int(inputs[name][tuple(place)])}, but "
                            f"embedding '{layer}' has rows 0…{rows - 1}: replace it, or give the embedding more rows")


def _located(index: int, what: str, split: Sequence[np.ndarray] | None) -> str:
    """Say which example it is: of a client, if a split says whose."""
    owned = ((client, np.flatnonzero(numbers == index)) for client, numbers in enumerate(split or ()))
    return next((f"client {client}: example {int(places[0])}" for client, places in owned if len(places)),
                f"{what}: example {index}")


def _instead(y: Tensor, outputs: Sequence[int]) -> str:
    """Say what to give for labels that are none."""
    if y.dim() == 2 == len(outputs) and y.shape[1] == outputs[1] > 1:
        return "if these are one-hot, give y.argmax(1); for other targets pass your own loss, e.g. loss='mse'"
    if y.shape[1:] == (1,) and not y.is_floating_point():
        return "give y[:, 0]"
    kind = f"these are {str(y.dtype).removeprefix('torch.')}: classes are y.astype(int), " if y.is_floating_point() else ""
    return f"{kind}for other targets pass your own loss, e.g. loss='mse'"


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
