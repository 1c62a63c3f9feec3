"""All clients of a cohort in one computation (vmap): mixed widths and uneven sizes, padded and masked.

Clients leave the computation when they run out of batches, so that uneven clients cost what they have, not what the
largest has: the cohort is walked in segments of steps, each stacked over the clients that are still training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def map_clients(update: Callable[..., Any], w: Mapping[str, Tensor], cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    """(deltas, losses), client first; a step that a client does not have changes nothing and has loss 0."""
    segments = cohort.segments()
    if len(segments) == 1:
        batches = [cohort.stacked_batch(k) for k in range(cohort.steps)]
        result: tuple[dict[str, Tensor], Tensor] = torch.func.vmap(update, in_dims=(None, 0, 0))(
            dict(w), cohort.width_bits, batches)
        return result
    size, device = len(cohort.clients), cohort.index.device
    deltas = {n: p.new_zeros((size, *p.shape)) for n, p in w.items()}
    losses = next(iter(w.values())).new_zeros((size, cohort.steps))
    for segment in segments:
        here = torch.tensor(segment.clients, device=device)
        batches = [cohort.stacked_batch(k, here, segment.rows) for k in segment.steps]
        w_i = {n: w[n] + deltas[n][here] for n in w}
        delta, loss = torch.func.vmap(update)(w_i, cohort.width_bits[here], batches)
        for n in w:
            deltas[n].index_add_(0, here, delta[n])
        losses[here, segment.steps.start:segment.steps.stop] = loss
    return deltas, losses
