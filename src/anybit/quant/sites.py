"""Sites: the tensors that are quantized in an `nn.Module` with convolutions and linear layers.

`prepare(model)` returns a deep copy in which every conv and linear layer quantizes its weight and its input. Step sizes,
limits and noise keys are buffers of that copy, substituted per client through `torch.func.functional_call`: without
hooks and globals, vmap, compile and export see everything.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from anybit.errors import ModelError, did_you_mean
from anybit.quant.grid import GridName, Transform, limits, select
from anybit.quant.modules import LAYERS, KeyedDropout, Kind, Quantizer, put_in_place, quantized_layer


@dataclass(frozen=True)
class SiteOptions:
    """Choice of the sites and their grids. The defaults are the paper's."""

    weight_grid: GridName | None = None
    """Grid of the weights; none: the variant's choice, the paper's full grid but for carousel."""
    activation_grid: Literal[GridName, "auto"] | None = None
    """Grid of the activations. auto: unsigned where they are never negative, full elsewhere; none: the variant's choice."""
    one_sided: tuple[str, ...] | None = None
    """Layers whose inputs are never negative, for auto; none: seen on training images at the start, and then kept."""
    per_channel: bool = False
    """One step size per output channel of a weight, instead of one per tensor."""
    first_last_bits: int | None = None
    """Bit-width of the first and last layer whenever the others are quantized; none: that of the others."""
    quantize_image: bool | None = None
    """The model's own input is an activation site; none: the variant's choice, true but for carousel."""
    full_precision: tuple[str, ...] = ()
    """Names of layers (or of stray parameters) that stay in full precision."""

    def grid_of_input(self, layer: str) -> GridName:
        """Return the grid of a layer's input."""
        if self.activation_grid == "auto":
            return "unsigned" if layer in (self.one_sided or ()) else "full"
        return self.activation_grid or "full"


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_UNKEYED = (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def prepare(model: nn.Module, weights: Transform | None = None, activations: Transform | None = None,
            options: SiteOptions = SiteOptions(), last_dropout: float = 0.0) -> nn.Module:
    """Copy `model`, names included, with layers that transform weights and inputs; last_dropout: before the last layer."""
    model = copy.deepcopy(model)
    layers = _checked_layers(model, options)
    last, instead = len(layers) - 1, dict[nn.Module, nn.Module]()
    for number, (name, layer) in enumerate(layers.items()):
        own_bits = options.first_last_bits if number in (0, last) else None
        weight = Quantizer("weights", 2 * number, options.weight_grid or "full", weights, own_bits)
        activation = Quantizer("activations", 2 * number + 1, options.grid_of_input(name), activations, own_bits,
                               kept=number == 0 and options.quantize_image is False)
        dropout = KeyedDropout(last_dropout, 2 * len(layers)) if number == last and last_dropout else nn.Identity()
        instead[layer] = quantized_layer(layer, weight, activation, dropout)
    put_in_place(model, instead.get)
    numbers = itertools.count(2 * len(layers) + 1)
    put_in_place(model, lambda module: _keyed(module, numbers) if isinstance(module, _DROPOUTS) else None)
    return model.to(next(model.parameters()).device)


def _keyed(dropout: Any, numbers: Iterator[int]) -> nn.Module:
    return KeyedDropout(dropout.p, next(numbers), channels=type(dropout) is not nn.Dropout).train(dropout.training)


def _checked_layers(model: nn.Module, options: SiteOptions) -> dict[str, Any]:
    """Return the layers to quantize in the order of `named_modules`, tied ones once; raise on a model that cannot work."""
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
        kind = next((k for k in LAYERS if isinstance(module, k)), None)
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
                             "stay in full precision: name it in full_precision if this is intended")
    return layers


def quantizers(model: nn.Module, kind: Kind | None = None) -> dict[str, Quantizer]:
    """Return the sites of a prepared model (or those of a kind) by name, e.g. 'conv1.weight_quantizer'."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Quantizer) and kind in (None, m.kind)}


def weight_sites(model: nn.Module) -> dict[str, str]:
    """Return {weight site: name of the parameter that it quantizes}."""
    return {name: parameter_of(name) for name in quantizers(model, "weights")}


def parameter_of(site: str) -> str:
    """Return the name of the parameter that a weight site quantizes."""
    return site.removesuffix("_quantizer")


def step_shapes(model: nn.Module, options: SiteOptions, kind: Kind | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shape of one step size of every site (or of those of a kind): () per tensor, (C, 1, …) per channel."""
    prepared, parameters = prepare(model, options=options), dict(model.named_parameters())
    channel = {site: (parameters[name].shape[0], *[1] * (parameters[name].dim() - 1))
               for site, name in weight_sites(prepared).items() if options.per_channel}
    return {site: channel.get(site, ()) for site in quantizers(prepared, kind)}


def bind(model: nn.Module, steps: Mapping[str, Tensor], width: Tensor, *, rows: Tensor, key: Tensor,
         count: Tensor) -> dict[str, Tensor]:
    """Return the buffers of a prepared model for one client, by tensor operations alone: vmap maps width, rows and key."""
    buffers: dict[str, Tensor] = {}
    for name, site in quantizers(model).items():
        if site.transform is not None or site.observer is not None:
            if name in steps:
                bits = site.bits_in(width)
                buffers[f"{name}.step"] = select(steps[name], bits)
                buffers[f"{name}.low"], buffers[f"{name}.high"] = limits(bits, site.grid)
            buffers[f"{name}.key"], buffers[f"{name}.count"] = key, count
        if site.observer is not None:
            buffers[f"{name}.rows"] = rows
            buffers[f"{name}.observed"] = site.observer.initial.to(rows.device)
    for name, module in model.named_modules():
        if isinstance(module, KeyedDropout):
            buffers[f"{name}.key"], buffers[f"{name}.count"] = key, count
    return buffers


def observed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the observers' statistics by site: `functional_call` leaves the final buffers in the dict it was given."""
    return {name.removesuffix(".observed"): value for name, value in tensors.items() if name.endswith(".observed")}


def replace_batchnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """Copy `model` with GroupNorm(groups) in place of every BatchNorm, as the paper does with ResNet-20."""
    model = copy.deepcopy(model)
    instead = dict[nn.Module, nn.Module]()
    for name, child in model.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            if child.num_features % groups:
                raise ModelError(f"layer '{name}' has {child.num_features} channels, not divisible by {groups} groups")
            instead[child] = nn.GroupNorm(groups, child.num_features)
    put_in_place(model, instead.get)
    return model
