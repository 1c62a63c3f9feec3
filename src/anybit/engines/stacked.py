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
from anybit.engines.capture import Captured, Compiled


class Stacked(Engine):
    """`chunk` clients at once; on a GPU with compiled steps and captured rounds."""

    def __init__(self, chunk: int, compiled: bool = False, captured: bool = False) -> None:
        self.chunk, self.compiled, self.captured = chunk, compiled, captured
        self.mapped: dict[Callable[..., Any], Callable[..., Any]] = {}

    def prepare(self, round: Callable[..., Any]) -> Callable[..., Any]:
        return Captured(round) if self.captured else round

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return Compiled(function) if self.compiled else function

    def shrink(self, clients: int) -> str:
        if self.chunk == 1:
            return super().shrink(clients)
        self.chunk = (min(self.chunk, clients) + 1) // 2
        self.mapped.clear()
        torch.cuda.empty_cache()
        return f"{clients} clients do not fit into the GPU's memory: computing {self.chunk} at a time"

    def map_clients(self, update: Callable[..., Any], client_step: Callable[..., Any], w: Tensors, steps: Tensors,
                    cohort: Any) -> Iterator[Part]:
        """One part per chunk; a step that a client does not have changes nothing and has loss 0."""
        size = len(cohort.clients)
        # Programs of fixed shape: no part of the cohort is cut to its own size.
        padded = self.compiled or self.captured
        for start in range(0, size, self.chunk):
            clients = slice(start, min(start + self.chunk, size))
            here = clients.stop - clients.start
            deltas, losses = self.stacked(update, client_step, per_client(w, here), per_client(steps, here),
                                          cohort.part(clients, padded))
            yield clients, deltas, pad(losses, (0, cohort.steps - losses.shape[-1]))

    def stacked(self, update: Callable[..., Any], client_step: Callable[..., Any], w: Tensors, steps: Tensors,
                cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
        """(deltas, losses) of clients that each start from their own w, client first."""
        walk = _whole if self.compiled or self.captured else _segmented
        return walk(update, self._mapped(client_step), w, steps, cohort)

    def _mapped(self, client_step: Callable[..., Any]) -> Callable[..., Any]:
        if client_step not in self.mapped:
            self.mapped[client_step] = self.compile(torch.func.vmap(client_step))
        return self.mapped[client_step]


def _whole(update: Callable[..., Any], mapped: Callable[..., Any], w: Tensors, steps: Tensors,
           cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    """All steps of all clients, padded to the longest."""
    batches = [cohort.stacked_batch(k) for k in range(cohort.steps)]
    result: tuple[dict[str, Tensor], Tensor] = update(w, steps, cohort.width_bits, batches, mapped)
    return result


def _segmented(update: Callable[..., Any], mapped: Callable[..., Any], w: Tensors, steps: Tensors,
               cohort: Any) -> tuple[dict[str, Tensor], Tensor]:
    size, segments = len(cohort.index), cohort.segments()
    if len(segments) == 1:
        return _whole(update, mapped, w, steps, cohort)
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
