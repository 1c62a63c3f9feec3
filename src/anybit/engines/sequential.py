"""The reference engine: one client after another, each on its own unpadded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.functional import pad

from anybit.engines.base import Engine, Part, Tensors


class Sequential(Engine):
    """Memory holds one client at a time, whatever the cohort."""

    def map_clients(self, update: Callable[..., Any], client_step: Callable[..., Any], w: Tensors, steps: Tensors,
                    cohort: Any) -> Iterator[Part]:
        """One part per client; the losses of shorter clients end in zeros."""
        for i in range(len(cohort.clients)):
            delta, losses = update(w, steps, cohort.width_bits[i], cohort.batches(i), client_step)
            losses = pad(losses, (0, cohort.steps - len(losses)))
            yield slice(i, i + 1), {n: d[None] for n, d in delta.items()}, losses[None]
