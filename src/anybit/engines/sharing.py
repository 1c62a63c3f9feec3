"""Tensors in memory that forked processes share: anonymous, so that nothing is left behind when a process is killed."""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch.utils import _pytree as pytree

ALIGNMENT = 64
"""Alignment of torch's own allocations, so that kernels take the same path here."""


class Layout:
    """Places of the leaves of a tree of tensors, one after another."""

    def __init__(self, tree: Any) -> None:
        leaves, self.form = pytree.tree_flatten(tree)
        self.shapes = [leaf.shape for leaf in leaves]
        self.dtypes = [leaf.dtype for leaf in leaves]
        self.offsets, end = list[int](), 0
        for leaf in leaves:
            self.offsets.append(end)
            end += -(-leaf.numel() * leaf.element_size() // ALIGNMENT) * ALIGNMENT
        self.size = max(end, ALIGNMENT)

    def fits(self, tree: Any) -> bool:
        """Return true if a tree has this form, these shapes and these types."""
        leaves, form = pytree.tree_flatten(tree)
        return (form, [leaf.shape for leaf in leaves], [leaf.dtype for leaf in leaves]) == \
            (self.form, self.shapes, self.dtypes)


class Shared:
    """Memory for `count` trees of a layout, shared by the process and those forked from it."""

    def __init__(self, layout: Layout, count: int = 1) -> None:
        self.layout, self.count = layout, count
        self._memory = mmap.mmap(-1, layout.size * count)

    def tensors(self, place: int = 0) -> Any:
        """Return the tree at a place: views of the shared memory."""
        start, layout = place * self.layout.size, self.layout
        leaves = [torch.frombuffer(self._memory, dtype=dtype, count=shape.numel(), offset=start + offset).view(shape)
                  if shape.numel() else torch.empty(shape, dtype=dtype)
                  for shape, dtype, offset in zip(layout.shapes, layout.dtypes, layout.offsets, strict=True)]
        return pytree.tree_unflatten(leaves, layout.form)

    def write(self, tree: Any, place: int = 0) -> None:
        """Copy a tree to a place."""
        for view, leaf in zip(pytree.tree_leaves(self.tensors(place)), pytree.tree_leaves(tree), strict=True):
            view.copy_(leaf)
