"""Examples of clients that are loaded when they are drawn, for data larger than memory."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.data.examples import Check, Examples
from anybit.errors import DataError
from anybit.tensors import moved, picked

KEPT_BYTES = 1 << 28
"""Of the clients that are kept in memory; of every worker process its own."""


class Shelf:
    """Clients' examples by number: the ones that were used last are kept, and of any size the last one."""

    def __init__(self, loaders: Sequence[Callable[[], Examples]], most_bytes: int = KEPT_BYTES) -> None:
        self.loaders, self.most_bytes = loaders, most_bytes
        self.kept: OrderedDict[int, Examples] = OrderedDict()
        self.bytes = 0
        self.sizes: list[int] = []
        """As announced, once they are known."""
        self.checks: list[Check] = []
        self.form: Any = None
        self.sums: dict[int, int] = {}
        """Checksum of every client that was loaded: a run that is repeated or resumed needs the same again."""

    def __getitem__(self, client: int) -> Examples:
        if client in self.kept:
            self.kept.move_to_end(client)
            return self.kept[client]
        examples = self.loaders[client]()
        self._check(examples, client)
        self.kept[client], self.bytes = examples, self.bytes + _bytes(examples)
        while len(self.kept) > 1 and self.bytes > self.most_bytes:
            self.bytes -= _bytes(self.kept.popitem(last=False)[1])
        return examples

    def _check(self, examples: Examples, client: int) -> None:
        form = [(leaf.shape[1:], leaf.dtype) for leaf in pytree.tree_leaves((examples.x, examples.y))]
        self.form = self.form or form
        if form != self.form:
            raise DataError(f"client {client} has examples of {_written(form)}, but others have {_written(self.form)}: give "
                            "all in one form")
        if self.sizes and len(examples) != self.sizes[client]:
            raise DataError(f"client {client} has {len(examples)} examples now, but {self.sizes[client]} at the start")
        if self.sums.setdefault(client, found := _checksum(examples)) != found:
            raise DataError(f"client {client} has other examples now than when it was loaded before: its function must "
                            "return the same at every call (augment in `pipeline`, and draw with a seed)")
        for check in self.checks:
            check(examples, f"client {client}")


@dataclass(frozen=True)
class OnDemand(Examples):
    """Examples that lie on a shelf, one client after another. x, y: one of them, which shows the form of all."""

    shelf: Shelf
    ends: np.ndarray
    """Position after the last example of each client."""

    @staticmethod
    def of(shelf: Shelf, sizes: Sequence[int]) -> OnDemand:
        first, shelf.sizes = shelf[0], list(sizes)
        return OnDemand(*picked((first.x, first.y), slice(1)), shelf, np.cumsum(sizes))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def to(self, device: torch.device) -> OnDemand:
        return replace(self, x=moved(self.x, device), y=moved(self.y, device))

    def rows(self, index: Tensor) -> Examples:
        places = index.cpu().numpy()
        owners = np.searchsorted(self.ends, places, side="right")
        found, order = list[Any](), list[np.ndarray]()
        for client in np.unique(owners).tolist():
            here, part = np.flatnonzero(owners == client), self.shelf[client]
            found.append(picked((part.x, part.y), torch.from_numpy(places[here] - self.ends[client] + len(part))))
            order.append(here)
        back = torch.from_numpy(np.argsort(np.concatenate(order)))
        rows = found[0] if len(found) == 1 else pytree.tree_map(lambda *parts: torch.cat(parts)[back], *found)
        return Examples(*moved(rows, self.y.device))

    def part(self, start: int, end: int) -> Examples:
        return self.rows(torch.arange(start, min(end, len(self))))

    def when_loaded(self, check: Check, what: str) -> None:
        self.shelf.checks.append(check)
        for client, examples in self.shelf.kept.items():
            check(examples, f"client {client}")


def _bytes(examples: Examples) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in pytree.tree_leaves((examples.x, examples.y)))


def _checksum(examples: Examples) -> int:
    total = 0
    for leaf in pytree.tree_leaves((examples.x, examples.y)):
        total = zlib.crc32(leaf.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).numpy(), total)
    return total


def _written(form: Sequence[tuple[Any, torch.dtype]]) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')} {tuple(shape)}" for shape, dtype in form)
