"""A prepared model for one client at a time, outside vmap and compile: the numbers of `bind`, for a fraction of the cost.

Under vmap everything that a client's width decides is a tensor operation. One client alone has a width that the host
knows: a site at 32 bits does nothing, the others round in one differentiable operation, and parameters are put into the
modules directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anybit.quant.grid import BITS, FLOAT, limits, rounding
from anybit.quant.sites import KeyedDropout, Quantizer, quantizers

Shortcut = Callable[[Tensor], Tensor]


class Rounded(torch.autograd.Function):
    """Q(x) = Δ·clip(⌊x/Δ⌉, low, high) with ∂Q/∂x = 1 where nothing is clipped, else 0; Δ has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: float, high: float) -> Tensor:
        level = (x / step).round_()
        clipped = level.clamp(low, high)
        ctx.save_for_backward(level == clipped)
        return clipped.mul_(step)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None, None, None


def _unchanged(x: Tensor) -> Tensor:
    return x


class Alone:
    """A prepared model, private to whoever holds it: its parameters and buffers are overwritten at every call."""

    def __init__(self, prepared: nn.Module, channels_last: bool = False) -> None:
        self.model, self.channels_last = prepared, channels_last
        self.sites = {n: s for n, s in quantizers(prepared).items() if s.transform is not None or s.observer is not None}
        self._keyed = [m._buffers for m in prepared.modules() if isinstance(m, Quantizer | KeyedDropout)]
        self._slots = _slots(prepared)
        self._steps: Mapping[str, Tensor] | None = None
        self._shortcuts: dict[tuple[str, int], Shortcut | None] = {}

    def lay(self, x: Tensor) -> Tensor:
        """A tensor in the memory order that the convolutions want."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def __call__(self, parameters: Mapping[str, Tensor], steps: Mapping[str, Tensor], width: Tensor, inputs: Tensor, *,
                 rows: Tensor, key: Tensor, count: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(outputs, what the observers saw) at `width` = (weights, activations)."""
        for name, value in parameters.items():
            for owner, attribute in self._slots[name]:
                owner[attribute] = value
        for buffers in self._keyed:
            buffers["key"], buffers["count"] = key, count
        if self._steps is not steps:
            self._steps, self._shortcuts = steps, {}
        wanted: list[int] = width.tolist()
        for name, site in self.sites.items():
            self._bind(name, site, steps, wanted[0 if site.kind == "weights" else 1], rows)
        outputs = self.model(self.lay(inputs))
        watched = {name: site for name, site in self.sites.items() if site.observer is not None}
        seen = {name: site.observed for name, site in watched.items()}
        for site in watched.values():
            site.observed = site.observed.detach()
        return outputs, seen

    def _bind(self, name: str, site: Quantizer, steps: Mapping[str, Tensor], bits: int, rows: Tensor) -> None:
        if site.bits is not None and bits != FLOAT:
            bits = site.bits
        table = steps.get(name)
        if (name, bits) not in self._shortcuts:
            self._shortcuts[name, bits] = _shortcut(site, table, bits)
        site.shortcut = self._shortcuts[name, bits]
        if site.shortcut is not None:
            return
        if table is not None:
            site.step = torch.zeros_like(table[0]) if bits == FLOAT else table[bits - BITS[0]]
            site.low, site.high = limits(torch.tensor(bits, device=rows.device), site.grid)
        if site.observer is not None:
            site.rows, site.observed = rows, site.observer.initial.to(rows.device)


def _shortcut(site: Quantizer, table: Tensor | None, bits: int) -> Shortcut | None:
    """What the site does at these bits, where the host can say it without looking at every batch."""
    if site.observer is not None:
        return None
    if table is None or bits == FLOAT:
        return _unchanged
    step = table[bits - BITS[0]]
    if site.transform is not rounding or step.requires_grad or not bool((step > 0).all()):
        return None
    low, high = limits(torch.tensor(bits), site.grid)
    return partial(_rounded, step=step, low=float(low), high=float(high))


def _rounded(x: Tensor, step: Tensor, low: float, high: float) -> Tensor:
    out: Tensor = Rounded.apply(x, step, low, high)  # type: ignore[no-untyped-call]
    return out


def _slots(model: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Where each parameter sits: {name: [(the dict of a module, its key there)]}; tied parameters have several places."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            places.setdefault(id(parameter), []).append((module._parameters, attribute))
    return {name: places[id(parameter)] for name, parameter in model.named_parameters()}
