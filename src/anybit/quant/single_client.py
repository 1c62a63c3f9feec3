"""A prepared model for one client at a time, outside vmap and compile: the numbers of `bind`, for a fraction of the cost.

Under vmap everything that a client's width decides is a tensor operation. One client alone has a width that the host
knows: a site at 32 bits does nothing, the others round or add noise without looking at their bits, all weights are
rounded in one differentiable operation, and parameters are put into the modules directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anybit.quant.grid import BITS, FLOAT, Grid, Width, ends, limits, pseudo_noise, rounding
from anybit.quant.modules import KeyedDropout, Quantizer, RoundingKernel
from anybit.quant.sites import quantizers, weight_sites
from anybit.tensors import Tensors

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
    """Round every tensor to its grid, in one operation: for small ones the call costs more than what it computes."""
    out: tuple[Tensor, ...] = Rounded.apply(grids, *tensors)  # type: ignore[no-untyped-call]
    return out


def _unchanged(x: Tensor) -> Tensor:
    return x


class SingleClientModel:
    """A prepared model, private to whoever holds it: its parameters and buffers are overwritten at every call."""

    def __init__(self, prepared: nn.Module, channels_last: bool = False) -> None:
        self.model, self.channels_last = prepared, channels_last
        self.sites = {n: s for n, s in quantizers(prepared).items() if s.transform is not None or s.observer is not None}
        self.parameter_of = weight_sites(prepared)
        self.keyed = [m._buffers for m in prepared.modules() if isinstance(m, Quantizer | KeyedDropout)]
        self.slots = _slots(prepared)
        self.laid_out_for: ModelAtWidth | None = None

    def lay(self, x: Tensor) -> Tensor:
        """Lay a tensor out in the memory order that the convolutions want."""
        return x.contiguous(memory_format=torch.channels_last) if self.channels_last and x.dim() == 4 else x

    def at(self, width: Width, step_sizes: Tensors, learned: Collection[str] = ()) -> ModelAtWidth:
        """Plan everything that a width decides, once for all batches; step sizes of `learned` sites come with the call."""
        return ModelAtWidth(self, width, {name: _shortcut(site, step_sizes.get(name), site.bits_at(width), name in learned)
                                          for name, site in self.sites.items()})


class ModelAtWidth:
    """The model of one client, whose width the host knows."""

    def __init__(self, holder: SingleClientModel, width: Width, shortcuts: Mapping[str, Shortcut | None]) -> None:
        self.holder, self.width = holder, width
        self.grids = {name: s for name, s in shortcuts.items() if isinstance(s, HostGrid) and name in holder.parameter_of}
        """Of the weights that are rounded together, before the layers ask for them."""
        self.rounded: dict[str, Tensor] = {}
        self.shortcuts = {**shortcuts, **{name: partial(self._already_rounded, name) for name in self.grids}}
        self.looking = {name: site for name, site in holder.sites.items() if self.shortcuts[name] is None}
        """The sites that look at every batch."""

    def __call__(self, parameters: Tensors, step_sizes: Tensors, inputs: Tensor, *, rows: Tensor, key: Tensor,
                 count: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (outputs, what the observers saw)."""
        self._lay_out()
        for name, value in parameters.items():
            for owner, attribute in self.holder.slots[name]:
                owner[attribute] = value
        for buffers in self.holder.keyed:
            buffers["key"], buffers["count"] = key, count
        for name, site in self.looking.items():
            _fill(site, step_sizes.get(name), site.bits_at(self.width), rows)
        if self.grids:
            weights = [parameters[self.holder.parameter_of[name]] for name in self.grids]
            self.rounded = dict(zip(self.grids, rounded(list(self.grids.values()), weights), strict=True))
        outputs = self.holder.model(self.holder.lay(inputs))
        watched = {name: site for name, site in self.looking.items() if site.observer is not None}
        seen = {name: site.observed for name, site in watched.items()}
        for site in watched.values():
            site.observed = site.observed.detach()
        return outputs, seen

    def _lay_out(self) -> None:
        """Tell the sites what they do at this width, unless they did so in the call before."""
        if self.holder.laid_out_for is not self:
            self.holder.laid_out_for = self
            for name, site in self.holder.sites.items():
                site.shortcut = self.shortcuts[name]

    def _already_rounded(self, name: str, weight: Tensor) -> Tensor:
        return self.rounded[name]


def _shortcut(site: Quantizer, steps: Tensor | None, bits: int, learned: bool) -> Shortcut | None:
    """Say what the site does at these bits; none where it must look at every batch."""
    if site.observer is not None:
        return None
    if steps is None or bits == FLOAT:
        return _unchanged
    step, (low, high) = steps[BITS.index(bits)], ends(bits, site.grid)
    if learned or site.transform not in (rounding, pseudo_noise) or not bool((step > 0).all()):
        return None
    if site.transform is pseudo_noise:
        return partial(_noisy, site, step)
    return HostGrid(step, float(low), float(high), site.kernel or on_grid)


def _noisy(site: Quantizer, step: Tensor, x: Tensor) -> Tensor:
    return pseudo_noise(x, Grid(step, site.low, site.high), partial(site.draw, x.shape))


def _fill(site: Quantizer, steps: Tensor | None, bits: int, rows: Tensor) -> None:
    """Fill the buffers of a site that looks at every batch."""
    if steps is not None:
        site.step = torch.zeros_like(steps[0]) if bits == FLOAT else steps[BITS.index(bits)]
        site.low, site.high = limits(torch.tensor(bits, device=rows.device), site.grid)
    if site.observer is not None:
        site.rows, site.observed = rows, site.observer.initial.to(rows.device)


def _slots(model: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """List where each parameter sits: {name: [(the dict of a module, its key there)]}; tied ones have several places."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for module in model.modules():
        for attribute, parameter in module._parameters.items():
            places.setdefault(id(parameter), []).append((module._parameters, attribute))
    return {name: places[id(parameter)] for name, parameter in model.named_parameters()}
