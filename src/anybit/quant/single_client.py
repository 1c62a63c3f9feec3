"""A prepared model for one client at a time, outside vmap and compile: the numbers of `bind`, for a fraction of the cost.

Under vmap everything that a client's width decides is a tensor operation. One client alone has a width that the host
knows: a site at 32 bits does nothing, the others round or add noise without looking at their bits, all weights are
rounded in one differentiable operation, and parameters are put into the modules directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anybit.quant.grid import BITS, FLOAT, Grid, Width, limits, pseudo_noise, rounding
from anybit.quant.sites import KeyedDropout, Quantizer, RoundingKernel, quantizers, weight_sites

Shortcut = Callable[[Tensor], Tensor]


def on_grid(x: Tensor, step: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """(Q(x), ∂Q/∂x): Δ·clip(⌊x/Δ⌉, low, high), and 1 where nothing is clipped, else 0.

    In x's type: the library compares to bools, and multiplies with them, one value at a time.
    """
    level = (x / step).round_()
    clipped = level.clamp(low, high)
    inside = level.eq_(clipped)
    return clipped.mul_(step), inside


@dataclass(frozen=True)
class HostGrid:
    """A grid whose limits the host knows, and what rounds to it."""

    step: Tensor
    low: float
    high: float
    kernel: RoundingKernel

    def __call__(self, x: Tensor) -> Tensor:
        return rounded([self], [x])[0]


class Rounded(torch.autograd.Function):
    """Q(x) of every x on its own grid; steps have no gradient."""

    @staticmethod
    def forward(ctx: Any, grids: Sequence[HostGrid], *tensors: Tensor) -> tuple[Tensor, ...]:
        pairs = [g.kernel(x, g.step, g.low, g.high) for g, x in zip(grids, tensors, strict=True)]
        ctx.save_for_backward(*[inside for _, inside in pairs])
        return tuple([y for y, _ in pairs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *[g * inside for g, inside in zip(gradients, ctx.saved_tensors, strict=True)]


def rounded(grids: Sequence[HostGrid], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Every tensor on its grid, in one operation: for small ones the call costs more than what it computes."""
    out: tuple[Tensor, ...] = Rounded.apply(grids, *tensors)  # type: ignore[no-untyped-call]
    return out


def _unchanged(x: Tensor) -> Tensor:
    return x


class Plan(NamedTuple):
    """What the sites do at one width, where the host can say it without looking at every batch."""

    shortcuts: dict[str, Shortcut | None]
    weights: dict[str, HostGrid]
    """The sites whose weights are rounded together, before the layers ask for them."""


class Alone:
    """A prepared model, private to whoever holds it: its parameters and buffers are overwritten at every call."""

    def __init__(self, prepared: nn.Module, channels_last: bool = False) -> None:
        self.model, self.channels_last = prepared, channels_last
        self.sites = {n: s for n, s in quantizers(prepared).items() if s.transform is not None or s.observer is not None}
        self._keyed = [m._buffers for m in prepared.modules() if isinstance(m, Quantizer | KeyedDropout)]
        self._slots, self._parameter_of = _slots(prepared), weight_sites(prepared)
        self._steps: Mapping[str, Tensor] | None = None
        self._plans: dict[Width, Plan] = {}
        self._plan: Plan | None = None
        self._rounded: dict[str, Tensor] = {}

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
        self._bind(parameters, steps, Width(*width.tolist()), rows)
        outputs = self.model(self.lay(inputs))
        watched = {name: site for name, site in self.sites.items() if site.observer is not None}
        seen = {name: site.observed for name, site in watched.items()}
        for site in watched.values():
            site.observed = site.observed.detach()
        return outputs, seen

    def _bind(self, parameters: Mapping[str, Tensor], steps: Mapping[str, Tensor], width: Width, rows: Tensor) -> None:
        if self._steps is not steps:
            self._steps, self._plans = steps, {}
        if width not in self._plans:
            self._plans[width] = self._planned(steps, width)
        if self._plan is not self._plans[width]:
            self._plan = self._plans[width]
            for name, site in self.sites.items():
                site.shortcut = self._plan.shortcuts[name]
        shortcuts, weights = self._plan
        for name, shortcut in shortcuts.items():
            if shortcut is None:
                _fill(self.sites[name], steps.get(name), _bits(self.sites[name], width), rows)
        if weights:
            together = rounded(list(weights.values()), [parameters[self._parameter_of[name]] for name in weights])
            self._rounded = dict(zip(weights, together, strict=True))

    def _planned(self, steps: Mapping[str, Tensor], width: Width) -> Plan:
        shortcuts = {name: _shortcut(site, steps.get(name), _bits(site, width)) for name, site in self.sites.items()}
        weights = {name: s for name, s in shortcuts.items() if isinstance(s, HostGrid) and name in self._parameter_of}
        return Plan({**shortcuts, **{name: partial(self._given, name) for name in weights}}, weights)

    def _given(self, name: str, weight: Tensor) -> Tensor:
        return self._rounded[name]


def _bits(site: Quantizer, width: Width) -> int:
    """Of a site, when the model has this width."""
    bits = width.weights if site.kind == "weights" else width.activations
    return bits if site.bits is None or bits == FLOAT else site.bits


def _shortcut(site: Quantizer, table: Tensor | None, bits: int) -> Shortcut | None:
    """What the site does at these bits, where the host can say it without looking at every batch."""
    if site.observer is not None:
        return None
    if table is None or bits == FLOAT:
        return _unchanged
    step = table[bits - BITS[0]]
    if site.transform not in (rounding, pseudo_noise) or step.requires_grad or not bool((step > 0).all()):
        return None
    low, high = limits(torch.tensor(bits), site.grid)
    if site.transform is pseudo_noise:
        return partial(_noisy, site, Grid(step, low, high))
    return HostGrid(step, float(low), float(high), site.kernel or on_grid)


def _noisy(site: Quantizer, grid: Grid, x: Tensor) -> Tensor:
    return pseudo_noise(x, grid, partial(site.draw, x.shape))


def _fill(site: Quantizer, table: Tensor | None, bits: int, rows: Tensor) -> None:
    """The buffers of a site that looks at every batch."""
    if table is not None:
        site.step = torch.zeros_like(table[0]) if bits == FLOAT else table[bits - BITS[0]]
        site.low, site.high = limits(torch.tensor(bits, device=rows.device), site.grid)
    if site.observer is not None:
        site.rows, site.observed = rows, site.observer.initial.to(rows.device)


def _slots(model: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Where each parameter sits: {name: [(the dict of a module, its key there)]}; tied parameters have several places."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            places.setdefault(id(parameter), []).append((module._parameters, attribute))
    return {name: places[id(parameter)] for name, parameter in model.named_parameters()}
