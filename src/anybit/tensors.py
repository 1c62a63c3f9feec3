"""Tensors by name, and trees of them: what the algorithm hands to an engine, and an engine hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tensors = Mapping[str, Tensor]
Tree = TypeVar("Tree")
"""Tensors in any nesting of tuples and dicts."""

Part = tuple[slice | Tensor, Any, Tensor]
"""Some clients of a cohort after their local training: (which, a tree of deltas with the client first, losses (client,
local step))."""


def stacked(trees: Sequence[Tree]) -> Tree:
    """Stack trees of the same form leaf by leaf."""
    out: Tree = pytree.tree_map(lambda *leaves: torch.stack(leaves), *trees)
    return out


def picked(tree: Tree, index: Any) -> Tree:
    """Take leaf[index] of every leaf."""
    out: Tree = pytree.tree_map(lambda leaf: leaf[index], tree)
    return out


def moved(tree: Tree, device: torch.device) -> Tree:
    """Bring every leaf to a device."""
    out: Tree = pytree.tree_map(lambda leaf: leaf.to(device), tree)
    return out
