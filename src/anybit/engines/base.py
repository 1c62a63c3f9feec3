"""What an engine is: how the clients of a cohort are executed, and what is done to a whole round before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from anybit.errors import EngineError
from anybit.tensors import Part

Item = TypeVar("Item")


class Engine:
    """An engine is `map_clients`, and perhaps a `prepare` that makes a round faster and a `close` that ends workers.

    One of several that share a cohort also has a `combine` and an `agree`.
    """

    leads = True
    """Whether this one evaluates and writes."""

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterable[Part]:
        """Run update(w, batches, local step) for every client of the cohort: parts, in order.

        w, given: trees of tensors · client_step: a local step in two forms, `mapped` over clients that are stacked,
        with everything as an argument, and `alone`, which makes that of one client from (given, its width).
        """
        raise NotImplementedError

    def prepare(self, round: Callable[..., Any]) -> Callable[..., Any]:
        """The same round, perhaps captured."""
        return round

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function of tensors, perhaps compiled."""
        return function

    def shrink(self, clients: int) -> str:
        """Compute fewer of the clients at once, because they did not fit into memory, and say so."""
        raise EngineError("one client alone does not fit into memory: lower client.batch_size, or use device=cpu")

    def combine(self, total: Any, losses: Sequence[Tensor], like: Any, cohort: Any) -> tuple[Any, Tensor]:
        """Go from what this engine's parts gave to what the whole cohort gives: (summed deltas, losses (client, step)).

        total: none where this engine had no client · like: a tree in the form of the deltas.
        """
        return total, torch.cat(list(losses))

    def each(self, figures: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[list[float]]:
        """figures(item) of every item, in order."""
        return [list(figures(item)) for item in items]

    def agree(self, flag: bool, round: int) -> bool:
        """Whether any of the engines that share the cohort says so, after this many rounds."""
        return flag

    def close(self) -> None:
        """End whatever the engine started."""


class Program:
    """A round as an engine prepared it. It gives its memory back when something else needs it, and is prepared again."""

    def __init__(self, prepare: Callable[[], Callable[..., Any]]) -> None:
        self.prepare = prepare
        self.prepared: Callable[..., Any] | None = None

    def __call__(self, state: Any, inputs: Any) -> Any:
        self.prepared = self.prepared or self.prepare()
        return self.prepared(state, inputs)

    def release(self) -> None:
        self.prepared = None
        torch.cuda.empty_cache()
