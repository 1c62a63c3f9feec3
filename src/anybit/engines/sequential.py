"""The reference engine: one client after another, each on its own unpadded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.functional import pad

from anybit.engines.base import Engine
from anybit.tensors import Part, picked


class Sequential(Engine):
    """Engine with one client at a time in memory."""

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterator[Part]:
        """Give one part per client; the losses of shorter clients end in zeros."""
        for i in range(len(cohort.clients)):
            change, losses = update(client_step.begin(w), cohort.batches(i), client_step.alone(given))
            delta = client_step.end(change)
            yield slice(i, i + 1), picked(delta, None), pad(losses, (0, cohort.local_steps - len(losses)))[None]
