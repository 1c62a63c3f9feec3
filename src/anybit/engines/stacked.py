"""All clients of a cohort in one computation (vmap): mixed widths and uneven sizes, padded and masked.

Clients leave the computation when they run out of batches, so that uneven clients cost what they have, not what the
largest has: the cohort is walked in segments of steps, each stacked over the clients that are still training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from anybit.engines.base import Engine
from anybit.engines.capture import Captured, Compiled
from anybit.tensors import Part, Tree, picked


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

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterator[Part]:
        """Give one part per chunk; a local step that a client does not have changes nothing and has loss 0."""
        size = len(cohort.clients)
        # Programs of fixed shape: no part of the cohort is cut to its own size.
        padded = self.compiled or self.captured
        for start in range(0, size, self.chunk):
            clients = slice(start, min(start + self.chunk, size))
            here = clients.stop - clients.start
            deltas, losses = self.stacked(update, client_step, per_client(w, here), per_client(given, here),
                                          cohort.part(clients, padded))
            yield clients, deltas, pad(losses, (0, cohort.local_steps - losses.shape[-1]))

    def stacked(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> tuple[Any, Tensor]:
        """Return (deltas, losses) of clients that each start from their own w, client first."""
        walk = _whole if self.compiled or self.captured else _segmented
        return walk(update, self._mapped(client_step.mapped), w, given, cohort)

    def _mapped(self, mapped: Callable[..., Any]) -> Callable[..., Any]:
        if mapped not in self.mapped:
            self.mapped[mapped] = self.compile(torch.func.vmap(mapped))
        return self.mapped[mapped]


def _bound(mapped: Callable[..., Any], given: Any, width_bits: Tensor) -> Callable[..., Any]:
    return lambda w, xi: mapped(w, given, width_bits, xi)


def _whole(update: Callable[..., Any], mapped: Callable[..., Any], w: Any, given: Any, cohort: Any) -> tuple[Any, Tensor]:
    """Take all local steps of all clients, padded to the longest."""
    batches = [cohort.stacked_batch(k) for k in range(cohort.local_steps)]
    result: tuple[Any, Tensor] = update(w, batches, _bound(mapped, given, cohort.width_bits))
    return result


def _segmented(update: Callable[..., Any], mapped: Callable[..., Any], w: Any, given: Any,
               cohort: Any) -> tuple[Any, Tensor]:
    size, segments = len(cohort.index), cohort.segments()
    if len(segments) == 1:
        return _whole(update, mapped, w, given, cohort)
    deltas = pytree.tree_map(torch.zeros_like, w)
    losses = pytree.tree_leaves(w)[0].new_zeros((size, cohort.local_steps))
    for segment in segments:
        here = torch.tensor(segment.clients, device=cohort.index.device)
        batches = [cohort.stacked_batch(k, here, segment.rows) for k in segment.local_steps]
        w_i = pytree.tree_map(torch.add, picked(w, here), picked(deltas, here))
        delta, loss = update(w_i, batches, _bound(mapped, picked(given, here), cohort.width_bits[here]))
        pytree.tree_map(lambda total, part, here=here: total.index_add_(0, here, part), deltas, delta)
        losses[here, segment.local_steps.start:segment.local_steps.stop] = loss.to(losses.dtype)
    return deltas, losses


def per_client(tree: Tree, clients: int) -> Tree:
    """Give every client the same tensors: client first."""
    out: Tree = pytree.tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).contiguous(), tree)
    return out
