"""The reference engine: one client after another, each on its own unpadded batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def map_clients(update: Callable[..., Any], w: Mapping[str, Tensor], cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    """(deltas, losses), client first; the losses of shorter clients end in zeros."""
    deltas, losses = [], []
    for i in range(len(cohort.clients)):
        delta, loss = update(w, cohort.width_bits[i], cohort.batches(i))
        deltas.append(delta)
        losses.append(pad(loss, (0, cohort.steps - len(loss))))
    return {name: torch.stack([d[name] for d in deltas]) for name in w}, torch.stack(losses)
