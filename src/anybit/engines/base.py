"""The interface of an engine, which executes the clients of a cohort."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from anybit.errors import EngineError
from anybit.tensors import Part

Item = TypeVar("Item")


class Engine:
    """Base of all engines, which implement `map_clients`; engines that share a cohort also `combine` and `agree`."""

    leads = True
    """This engine's process evaluates and writes."""
    slow_start = ""
    """What to tell a user who waits for the first round."""

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterable[Part]:
        """Run update(w, batches, local step) for every client of the cohort; return parts, in order.

        w, given: trees of tensors · client_step: a local step in two forms, `mapped` over stacked clients, and `alone`,
        which makes that of one client from `given`; `begin` and `end` add to w what the client's optimizer keeps, and take
        it from the change.
        """
        raise NotImplementedError

    def prepare(self, round: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same round, perhaps captured."""
        return round

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function of tensors, perhaps compiled."""
        return function

    def shrink(self, clients: int) -> str:
        """Compute fewer clients at once, because they did not fit into memory; return a message."""
        raise EngineError("one client alone does not fit into memory: lower client.batch_size, or use device=cpu")

    def combine(self, total: Any, losses: Sequence[Tensor], like: Any, cohort: Any) -> tuple[Any, Tensor]:
        """Return (summed deltas, losses (client, local step)) of the whole cohort from those of this engine's parts.

        total: none where this engine had no client · like: a tree in the form of the deltas.
        """
        return total, torch.cat(list(losses))

    def each(self, figures: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[list[float]]:
        """Return figures(item) of every item, in order."""
        return [list(figures(item)) for item in items]

    def agree(self, flag: bool, round: int) -> bool:
        """Return true if any of the engines that share the cohort has the flag, after this many rounds."""
        return flag

    def close(self) -> None:
        """End the processes that the engine started."""


class Program:
    """A round that is prepared when it is called; released, it frees its memory until the next call."""

    def __init__(self, prepare: Callable[[], Callable[..., Any]]) -> None:
        self.prepare = prepare
        self.prepared: Callable[..., Any] | None = None

    def __call__(self, state: Any, inputs: Any) -> Any:
        self.prepared = self.prepared or self.prepare()
        return self.prepared(state, inputs)

    def release(self) -> None:
        self.prepared = None
        torch.cuda.empty_cache()
