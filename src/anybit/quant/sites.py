"""Sites: the tensors of a model that are quantized, on any `nn.Module` with convolutions and linear layers.

`prepare(model)` returns a deep copy in which every conv and linear layer quantizes its weight and its input. Steps,
limits and noise keys are buffers of that copy, substituted per client through `torch.func.functional_call`: no hooks
and no globals, so vmap, compile and export see everything, and the user's object is untouched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anybit.errors import ModelError, did_you_mean
from anybit.quant.grid import FLOAT, Grid, GridName, Transform, limits, select
from anybit.randomness import uniform

Kind = Literal["weights", "activations"]
RoundingKernel = Callable[[Tensor, Tensor, float, float], tuple[Tensor, Tensor]]
"""(x, Δ, low, high) → (Q(x), ∂Q/∂x)."""
Draws = Callable[[Tensor, Tensor, int, Sequence[int]], Tensor]
"""(key, local step, number of the site, shape) → U[0, 1)."""


@dataclass(frozen=True)
class SiteOptions:
    """Which tensors are sites, and on which grid. The defaults are the paper's."""

    weight_grid: GridName = "full"
    activation_grid: GridName = "full"
    per_channel: bool = False
    """One step per output channel of a weight, instead of one per tensor."""
    first_last_bits: int | None = None
    """Bit-width of the first and last layer whenever the others are quantized; none: the same as the others."""
    quantize_image: bool = True
    """Whether the model's own input is an activation site."""
    full_precision: tuple[str, ...] = ()
    """Names of layers (or of stray parameters) that stay in full precision."""


@dataclass(frozen=True)
class Observer:
    """A statistic of what passes a site: folded over calls as fold(so far, x, rows, grid), from `initial`."""

    initial: Tensor
    fold: Callable[[Tensor, Tensor, Tensor, Grid], Tensor]


class Quantizer(nn.Module):
    """One site. A step of 0 means 32 bits: the tensor passes unchanged."""

    step: Tensor
    low: Tensor
    high: Tensor
    key: Tensor
    count: Tensor
    rows: Tensor
    observed: Tensor
    kernel: RoundingKernel | None = None
    """In place of the library's operations, for a client alone."""
    uniform: Draws = staticmethod(uniform)

    def __init__(self, kind: Kind, number: int, grid: GridName, transform: Transform | None) -> None:
        super().__init__()
        self.kind, self.number, self.grid, self.transform = kind, number, grid, transform
        self.bits: int | None = None
        self.observer: Observer | None = None
        self.shortcut: Callable[[Tensor], Tensor] | None = None
        """What the site does to a tensor, where that is known before the tensor is seen (see quant/alone.py)."""
        for name in ("step", "low", "high", "observed"):
            self.register_buffer(name, torch.zeros(()), persistent=False)
        for name in ("key", "count"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("rows", torch.ones(1), persistent=False)

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
        """U[0, 1), fresh at every local step."""
        return self.uniform(self.key, self.count, self.number, shape)

    def _rows_of(self, x: Tensor) -> Tensor:
        """The row mask in x's first dimension, also when the model folded another dimension into the batch."""
        if self.kind == "weights" or x.shape[0] == self.rows.shape[0]:
            return self.rows if self.kind == "activations" else torch.ones(x.shape[0], device=x.device)
        return self.rows.repeat_interleave(x.shape[0] // self.rows.shape[0])


class KeyedDropout(nn.Module):
    """Dropout whose mask is a keyed draw: the same in every engine and after a resume."""

    key: Tensor
    count: Tensor
    uniform: Draws = staticmethod(uniform)

    def __init__(self, p: float, number: int, channels: bool = False) -> None:
        super().__init__()
        self.p, self.number, self.channels = p, number, channels
        for name in ("key", "count"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        keep = self.uniform(self.key, self.count, self.number, shape) >= self.p
        return x * keep / (1 - self.p)


class _Quantized(nn.Module):
    """Mixed in front of a layer class: the layer sees its input and its weight through two quantizers."""

    weight: Tensor
    bias: Tensor | None
    weight_quantizer: Quantizer
    input_quantizer: Quantizer
    input_dropout: nn.Module
    kernel: Callable[[Tensor, Tensor, Tensor | None, int, int], Tensor] | None = None
    """x ∗ w + bias with stride and padding, in place of the library's convolution."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.input_quantizer(self.input_dropout(x))
        return self._apply_layer(x, self.weight_quantizer(self.weight))

    def _apply_layer(self, x: Tensor, weight: Tensor) -> Tensor:
        raise NotImplementedError


def _conv(self: Any, x: Tensor, weight: Tensor) -> Tensor:
    if self.kernel is None:
        return cast(Tensor, self._conv_forward(x, weight, self.bias))
    return cast(Tensor, self.kernel(x, weight, self.bias, self.stride[0], self.padding[0]))


def _transposed(functional: Callable[..., Tensor]) -> Callable[[Any, Tensor, Tensor], Tensor]:
    def layer(self: Any, x: Tensor, weight: Tensor) -> Tensor:
        return functional(x, weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
                          self.dilation)
    return layer


_LAYERS: dict[type[nn.Module], Callable[[Any, Tensor, Tensor], Tensor]] = {
    nn.Linear: lambda self, x, weight: F.linear(x, weight, self.bias),
    nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv,
    nn.ConvTranspose1d: _transposed(F.conv_transpose1d),
    nn.ConvTranspose2d: _transposed(F.conv_transpose2d),
    nn.ConvTranspose3d: _transposed(F.conv_transpose3d),
}
_QUANTIZED = {kind: type(f"Quantized{kind.__name__}", (_Quantized, kind), {"_apply_layer": apply})
              for kind, apply in _LAYERS.items()}
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_UNKEYED = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def prepare(model: nn.Module, weights: Transform | None = None, activations: Transform | None = None,
            options: SiteOptions = SiteOptions(), last_dropout: float = 0.0) -> nn.Module:
    """A copy of `model` whose conv and linear layers pass weights and inputs through the given transforms.

    Names of parameters and layers stay as they are. `last_dropout` drops inputs of the last layer while training.
    """
    model = copy.deepcopy(model)
    layers = _checked_layers(model, options)
    for number, layer in enumerate(layers.values()):
        edge = number in (0, len(layers) - 1)
        layer.weight_quantizer = Quantizer("weights", 2 * number, options.weight_grid, weights)
        image = number == 0 and not options.quantize_image
        layer.input_quantizer = Quantizer("activations", 2 * number + 1, options.activation_grid,
                                          None if image else activations)
        layer.weight_quantizer.bits = layer.input_quantizer.bits = options.first_last_bits if edge else None
        last = number == len(layers) - 1
        layer.input_dropout = KeyedDropout(last_dropout, 2 * len(layers)) if last and last_dropout else nn.Identity()
        layer.__class__ = _QUANTIZED[type(layer)]
    _key_dropouts(model, first_number=2 * len(layers) + 1)
    return model.to(next(model.parameters()).device)


def _key_dropouts(model: nn.Module, first_number: int) -> None:
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()
             if isinstance(child, _DROPOUTS)]
    for number, (parent, name, child) in enumerate(found, first_number):
        keyed = KeyedDropout(child.p, number, channels=type(child) is not nn.Dropout)
        setattr(parent, name, keyed.train(child.training))


def _checked_layers(model: nn.Module, options: SiteOptions) -> dict[str, Any]:
    """The layers to quantize, in the order of `named_modules`; tied modules count once. Raises on what cannot work."""
    modules = dict(model.named_modules())
    parameters = dict(model.named_parameters())
    for name in options.full_precision:
        if name not in modules and name not in parameters:
            raise ModelError(f"full_precision names '{name}', which the model does not have: "
                             + did_you_mean(name, [n for n in (*modules, *parameters) if n]))
    layers, owned = {}, set(options.full_precision)
    for name, module in modules.items():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise ModelError(f"layer '{name}' is {type(module).__name__} in training, whose running statistics do not "
                             "federate: use anybit.replace_batchnorm(model, groups=2), or freeze it with .eval()")
        if isinstance(module, _UNKEYED) and module.training:
            raise ModelError(f"layer '{name}' ({type(module).__name__}) draws its own random numbers, which no resume "
                             "can repeat: use nn.Dropout")
        kind = next((k for k in _LAYERS if isinstance(module, k)), None)
        if kind is None or name in options.full_precision:
            owned |= {f"{name}.{p}" for p, _ in module.named_parameters(recurse=False)
                      if name in options.full_precision or isinstance(module, nn.Embedding | nn.EmbeddingBag)}
            continue
        if type(module) is not kind:
            raise ModelError(f"layer '{name}' is a {type(module).__name__}, a {kind.__name__} with its own code: use "
                             f"nn.{kind.__name__}, or name it in full_precision")
        if not name:
            raise ModelError(f"the model is a single {kind.__name__}: wrap it, as in nn.Sequential(layer)")
        layers[name] = module
        owned |= {f"{name}.weight", f"{name}.bias"}
    if not layers:
        raise ModelError("the model has no conv or linear layer to quantize")
    for name, parameter in parameters.items():
        if parameter.dim() > 1 and name not in owned:
            raise ModelError(f"parameter '{name}' {tuple(parameter.shape)} belongs to no conv or linear layer and would "
                             "stay in full precision: name it in full_precision if that is meant")
    return layers


def quantizers(model: nn.Module, kind: Kind | None = None) -> dict[str, Quantizer]:
    """The sites of a prepared model by name, e.g. 'conv1.weight_quantizer'."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Quantizer) and kind in (None, m.kind)}


def weight_sites(model: nn.Module) -> dict[str, str]:
    """{weight site: name of the parameter it quantizes}."""
    return {name: name.removesuffix("_quantizer") for name in quantizers(model, "weights")}


def step_shapes(model: nn.Module, options: SiteOptions, kind: Kind | None = None) -> dict[str, tuple[int, ...]]:
    """The shape of one step of every site (or of those of a kind): () per tensor, (C, 1, …) per channel."""
    prepared, parameters = prepare(model, options=options), dict(model.named_parameters())
    channel = {site: (parameters[name].shape[0], *[1] * (parameters[name].dim() - 1))
               for site, name in weight_sites(prepared).items() if options.per_channel}
    return {site: channel.get(site, ()) for site in quantizers(prepared, kind)}


def bind(model: nn.Module, steps: Mapping[str, Tensor], width: Tensor, *, rows: Tensor, key: Tensor,
         count: Tensor) -> dict[str, Tensor]:
    """The buffers of a prepared model for one client: its steps and limits at `width` = (weights, activations).

    Pure tensor operations, so that every client of a vmapped cohort has its own width, rows and key.
    """
    buffers: dict[str, Tensor] = {}
    for name, site in quantizers(model).items():
        if site.transform is not None or site.observer is not None:
            if name in steps:
                bits = width[0 if site.kind == "weights" else 1]
                if site.bits is not None:
                    bits = torch.where(bits == FLOAT, bits, site.bits)
                buffers[f"{name}.step"] = select(steps[name], bits)
                buffers[f"{name}.low"], buffers[f"{name}.high"] = limits(bits, site.grid)
            buffers[f"{name}.key"], buffers[f"{name}.count"] = key, count
        if site.observer is not None:
            buffers[f"{name}.rows"] = rows
            buffers[f"{name}.observed"] = site.observer.initial.to(rows.device)
    for name in _dropouts(model):
        buffers[f"{name}.key"], buffers[f"{name}.count"] = key, count
    return buffers


def _dropouts(model: nn.Module) -> Iterator[str]:
    return (name for name, m in model.named_modules() if isinstance(m, KeyedDropout))


def observed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the observers saw, by site: `functional_call` leaves the final buffers in the dict it was given."""
    return {name.removesuffix(".observed"): value for name, value in tensors.items() if name.endswith(".observed")}


def replace_batchnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """A copy of `model` with GroupNorm(groups) in place of every BatchNorm, as the paper does with ResNet-20."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                if child.num_features % groups:
                    raise ModelError(f"layer '{name}' has {child.num_features} channels, not divisible by {groups} groups")
                setattr(parent, name, nn.GroupNorm(groups, child.num_features))
    return model
