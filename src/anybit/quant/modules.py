"""The modules of a prepared model: quantizers, layers that compute through them, keyed dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.quant.grid import BITS, FLOAT, Grid, GridName, Transform, Width, limits
from anybit.randomness import uniform

Kind = Literal["weights", "activations"]
RoundingKernel = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
"""(x, Δ, low, high) → (Q(x), ∂Q/∂x)."""
Draws = Callable[[Tensor, Tensor, int, Sequence[int]], Tensor]
"""(key, local step, number of the site, shape) → draws from U[0, 1)."""


@dataclass(frozen=True)
class Observer:
    """Statistic of the values at a site: fold(so far, x, rows, grid) over all calls, from `initial`."""

    initial: Tensor
    fold: Callable[[Tensor, Tensor, Tensor, Grid], Tensor]


class Quantizer(nn.Module):
    """One site. A step size of 0 stands for 32 bits: the tensor passes unchanged."""

    step: Tensor
    low: Tensor
    high: Tensor
    key: Tensor
    count: Tensor
    rows: Tensor
    observed: Tensor
    kernel: RoundingKernel | None = None
    """Replacement of the library's operations, for one client outside vmap."""
    uniform: Draws = staticmethod(uniform)

    def __init__(self, kind: Kind, number: int, grid: GridName, transform: Transform | None, own_bits: int | None = None,
                 kept: bool = False) -> None:
        """Make a site; own_bits: its bits whenever the model is quantized · kept: never quantized."""
        super().__init__()
        self.kind, self.number, self.grid, self.transform = kind, number, grid, None if kept else transform
        self.own_bits, self.kept = own_bits, kept
        self.fed_by: list[str] = []
        """Of a weight: the activation sites that it, or its parts in this order, is multiplied with."""
        self.observer: Observer | None = None
        self.shortcut: Callable[[Tensor], Tensor] | None = None
        """All of the site's work, where it is known before the forward pass (see single_client.py)."""
        for name in ("step", "low", "high", "observed"):
            self.register_buffer(name, torch.zeros(()), persistent=False)
        for name in ("key", "count"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("rows", torch.ones(1), persistent=False)

    def bits_at(self, width: Width) -> int:
        """Return the site's bits when the model has `width`; 32: not quantized."""
        bits = width.weights if self.kind == "weights" else width.activations
        return FLOAT if bits == FLOAT or self.kept else self.own_bits or bits

    def bits_in(self, width: Tensor) -> Tensor:
        """Return the same for a width in tensors, one per client under vmap; of a kept site, the bits for its observer."""
        bits = width[0 if self.kind == "weights" else 1]
        return bits if self.own_bits is None else torch.where(bits == FLOAT, bits, self.own_bits)

    def grid_at(self, width: Width, steps: Tensor) -> Grid:
        """Return the grid of a site that `width` quantizes; `steps`: its step sizes at all of BITS."""
        bits = self.bits_at(width)
        return Grid(steps[BITS.index(bits)], *limits(torch.tensor(bits), self.grid))

    def forward(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            return self.shortcut(x)
        if self.transform is None and self.observer is None:
            return x
        grid = Grid(torch.where(self.step > 0, self.step, 1.0), self.low, self.high)
        if self.observer is not None:
            self.observed = self.observer.fold(self.observed, x, self._rows_of(x), grid)
        if self.transform is None:
            return x
        y = self.transform(x, grid, partial(self.draw, x.shape))
        return torch.where(self.step > 0, y, x)

    def draw(self, shape: Sequence[int]) -> Tensor:
        """Draw from U[0, 1), anew at every local step."""
        return self.uniform(self.key, self.count, self.number, shape)

    def _rows_of(self, x: Tensor) -> Tensor:
        """Return the row mask of x, also when the model folded another dimension into the batch."""
        if self.kind == "weights" or x.shape[0] == self.rows.shape[0]:
            return self.rows if self.kind == "activations" else torch.ones(x.shape[0], device=x.device)
        return self.rows.repeat_interleave(x.shape[0] // self.rows.shape[0])


class KeyedDropout(nn.Module):
    """Dropout whose mask is a keyed draw: the same in every engine and after a resume."""

    key: Tensor
    count: Tensor
    uniform: Draws = staticmethod(uniform)

    def __init__(self, p: float, number: int, dims: int | None = None) -> None:
        """Make a dropout; dims: the first so many dimensions have draws of their own, none: all."""
        super().__init__()
        self.p, self.number, self.dims = p, number, dims
        for name in ("key", "count"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = x.shape if self.dims is None else (*x.shape[:self.dims], *[1] * (x.dim() - self.dims))
        keep = self.uniform(self.key, self.count, self.number, shape) >= self.p
        return x * keep / (1 - self.p)


class Quantized(nn.Module):
    """Mix-in in front of a layer class: input and weight pass through two quantizers."""

    weight: Tensor
    bias: Tensor | None
    weight_quantizer: Quantizer
    input_quantizer: Quantizer
    input_dropout: nn.Module
    kernel: Callable[[Tensor, Tensor, Tensor | None, int, int], Tensor] | None = None
    """x ∗ w + bias with stride and padding, in place of the library's convolution."""
    _apply_layer: Callable[[Tensor, Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        x = self.input_quantizer(self.input_dropout(x))
        return self._apply_layer(x, self.weight_quantizer(self.weight))


def _conv(self: Any, x: Tensor, weight: Tensor) -> Tensor:
    if self.kernel is None:
        return cast(Tensor, self._conv_forward(x, weight, self.bias))
    return cast(Tensor, self.kernel(x, weight, self.bias, self.stride[0], self.padding[0]))


def _transposed(functional: Callable[..., Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def layer(self: Any, x: Tensor, weight: Tensor) -> Tensor:
        return functional(x, weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation)
    return layer


LAYERS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.Linear: lambda self, x, weight: F.linear(x, weight, self.bias),
    nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv,
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d),
    nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
}
"""Layers whose weight and input are sites: class → its computation (layer, x, weight)."""


def _quantized(kind: type[nn.Module], apply: Callable[[Any, Tensor, Tensor], Tensor]) -> type[nn.Module]:
    return type(f"Quantized{kind.__name__}", (Quantized, kind), {"_apply_layer": apply})


_QUANTIZED = {kind: _quantized(kind, apply) for kind, apply in LAYERS.items()}


def quantized_layer(layer: Any) -> nn.Module:
    """Make a layer compute through the quantizers that it is given, in place: its settings, parameters and hooks stay."""
    kind = next(kind for kind in LAYERS if isinstance(layer, kind))
    own = _QUANTIZED[kind] if type(layer) is kind else _quantized(type(layer), LAYERS[kind])
    layer.__class__, layer.input_dropout = own, nn.Identity()
    return cast(nn.Module, layer)


def as_it_was(new: nn.Module, old: nn.Module) -> nn.Module:
    """Give `new` the mode, the hooks and the added attributes of `old`, which it replaces."""
    new.training = old.training
    for name, value in vars(old).items():
        if name not in vars(new) or "hooks" in name:
            setattr(new, name, value)
    return new


def put_in_place(model: nn.Module, instead: Callable[[nn.Module], nn.Module | None]) -> None:
    """Replace every module by instead(module), wherever it is used; none: leave it."""
    for parent in model.modules():  # which goes on into what was put in place
        for name, child in parent._modules.items():
            if child is not None and (new := instead(child)) is not None:
                parent._modules[name] = new
