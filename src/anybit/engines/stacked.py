"""All clients of a cohort in one computation (vmap): mixed widths and uneven sizes, padded and masked.

Clients leave the computation when they run out of batches, so that uneven clients cost what they have, not what the
largest has: the cohort is walked in segments of steps, each stacked over the clients that are still training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from anybit.engines.base import Engine, Part, Tensors


class Stacked(Engine):
    """`chunk` clients at once."""

    def __init__(self, chunk: int) -> None:
        self.chunk = chunk

    def map_clients(self, update: Callable[..., Any], client_step: Callable[..., Any], w: Tensors, steps: Tensors,
                    cohort: Any) -> Iterator[Part]:
        """One part per chunk; a step that a client does not have changes nothing and has loss 0."""
        size = len(cohort.clients)
        mapped = torch.func.vmap(client_step)
        for start in range(0, size, self.chunk):
            clients = slice(start, min(start + self.chunk, size))
            deltas, losses = _stacked(update, mapped, w, steps, cohort.part(clients))
            yield clients, deltas, pad(losses, (0, cohort.steps - losses.shape[-1]))


def _stacked(update: Callable[..., Any], mapped: Callable[..., Any], w: Tensors, steps: Tensors,
             cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    size, segments = len(cohort.clients), cohort.segments()
    w, steps = per_client(w, size), per_client(steps, size)
    if len(segments) == 1:
        batches = [cohort.stacked_batch(k) for k in range(cohort.steps)]
        result: tuple[dict[str, Tensor], Tensor] = update(w, steps, cohort.width_bits, batches, mapped)
        return result
    deltas = {n: torch.zeros_like(p) for n, p in w.items()}
    losses = next(iter(w.values())).new_zeros((size, cohort.steps))
    for segment in segments:
        here = torch.tensor(segment.clients, device=cohort.index.device)
        batches = [cohort.stacked_batch(k, here, segment.rows) for k in segment.steps]
        w_i = {n: w[n][here] + deltas[n][here] for n in w}
        delta, loss = update(w_i, {n: s[here] for n, s in steps.items()}, cohort.width_bits[here], batches, mapped)
        for n in w:
            deltas[n].index_add_(0, here, delta[n])
        losses[here, segment.steps.start:segment.steps.stop] = loss.to(losses.dtype)
    return deltas, losses


def per_client(tensors: Mapping[str, Tensor], clients: int) -> dict[str, Tensor]:
    """The same tensors for every client: client first."""
    return {n: t.expand(clients, *t.shape).contiguous() for n, t in tensors.items()}
