"""The cohort of a round: its clients, their widths and their batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from anybit.federated.client import ClientOptions
from anybit.quant.grid import FLOAT, Width
from anybit.randomness import generator, key
from anybit.tensors import moved, picked


class Batch(NamedTuple):
    """ξ: one mini-batch of one client. Padding rows have rows = 0; a padded local step has real = 0 and changes nothing."""

    index: Tensor  # type: ignore[assignment]
    rows: Tensor
    real: Tensor
    key: Tensor
    local_step: Tensor
    width: Tensor
    """Bits of weights and activations."""


class Segment(NamedTuple):
    """Consecutive local steps in which the same clients have batches: a block of the cohort almost without padding."""

    clients: tuple[int, ...]
    """Positions in the cohort."""
    local_steps: range
    rows: int
    """Size of the largest batch in the block."""


@dataclass(frozen=True)
class Cohort:
    """The clients of one round. All tensors have the client first; index and rows are (client, local step, row)."""

    round: int
    clients: tuple[int, ...]
    widths: tuple[Width, ...]
    """Width of each client; where its local steps have widths of their own, the largest that it can have."""
    examples: tuple[int, ...]
    """Number of examples of each client."""
    width_bits: Tensor
    """Bits of weights and activations: (client, local step, 2)."""
    index: Tensor
    rows: Tensor
    keys: Tensor

    def part(self, clients: slice, padded: bool = False) -> Cohort:
        """Return a part of the clients, padded to the longest of them, or (padded) of the whole cohort."""
        steps = self.local_steps if padded else int((self.counts[clients] > 0).sum(1).max())
        rows = self.rows.shape[2] if padded else int(self.counts[clients].max())
        return Cohort(self.round, self.clients[clients], self.widths[clients], self.examples[clients],
                      self.width_bits[clients, :steps], self.index[clients, :steps, :rows],
                      self.rows[clients, :steps, :rows], self.keys[clients])

    def chosen(self, clients: Sequence[int]) -> Cohort:
        """Return the clients at these positions, padded to the longest of them."""
        cohort = replace(picked(self, torch.tensor(clients, device=self.index.device)),
                         clients=tuple(self.clients[i] for i in clients), widths=tuple(self.widths[i] for i in clients),
                         examples=tuple(self.examples[i] for i in clients))
        return cohort.part(slice(0, len(clients)))

    def to(self, device: torch.device) -> Cohort:
        return self if self.index.device == device else moved(self, device)

    @property
    def local_steps(self) -> int:
        """Local steps of the longest client."""
        return self.index.shape[1]

    def batches(self, client: int) -> list[Batch]:
        """Return the batches of one client without padding."""
        out = []
        for k in range(self.local_steps):
            n = int(self.rows[client, k].sum())
            if n:
                ones = torch.ones(n, device=self.index.device)
                out.append(Batch(self.index[client, k, :n], ones, ones[0], self.keys[client], self._count(k),
                                 self.width_bits[client, k]))
        return out

    def stacked_batch(self, k: int, clients: Tensor | None = None, rows: int | None = None) -> Batch:
        """Return the batches of local step k of all clients (or of those at these positions), padded (to `rows`)."""
        index, real, keys, widths = self.index[:, k, :rows], self.rows[:, k, :rows], self.keys, self.width_bits[:, k]
        if clients is not None:
            index, real, keys, widths = index[clients], real[clients], keys[clients], widths[clients]
        return Batch(index, real, real.amax(1), keys, self._count(k).expand(len(keys)), widths)

    @cached_property
    def counts(self) -> np.ndarray:
        """Real rows per (client, local step), on the host."""
        return self.rows.sum(2).cpu().numpy().astype(np.int64)

    def segments(self) -> list[Segment]:
        """Return the cohort cut wherever a client runs out of batches, without the local steps that it does not have."""
        length = (self.counts > 0).sum(1)
        ends = np.unique(length)
        out = []
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            active = np.flatnonzero(length >= end)
            out.append(Segment(tuple(active.tolist()), range(start, end), int(self.counts[active, start:end].max())))
        return out

    def padding_share(self, segmented: bool = True) -> float:
        """Return the share of padding in the samples that the stacked engine computes, with or without segments."""
        blocks = sum(len(s.clients) * len(s.local_steps) * s.rows for s in self.segments())
        return 1 - float(self.counts.sum()) / (blocks if segmented else self.rows.numel())

    def _count(self, k: int) -> Tensor:
        return torch.full((), k, dtype=torch.int64, device=self.index.device)


def join(cohorts: Sequence[Cohort]) -> Cohort:
    """Join the clients of several cohorts, one cohort after another, padded to the longest."""
    steps, rows = max(c.local_steps for c in cohorts), max(c.rows.shape[2] for c in cohorts)

    def padded(tensor: Tensor, rows: int = rows, value: int = 0) -> Tensor:
        return pad(tensor, (0, rows - tensor.shape[2], 0, steps - tensor.shape[1]), value=value)

    return Cohort(cohorts[0].round, sum((c.clients for c in cohorts), ()), sum((c.widths for c in cohorts), ()),
                  sum((c.examples for c in cohorts), ()), torch.cat([padded(c.width_bits, 2, FLOAT) for c in cohorts]),
                  torch.cat([padded(c.index) for c in cohorts]), torch.cat([padded(c.rows) for c in cohorts]),
                  torch.cat([c.keys for c in cohorts]))


pytree.register_pytree_node(
    Cohort, lambda c: ([c.width_bits, c.index, c.rows, c.keys], (c.round, c.clients, c.widths, c.examples)),
    lambda tensors, host: Cohort(*host, *tensors))


def sample_clients(seed: int, round: int, clients: int, size: int) -> tuple[int, ...]:
    """Draw S_t: `size` of the clients, uniformly without replacement."""
    return tuple(int(i) for i in generator(seed, "cohort", round).choice(clients, size, replace=False))


StepWidths = Callable[[int, int, int, Width, int], Sequence[Width]]
"""(seed, round, client, its width, number of local steps) → the width of every local step."""


def same_width(seed: int, round: int, client: int, width: Width, count: int) -> list[Width]:
    """Give every local step the client's width."""
    return [width] * count


def batch_sizes(examples: int, most: int, even: bool) -> np.ndarray:
    """Return the sizes of an epoch's batches of at most so many examples: what is left over in a small last one, or (even)
    as many batches whose sizes differ by one at most, the larger first."""
    count = -(-examples // most)
    if even:
        return examples // max(1, count) + (np.arange(count) < examples % max(1, count))
    return np.minimum(most, examples - most * np.arange(count))


def build_cohort(seed: int, round: int, clients: Sequence[int], widths: Sequence[Width],
                 split: Sequence[np.ndarray] | Mapping[int, np.ndarray], options: ClientOptions,
                 step_widths: StepWidths = same_width) -> Cohort:
    """Draw every client's batch order and lay the batches out as (client, local step, row), padded to the longest client.

    On the host, while the device is busy with the round before.
    """
    longest = max((len(split[client]) for client in clients), default=1)
    most = min(options.batch_size, longest)
    shape = (len(clients), options.steps_of(longest), most)
    index, rows = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    for i, client in enumerate(clients):
        draw, examples = generator(seed, "order", round, client), split[client]
        sizes = batch_sizes(len(examples), most, options.even)
        end = options.steps_of(len(examples))
        for start in range(0, end, max(1, len(sizes))):
            taken = sizes[:end - start]
            real = np.arange(most) < taken[:, None]
            index[i, start:start + len(taken)][real] = examples[draw.permutation(len(examples))][:taken.sum()]
            rows[i, start:start + len(taken)] = real
    keys = [key(seed, "client", round, client) for client in clients]
    bits = np.full((*index.shape[:2], 2), FLOAT)
    for i, (client, width) in enumerate(zip(clients, widths, strict=True)):
        count = int(rows[i, :, 0].sum())
        bits[i, :count] = step_widths(seed, round, client, width, count)
    return Cohort(round, tuple(clients), tuple(widths), tuple(len(split[c]) for c in clients), torch.from_numpy(bits),
                  torch.from_numpy(index), torch.from_numpy(rows), torch.tensor(keys, dtype=torch.int64))
