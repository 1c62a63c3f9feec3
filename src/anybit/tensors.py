"""Tensors by name, and trees of them, which the algorithm and the engines pass to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tensors = Mapping[str, Tensor]
Tree = TypeVar("Tree")
"""Tensors in any nesting of tuples and dicts."""

Part = tuple[slice | Tensor, Any, Tensor]
"""Trained clients of a cohort: (their positions, a tree of deltas with the client first, losses (client, local step))."""


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees of the same form leaf by leaf."""
    return cast(Tree, pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees))


def picked(tree: Tree, index: Any) -> Tree:
    """Return leaf[index] of every leaf."""
    return cast(Tree, pytree.tree_map(lambda leaf: leaf[index], tree))


def moved(tree: Tree, device: torch.device) -> Tree:
    """Move every leaf to a device."""
    return cast(Tree, pytree.tree_map(lambda leaf: leaf.to(device), tree))
