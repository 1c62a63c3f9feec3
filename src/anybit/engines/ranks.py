"""A cohort over the ranks of `torchrun`: each trains a share of the clients with an inner engine, then all sum up.

All ranks draw the same cohort and take the same server step on the same sum, so they hold the same model and only
rank 0 writes. The number of ranks changes only the order of a sum.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from anybit.engines.base import Engine, Item
from anybit.engines.parent import die_with_torchrun
from anybit.errors import EngineError
from anybit.tensors import Part


def world() -> int:
    """Return the number of ranks that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def rank() -> int:
    return int(os.environ["RANK"]) if world() > 1 else 0


def own_device(device: torch.device) -> torch.device:
    """Return the GPU of this local rank, or the device as it is on a CPU or without torchrun."""
    if device.type == "cuda" and world() > 1:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def shares(work: Sequence[int], ranks: int) -> list[list[int]]:
    """Return the positions of each rank, in order: the longest client goes to the rank with the least work so far."""
    loads, out = [0] * ranks, [list[int]() for _ in range(ranks)]
    for client in sorted(range(len(work)), key=lambda i: (-work[i], i)):
        least = min(range(ranks), key=lambda r: (loads[r], r))
        loads[least] += work[client]
        out[least].append(client)
    return [sorted(share) for share in out]


class Ranks(Engine):
    """Engine of one rank: trains its share of every cohort; `combine` adds those of the other ranks."""

    def __init__(self, inner: Engine, device: torch.device) -> None:
        self.inner, self.slow_start = inner, inner.slow_start
        die_with_torchrun()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self.rank, self.ranks, self.device = dist.get_rank(), dist.get_world_size(), device
        self.leads = self.rank == 0

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterator[Part]:
        """Give the parts of this rank's share."""
        share = shares(cohort.counts.sum(1).tolist(), self.ranks)[self.rank]
        if not share:
            return
        positions = torch.tensor(share)
        for clients, deltas, losses in self.inner.map_clients(update, client_step, w, given, cohort.chosen(share)):
            yield positions[clients], deltas, pad(losses, (0, cohort.local_steps - losses.shape[-1]))

    def combine(self, total: Any, losses: Sequence[Tensor], like: Any, cohort: Any) -> tuple[Any, Tensor]:
        """Sum over ranks: deltas in one message per type, losses at their clients' positions."""
        share, during = shares(cohort.counts.sum(1).tolist(), self.ranks)[self.rank], f"in round {cohort.round + 1}"
        all_losses = torch.zeros(len(cohort.clients), cohort.local_steps, device=self.device)
        if losses:
            all_losses[torch.tensor(share, device=self.device)] = torch.cat(list(losses)).to(all_losses.dtype)
        parts, form = pytree.tree_flatten(total if total is not None else pytree.tree_map(torch.zeros_like, like))
        for dtype in sorted({part.dtype for part in parts}, key=str):
            same = [i for i, part in enumerate(parts) if part.dtype == dtype]
            flat = torch.cat([parts[i].contiguous().flatten() for i in same])
            self._all_reduce(flat, during)
            for i, summed in zip(same, torch.split(flat, [parts[i].numel() for i in same]), strict=True):
                parts[i] = summed.view(parts[i].shape)
        self._all_reduce(all_losses, during)
        return pytree.tree_unflatten(parts, form), all_losses

    def each(self, figures: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[list[float]]:
        return self.inner.each(figures, items)

    def agree(self, flag: bool, round: int) -> bool:
        """Return true if any rank has the flag; all ranks ask at the same point, which is also a barrier."""
        value = torch.tensor([float(flag)], device=self.device)
        self._all_reduce(value, f"after round {round}")
        return bool(value.item() > 0)

    def close(self) -> None:
        self.inner.close()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _all_reduce(self, tensor: Tensor, when: str) -> None:
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            raise EngineError(f"rank {self.rank} lost the others {when}: one of the {self.ranks} ranks ended "
                              f"({str(error).splitlines()[0][:80]})") from error
