"""A prepared model for one client outside vmap and compile: the numbers of `bind`, for a fraction of the cost.

Under vmap everything that depends on a client's width is a tensor operation. Here the host knows the width: a site at
32 bits does nothing, the others round or add noise without reading their bits, all weights are rounded in one
differentiable operation, and parameters are put into the modules directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anybit.inputs import Inputs, called, mapped
from anybit.quant.grid import BITS, FLOAT, Grid, Width, ends, limits, pseudo_noise, rounding
from anybit.quant.modules import KeyedDropout, Quantizer, RoundingKernel
from anybit.quant.sites import quantizers, weight_sites
from anybit.tensors import Tensors

Shortcut = Callable[[Tensor], Tensor]


def on_grid(x: Tensor, step: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """Return (Q(x), ∂Q/∂x): Δ·clip(⌊x/Δ − o⌉ + o, low, high), o = 0 or ½, and 1 where nothing is clipped, else 0.

    Both in x's type: the library handles bools one value at a time.
    """
    offset = low - math.floor(low)
    level = (x / step).sub_(offset).round_().add_(offset) if offset else (x / step).round_()
    clipped = level.clamp(low, high)
    inside = level.eq_(clipped)
    return clipped.mul_(step), inside


@dataclass(frozen=True)
class HostGrid:
    """A grid whose limits the host knows, and the kernel that rounds to it."""

    step: Tensor
    low: float
    high: float
    kernel: RoundingKernel

    def __call__(self, x: Tensor) -> Tensor:
        return rounded([self], [x])[0]


class Rounded(torch.autograd.Function):
    """Q(x) of several x, each on its grid; step sizes have no gradient."""

    @staticmethod
    def forward(ctx: Any, grids: Sequence[HostGrid], *tensors: Tensor) -> tuple[Tensor, ...]:
        pairs = [g.kernel(x, g.step, g.low, g.high) for g, x in zip(grids, tensors, strict=True)]
        ctx.save_for_backward(*[inside for _, inside in pairs])
        return tuple([y for y, _ in pairs])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *[g * inside for g, inside in zip(gradients, ctx.saved_tensors, strict=True)]


def rounded(grids: Sequence[HostGrid], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Round every tensor to its grid in one operation: for small tensors a call costs more than its computation."""
    out: tuple[Tensor, ...] = Rounded.apply(grids, *tensors)  # type: ignore[no-untyped-call]
    return out


class SingleClientModel:
    """A prepared model whose parameters and buffers are overwritten at every call: it must not be shared."""

    def __init__(self, prepared: nn.Module, channels_last: bool = False) -> None:
        self.model, self.channels_last = prepared, channels_last
        self.sites = {n: s for n, s in quantizers(prepared).items() if s.transform is not None or s.observer is not None}
        self.parameter_of = weight_sites(prepared)
        self.keyed = [m._buffers for m in prepared.modules() if isinstance(m, Quantizer | KeyedDropout)]
        self.slots = _slots(prepared)
        self.laid_out_for: ModelAtWidth | None = None

    def lay(self, x: Tensor) -> Tensor:
        """Return x in the memory order that suits the convolutions."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def parameter(self, name: str, trained: Tensors) -> Tensor:
        """Return a parameter: a trained one, or the model's own, which is frozen."""
        if name in trained:
            return trained[name]
        owner, attribute = self.slots[name][0]
        frozen: Tensor = owner[attribute]
        return frozen

    def at(self, width: Width, step_sizes: Tensors, learned: Collection[str] = ()) -> ModelAtWidth:
        """Plan a width once for all batches; step sizes of `learned` sites come with the call."""
        return ModelAtWidth(self, width, {name: _shortcut(site, step_sizes.get(name), site.bits_at(width), name in learned)
                                          for name, site in self.sites.items()})


class ModelAtWidth:
    """The model at one width, which the host knows."""

    def __init__(self, holder: SingleClientModel, width: Width, shortcuts: Mapping[str, Shortcut | None]) -> None:
        self.holder, self.width = holder, width
        self.grids = {name: s for name, s in shortcuts.items() if isinstance(s, HostGrid) and name in holder.parameter_of}
        """Grids of the weights, which are rounded together before the forward pass."""
        self.rounded: dict[str, Tensor] = {}
        self.shortcuts = {**shortcuts, **{name: partial(self._rounded_weight, name) for name in self.grids}}
        self.general = {name: site for name, site in holder.sites.items() if self.shortcuts[name] is None}
        """Sites without a shortcut, whose buffers are filled at every call."""

    def __call__(self, parameters: Tensors, step_sizes: Tensors, inputs: Inputs, *, rows: Tensor, key: Tensor,
                 count: Tensor) -> tuple[Any, dict[str, Tensor]]:
        """Return (what the model returns, statistics of the observers)."""
        if self.holder.laid_out_for is not self:
            self.holder.laid_out_for = self
            for name, site in self.holder.sites.items():
                site.shortcut = self.shortcuts[name]
        for name, value in parameters.items():
            for owner, attribute in self.holder.slots[name]:
                owner[attribute] = value
        for buffers in self.holder.keyed:
            buffers["key"], buffers["count"] = key, count
        for name, site in self.general.items():
            _fill(site, step_sizes.get(name), site.bits_at(self.width), rows)
        if self.grids:
            weights = [self.holder.parameter(self.holder.parameter_of[name], parameters) for name in self.grids]
            self.rounded = dict(zip(self.grids, rounded(list(self.grids.values()), weights), strict=True))
        outputs = called(self.holder.model, mapped(inputs, self.holder.lay))
        watched = {name: site for name, site in self.general.items() if site.observer is not None}
        seen = {name: site.observed for name, site in watched.items()}
        for site in watched.values():
            site.observed = site.observed.detach()
        return outputs, seen

    def _rounded_weight(self, name: str, weight: Tensor) -> Tensor:
        return self.rounded[name]


def _shortcut(site: Quantizer, steps: Tensor | None, bits: int, learned: bool) -> Shortcut | None:
    """Return the work of a site at these bits as a function of x; none where it depends on the batch."""
    if site.observer is not None:
        return None
    if steps is None or bits == FLOAT:
        return lambda x: x
    step, (low, high) = steps[BITS.index(bits)], ends(bits, site.grid)
    if learned or site.transform not in (rounding, pseudo_noise) or not bool((step > 0).all()):
        return None
    if site.transform is pseudo_noise:
        return lambda x: pseudo_noise(x, Grid(step, site.low, site.high), partial(site.draw, x.shape))
    return HostGrid(step, low, high, site.kernel or on_grid)


def _fill(site: Quantizer, steps: Tensor | None, bits: int, rows: Tensor) -> None:
    if steps is not None:
        site.step = torch.zeros_like(steps[0]) if bits == FLOAT else steps[BITS.index(bits)]
        site.low, site.high = limits(torch.tensor(bits, device=rows.device), site.grid)
    if site.observer is not None:
        site.rows, site.observed = rows, site.observer.initial.to(rows.device)


def _slots(model: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """Return {name of a parameter: [(dict of a module that holds it, its key there)]}; tied parameters have several."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            places.setdefault(id(parameter), []).append((module._parameters, attribute))
    return {name: places[id(parameter)] for name, parameter in model.named_parameters()}
