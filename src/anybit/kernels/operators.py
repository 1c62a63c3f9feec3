"""Operators that compilers treat as one node, and that vmap runs with more clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_REGISTERED: list[Callable[..., Any]] = []


def operator(signature: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Register torch.ops.anybit.NAME for a function whose tensors all have the client as first dimension.

    `fake` gives outputs of the right shape and strides without computing. Under vmap the mapped dimension joins the clients.
    """
    name, arguments = signature.split("(", 1)
    torch.library.define(f"anybit::{name}", f"({arguments}")
    torch.library.impl(f"anybit::{name}", ("CUDA", "CPU"))(run)
    torch.library.register_fake(f"anybit::{name}")(fake)
    registered: Callable[..., Any] = getattr(torch.ops.anybit, name)

    def mapped(info: Any, in_dims: Any, *values: Any) -> tuple[Any, Any]:
        size = info.batch_size
        joined = [_joined(value, dim, size) if isinstance(value, Tensor) else value
                  for dim, value in zip(in_dims, values, strict=True)]
        out = registered(*joined)
        if isinstance(out, Tensor):
            return out.unflatten(0, (size, -1)), 0
        return tuple(o.unflatten(0, (size, -1)) for o in out), tuple(0 for _ in out)

    torch.library.register_vmap(f"anybit::{name}", mapped)
    _REGISTERED.append(registered)
    return registered


def announce() -> None:
    """Tell torch's compiler to call the operators as they are.

    It finds that out when it meets one, and before torch 2.13 it then spells out everything that led there, for a message
    that is not shown (pytorch/pytorch#185937): half of the time in which a step of ResNet-20 compiles.
    """
    if torch.__version__ >= "2.13":
        return
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    for name in _REGISTERED:
        called = name.default  # type: ignore[attr-defined]
        if called not in lowering.lowerings:
            lowering.make_fallback(called, lowering.tag_to_layout_constraint(get_layout_constraint_tag(called)))


def _joined(value: Tensor, dim: int | None, size: int) -> Tensor:
    value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return value.flatten(0, 1)


def channels_last(like: Tensor, clients: int, images: int, channels: int, rows: int, columns: int) -> Tensor:
    """Make an empty (client, image, channel, row, column) whose channels lie together."""
    return like.new_empty((clients, images, rows, columns, channels)).permute(0, 1, 4, 2, 3)


def laid_out(x: Tensor) -> Tensor:
    """Return x if its channels lie together, row after row; otherwise such a copy.

    Called outside of the operators too, so that a compiler fuses the copy with the computation of x.
    """
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
