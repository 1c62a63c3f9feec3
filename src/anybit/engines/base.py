"""What an engine is: how the clients of a cohort are executed, and what is done to a whole round before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

Tensors = Mapping[str, Tensor]
Part = tuple[slice, dict[str, Tensor], Tensor]
"""Some clients of a cohort after their local training: (which, deltas with the client first, losses (client, step))."""


class Engine:
    """An engine is `map_clients`, and perhaps a `prepare` that makes a round faster and a `close` that ends workers."""

    def map_clients(self, update: Callable[..., Any], client_step: Callable[..., Any], w: Tensors, steps: Tensors,
                    cohort: Any) -> Iterable[Part]:
        """Run update(w, steps, width, batches, client_step) for every client of the cohort: parts, in order."""
        raise NotImplementedError

    def prepare(self, round: Callable[..., Any]) -> Callable[..., Any]:
        """The same round, perhaps captured."""
        return round

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function of tensors, perhaps compiled."""
        return function

    def shrink(self, clients: int) -> str:
        """Compute fewer of the clients at once, because they did not fit into memory, and say so."""
        raise MemoryError("one client alone does not fit into memory: lower client.batch_size, or use device=cpu")

    def close(self) -> None:
        """End whatever the engine started."""
