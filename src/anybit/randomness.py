"""Keyed randomness: every draw is a function of (seed, round, client, purpose) and nothing else.

Host draws (cohorts, widths, batch order, splits) come from a numpy generator started at the key. Device draws (noise,
dropout, augmentation) are a counter-based hash in tensor operations, so that loops, vmap, worker processes, CPUs and GPUs
see the same numbers, and a resumed run those of an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_WORD = 0xFFFFFFFF


def key(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Return a 63-bit integer that stands for (seed, round, client, purpose)."""
    digest = hashlib.blake2b(f"{seed}/{round}/{client}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return a numpy generator for draws on the host."""
    return np.random.Generator(np.random.Philox(key=key(seed, purpose, round, client)))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Compute x >> bits of 32-bit words without a sign."""
    return (x >> bits) & (_WORD >> bits)


def _mix(x: Tensor) -> Tensor:
    """Hash 32-bit words in int32, whose products wrap around and which takes half the time of int64."""
    for bits, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        # As a tensor: a number times a mapped scalar is converted by vmap, and compilers do that through float32.
        x = (x ^ _shifted(x, bits)) * torch.full((), factor, dtype=torch.int32, device=x.device)
    return x ^ _shifted(x, 15)


def uniform(key: Tensor, step: Tensor, site: int, shape: Sequence[int]) -> Tensor:
    """Draw U[0, 1) in float32, a function of (key, step, site, position) alone.

    key: a scalar from `key()` · step: the local step · site: number of the model's tensor that the draws are for.
    """
    place = step.to(torch.int64) ^ (site * 0x9E3779B1 & _WORD)
    lane = _mix(key.to(torch.int32) ^ _mix(place.to(torch.int32)))
    position = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device).reshape(tuple(shape))
    word = _mix(_mix(position ^ lane) ^ (key >> 32).to(torch.int32))
    return _shifted(word, 8).to(torch.float32) * 2.0**-24
