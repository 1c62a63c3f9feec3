"""How the convolutions' work is cut into the tiles of a GPU's programs."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import triton
from torch import Tensor
from triton.runtime import driver

PROGRAMS = 1056
"""Programs that keep a large GPU busy; a sum over pixels is cut into as many parts as that takes."""

AHEAD = 3
"""Pieces of a sum that a program holds at once, as it loads the next ones while it multiplies."""


def tile(size: int, most: int) -> int:
    """Return the power of two that covers a size, at least the 16 of a matrix unit and at most so much."""
    return min(most, max(16, int(triton.next_power_of_2(size))))


def fitting(wide: int, length: int, bytes: int, room: int) -> int:
    """Halve the tile of a sum over `length` until its pieces, of so many bytes for each index, fit into the room."""
    while wide > 16 and (AHEAD if length > wide else 1) * wide * bytes > room:
        wide //= 2
    return wide


def shared_memory(x: Tensor) -> int:
    """Return the bytes of shared memory that a program may have where x lies; without end in Triton's interpreter."""
    return _shared_memory(x.device.index) if x.is_cuda else sys.maxsize


@functools.cache
def _shared_memory(device: int) -> int:
    properties: dict[str, Any] = driver.active.utils.get_device_properties(device)
    return int(properties["max_shared_mem"])


class Plan(NamedTuple):
    """The cut of a sum over pixels: parts of so many steps of so many pixels each, in so many programs."""

    parts: int
    steps: int
    pixels: int
    programs: int
    rows: int
    stages: int
    tile_j: int
    tile_o: int


def weight_plan(x: Tensor, dy: Tensor, kernel: int) -> Plan:
    """Let rows of the kernel share a program where registers have room for their sums."""
    # float32 is split on its way, which a load that runs ahead would slow down.
    pixels, stages = (32, 1) if x.element_size() > 2 else (64, 3)
    tile_j, tile_o = tile(kernel * x.shape[2], 64), tile(dy.shape[2], 64)
    rows = kernel if kernel * tile_j * tile_o <= 3 * 64 * 64 else 1
    programs = kernel // rows * triton.cdiv(kernel * x.shape[2], tile_j) * triton.cdiv(dy.shape[2], tile_o)
    blocks = triton.cdiv(dy.shape[1] * dy.shape[3] * dy.shape[4], pixels)
    steps = triton.cdiv(blocks, max(1, min(blocks, PROGRAMS // (programs * x.shape[0]))))
    return Plan(triton.cdiv(blocks, steps), steps, pixels, programs, rows, stages, tile_j, tile_o)
