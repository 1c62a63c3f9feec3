"""Tensors in memory that forked processes share: anonymous, so that nothing is left behind however a process ends."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch
from torch import Tensor

ALIGNMENT = 64
"""As torch allocates, so that kernels take the same path as on tensors of its own."""


class Layout:
    """Where tensors of given shapes lie, one after another."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {n: t.shape for n, t in tensors.items()}
        self.dtypes = {n: t.dtype for n, t in tensors.items()}
        self.offsets, end = {}, 0
        for name, tensor in tensors.items():
            self.offsets[name] = end
            end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
        self.size = max(end, ALIGNMENT)

    def fits(self, tensors: Mapping[str, Tensor]) -> bool:
        return self.shapes == {n: t.shape for n, t in tensors.items()} \
            and self.dtypes == {n: t.dtype for n, t in tensors.items()}


class Shared:
    """`count` copies of a layout that the process and everything forked from it read and write."""

    def __init__(self, layout: Layout, count: int = 1) -> None:
        self.layout, self.count = layout, count
        self._memory = mmap.mmap(-1, layout.size * count)

    def tensors(self, place: int = 0) -> dict[str, Tensor]:
        """The tensors of one copy: views of the shared memory."""
        start = place * self.layout.size
        return {name: torch.frombuffer(self._memory, dtype=self.layout.dtypes[name], count=shape.numel(),
                                       offset=start + self.layout.offsets[name]).view(shape) if shape.numel() else
                torch.empty(shape, dtype=self.layout.dtypes[name]) for name, shape in self.layout.shapes.items()}

    def write(self, tensors: Mapping[str, Tensor], place: int = 0) -> None:
        for name, view in self.tensors(place).items():
            view.copy_(tensors[name])
