"""Clients' data in the forms that people have them: arrays, PyTorch and Hugging Face data sets, functions that load one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from anybit.data.examples import Examples, as_examples, joined
from anybit.data.on_demand import KEPT_BYTES, OnDemand, Shelf
from anybit.data.splits import by_id
from anybit.errors import AnybitError, DataError

INPUTS = ("image", "img", "pixel_values", "input_ids", "x", "inputs", "features")
TARGETS = ("label", "labels", "target", "targets", "y")
BESIDE = ("attention_mask", "token_type_ids", "position_ids")
"""Names by which columns are found: of inputs, of targets, and of what a tokenizer gives beside its ids."""


class Clients(list[Any]):
    """The clients' data, and the owner of each."""

    def __init__(self, parts: Iterable[Any], ids: Sequence[Any]) -> None:
        super().__init__(parts)
        self.ids, self._parted = ids, tuple(self)

    def known_ids(self) -> Sequence[Any] | None:
        """Return the ids; none where somebody has changed the list, and they may belong to others."""
        same = len(self) == len(self._parted) and all(now is then for now, then in zip(self, self._parted, strict=True))
        return self.ids if same else None


def by_client(inputs: Any, targets: Any, ids: Any = None) -> Clients:
    """Part one data set by the owner of each example: by_client(inputs, targets, ids), or by_client(dataset, ids).

    The clients come in the order of numpy.unique(ids), and their `ids` tell whose is whose.
    """
    if ids is None and not (_is_hub(inputs) or (isinstance(inputs, Dataset) and hasattr(inputs, "__len__"))):
        raise DataError(f"by_client: a {type(inputs).__name__} is not a data set with items: give (inputs, targets, ids)")
    whole, owners = (inputs, np.asarray(targets)) if ids is None else ((inputs, targets), np.asarray(ids))
    count = len(inputs if ids is None else targets)
    if owners.shape != (count,):
        raise DataError(f"by_client: ids have the shape {owners.shape}, but there are {count} examples: give one for each")
    unowned = [i for i, owner in enumerate(owners.tolist()) if owner is None or owner != owner]
    if unowned:
        raise DataError(f"by_client: example {unowned[0]} has no owner, its id is {owners[unowned[0]]}: leave it out, or "
                        "give it one")
    try:
        names = np.unique(owners).tolist()
    except TypeError as error:
        raise DataError(f"by_client: the ids cannot be sorted ({error}): make them all numbers, or all text") from None
    return Clients((_part(whole, index) for index in by_id(owners, 0, owners)), names)


def _part(data: Any, index: np.ndarray) -> Any:
    if _is_hub(data):
        return data.select(index)
    if isinstance(data, Dataset):
        return Subset(data, index.tolist())
    if isinstance(data, Mapping):
        return {name: _part(value, index) for name, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_part(value, index) for value in data)
    return data[torch.from_numpy(index)] if isinstance(data, Tensor) else np.asarray(data)[index]


def gathered(clients: Iterable[Any], kept_bytes: int = KEPT_BYTES) -> tuple[Examples, list[np.ndarray]]:
    """Return the examples of all clients, one client after another, and the positions of each.

    Where a client is a function, all are loaded when they are drawn, and at most `kept_bytes` of them stay in memory.
    """
    if isinstance(clients, DataLoader | Dataset) or _is_hub(clients):
        raise DataError(f"clients is one {type(clients).__name__}, which is one client: give a list with one for each, or "
                        "part it with anybit.by_client(dataset, ids)")
    if isinstance(clients, Tensor | np.ndarray | Mapping | str) or not isinstance(clients, Iterable):
        raise DataError(f"clients is a {type(clients).__name__}: give a list with one (inputs, targets) pair per client")
    given = list(clients)
    if not given:
        raise DataError("clients is empty: give one (inputs, targets) pair per client")
    if any(isinstance(client, DataLoader) for client in given):
        warnings.warn("of a DataLoader the data set is used, not its batch size and shuffling: client=ClientOptions("
                      "batch_size=…) sets the one, the run's seed the other", stacklevel=3)
    if any(map(_is_function, given)):
        loaders = [_loader(client, f"client {i}") for i, client in enumerate(given)]
        shelf = Shelf(loaders, kept_bytes)
        sizes = [_announced(client, i) or len(shelf[i]) for i, client in enumerate(given)]
        examples: Examples = OnDemand.of(shelf, sizes)
    else:
        parts = [as_examples(*pair_of(client, f"client {i}"), f"client {i}") for i, client in enumerate(given)]
        sizes, examples = list(map(len, parts)), joined(parts)
    ends = np.cumsum(sizes)
    return examples, np.split(np.arange(ends[-1]), ends[:-1])


def pair_of(data: Any, what: str) -> tuple[Any, Any]:
    """Return the (inputs, targets) of data in any of the forms, the example as first dimension."""
    if isinstance(data, list | tuple) and len(data) == 2:
        return data[0], data[1]
    if _is_function(data):
        return pair_of(_called(data, what), what)
    collate: Callable[..., Any] | None = None
    if isinstance(data, DataLoader):
        if not isinstance(data.dataset, IterableDataset) and not _takes_all(data):
            raise DataError(f"{what}: its DataLoader has a sampler of its own, which may not take every example once: give "
                            "torch.utils.data.Subset(dataset, indices)")
        collate = None if data.collate_fn is default_collate else data.collate_fn
        data = data.dataset
    if _is_hub(data) and collate is None:
        words = {name for name, kind in data.features.items() if getattr(kind, "dtype", "") in ("string", "large_string")}
        inputs, y = _columns([name for name in data.column_names if name not in words] or data.column_names, what)
        read = data.select_columns([*inputs, y])[:]
        return _chosen({name: _stacked(read[name], f"{what}, column '{name}'") for name in (*inputs, y)}, inputs, y)
    if not isinstance(data, Dataset) and not _is_hub(data):
        raise DataError(f"{what} is a {type(data).__name__}: give a pair (inputs, targets), a torch Dataset or DataLoader, "
                        "a Hugging Face Dataset, or a function that returns one of these")
    items = _items(data, what)
    batch = collate(items) if collate else _stacked([tuple(i) if isinstance(i, list) else i for i in items], what)
    if isinstance(batch, Mapping):
        return _chosen(batch, *_columns(list(batch), what))
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise DataError(f"{what}: the data set's items are not pairs (x, y): return x as a tuple or dict where it has parts")
    return batch[0], batch[1]


def _takes_all(loader: DataLoader[Any]) -> bool:
    batches = type(loader.batch_sampler) in (BatchSampler, type(None))
    return batches and type(loader.sampler) in (SequentialSampler, RandomSampler)


def _is_hub(data: Any) -> bool:
    """Tell if this is a Hugging Face data set, without importing their package."""
    return type(data).__module__.startswith("datasets.") and hasattr(data, "select_columns") and hasattr(data, "__len__")


def _is_function(data: Any) -> bool:
    return callable(data) and not isinstance(data, Dataset)


def _called(function: Callable[[], Any], what: str) -> Any:
    try:
        data = function()
    except AnybitError:
        raise
    except Exception as error:
        raise DataError(f"{what}: the function that loads it failed ({type(error).__name__}: {error})") from error
    if _is_function(data):
        raise DataError(f"{what}: the function that loads it returned another function")
    return data


def _loader(client: Any, what: str) -> Callable[[], Examples]:
    """Return what loads a client: its function, or nothing to load where it lies in memory."""
    if _is_function(client):
        return lambda: as_examples(*pair_of(client, what), what)
    examples = as_examples(*pair_of(client, what), what)
    return lambda: examples


def _announced(client: Any, number: int) -> int | None:
    """Return the size that a function says it has, by `size` or len(), so that it need not be called to learn it."""
    size = getattr(client, "size", None) if _is_function(client) else None
    if size is None and _is_function(client) and hasattr(type(client), "__len__"):
        size = len(client)
    if size is None:
        return None
    if not isinstance(size, int | np.integer) or size < 1:
        raise DataError(f"client {number}: the function that loads it says size = {size!r}: give a whole number above 0")
    return int(size)


def _items(data: Any, what: str) -> list[Any]:
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        raise DataError(f"{what}: a data set without a length can only be read once: give one with items, or a function "
                        "that reads it and returns (inputs, targets)")
    items = list[Any]()
    for i in range(len(data)):
        try:
            items.append(data[i])
        except Exception as error:
            raise DataError(f"{what}: item {i} cannot be read ({type(error).__name__}: {error})") from error
    if not items:
        raise DataError(f"{what} has no examples: drop it, or give it some")
    return items


def _chosen(columns: Mapping[str, Any], inputs: Sequence[str], targets: str) -> tuple[Any, Any]:
    return columns[inputs[0]] if len(inputs) == 1 else {name: columns[name] for name in inputs}, columns[targets]


def _columns(names: Sequence[str], what: str) -> tuple[list[str], str]:
    """Find the columns of inputs and of the targets: the only two, or those of known names if there are no others."""
    inputs, targets = ([name for name in names if name in known] for known in (INPUTS, TARGETS))
    if len(names) == 2 and len(targets) != 2 and len(inputs) != 2:
        y = targets[0] if targets else next(name for name in reversed(names) if name not in inputs)
        return [name for name in names if name != y], y
    beside = [name for name in names if name in BESIDE]
    if len(inputs) == len(targets) == 1 and len(names) == 2 + len(beside):
        return [*inputs, *beside], targets[0]
    example = [(inputs or [name for name in names if name not in targets] or ["x"])[0], (targets or ["y"])[0]]
    raise DataError(f"{what} has the columns {', '.join(names)}: keep inputs and targets, e.g. .select_columns({example})")


def _stacked(values: Any, what: str) -> Any:
    """Stack the values of all examples, each a tensor, an array, a number, an image, or a tuple or dict of these."""
    if isinstance(values, Tensor | np.ndarray):
        return values
    first = values[0]
    try:
        if isinstance(first, Mapping):
            return {name: _stacked([value[name] for value in values], what) for name in first}
        if isinstance(first, tuple):
            return tuple(_stacked(list(column), what) for column in zip(*values, strict=True))
        tensors = [_tensor(value) for value in values]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{what}: items are not numbers in the same form ({str(error).splitlines()[0]}); text must be whole "
                        "numbers, e.g. of a tokenizer") from None
    for i, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise DataError(f"{what}: item {i} has shape {tuple(tensor.shape)}, but item 0 {tuple(tensors[0].shape)}: pad "
                            "or crop them to one")
    return torch.stack(tensors)


def _tensor(value: Any) -> Tensor:
    """Make a tensor; of a Pillow image its bytes, (channel, row, column)."""
    if not hasattr(value, "getbands"):
        return value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    pixels = np.array(value if value.mode in ("L", "RGB", "RGBA") else value.convert("RGB"))
    return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
