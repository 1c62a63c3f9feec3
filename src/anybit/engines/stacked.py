"""All clients of a cohort in one computation (vmap): mixed widths and uneven sizes, padded and masked.

The cohort is walked in segments of local steps, each stacked over the clients that still have batches, so that uneven
clients cost little more than they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from anybit.engines.base import Engine
from anybit.engines.capture import Captured, Compiled
from anybit.tensors import Part, Tree, picked


class Stacked(Engine):
    """Engine that computes `chunk` clients at once, on a GPU with compiled local steps and captured rounds."""

    def __init__(self, chunk: int, compiled: bool = False, captured: bool = False) -> None:
        self.chunk, self.compiled, self.captured = chunk, compiled, captured
        if compiled:
            self.slow_start = ("compiling the round: minutes for a large network, far less once torch's caches have it "
                               "(compute.compile=false starts at once, and is slower after that)")
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
        # Programs have a fixed shape: no part of the cohort is cut to its size.
        padded = self.compiled or self.captured
        for start in range(0, size, self.chunk):
            clients = slice(start, min(start + self.chunk, size))
            count = clients.stop - clients.start
            deltas, losses = self.stacked(update, client_step, per_client(w, count), per_client(given, count),
                                          cohort.part(clients, padded))
            yield clients, deltas, pad(losses, (0, cohort.local_steps - losses.shape[-1]))

    def stacked(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> tuple[Any, Tensor]:
        """Return (deltas, losses), client first, of clients that start from different w."""
        if client_step.mapped not in self.mapped:
            self.mapped[client_step.mapped] = self.compile(torch.func.vmap(client_step.mapped))
        walk = _unsegmented if self.compiled or self.captured else _segmented
        with attention(cohort.index.device):
            changes, losses = walk(update, self.mapped[client_step.mapped], client_step.begin(w), given, cohort)
        return client_step.end(changes), losses


def attention(device: torch.device) -> AbstractContextManager[None]:
    """Have attention computed in single operations on a CPU, whose fused one vmap takes client by client, with a warning."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def _bound(mapped: Callable[..., Any], given: Any) -> Callable[..., Any]:
    return lambda w, xi: mapped(w, given, xi)


def _unsegmented(update: Callable[..., Any], mapped: Callable[..., Any], w: Any, given: Any,
                 cohort: Any) -> tuple[Any, Tensor]:
    batches = [cohort.stacked_batch(k) for k in range(cohort.local_steps)]
    return cast(tuple[Any, Tensor], update(w, batches, _bound(mapped, given)))


def _segmented(update: Callable[..., Any], mapped: Callable[..., Any], w: Any, given: Any,
               cohort: Any) -> tuple[Any, Tensor]:
    size, segments = len(cohort.index), cohort.segments()
    if len(segments) == 1:
        return _unsegmented(update, mapped, w, given, cohort)
    deltas = pytree.tree_map(torch.zeros_like, w)
    losses = pytree.tree_leaves(w)[0].new_zeros((size, cohort.local_steps))
    for segment in segments:
        active = torch.tensor(segment.clients, device=cohort.index.device)
        batches = [cohort.stacked_batch(k, active, segment.rows) for k in segment.local_steps]
        w_i = pytree.tree_map(torch.add, picked(w, active), picked(deltas, active))
        delta, loss = update(w_i, batches, _bound(mapped, picked(given, active)))
        pytree.tree_map(lambda total, part, active=active: total.index_add_(0, active, part), deltas, delta)
        losses[active, segment.local_steps.start:segment.local_steps.stop] = loss.to(losses.dtype)
    return deltas, losses


def per_client(tree: Tree, clients: int) -> Tree:
    """Repeat the tensors for every client, client first."""
    return cast(Tree, pytree.tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).contiguous(), tree))
