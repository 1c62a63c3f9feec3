"""Sites: the tensors that are quantized in an `nn.Module` with convolutions and linear layers.

`prepare(model)` returns a deep copy in which every conv and linear layer quantizes its weight and its input. Step sizes,
limits and noise keys are buffers of that copy, substituted per client through `torch.func.functional_call`: without
hooks and globals, vmap, compile and export see everything.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anybit.inputs import Inputs, arguments
from anybit.quant.checks import check_is_model, checked_layers, refuse
from anybit.quant.grid import GridName, Transform, limits, select
from anybit.quant.kinds import kind_of
from anybit.quant.modules import LAYERS, KeyedDropout, Kind, Quantizer, put_in_place
from anybit.schema import check_types


@dataclass(frozen=True)
class SiteOptions:
    """Which tensors are quantized (sites), and on which levels (grids). The defaults are the paper's."""

    weight_grid: GridName | None = None
    """Grid of the weights; none: the variant's choice, the paper's full grid except for carousel."""
    activation_grid: Literal[GridName, "auto"] | None = None
    """Grid of the activations. auto: unsigned where they are never negative, full elsewhere; none: the variant's choice."""
    one_sided: tuple[str, ...] | None = None
    """Layers whose inputs are never negative, for auto; none: measured on training images at the start, and then kept."""
    per_channel: bool = False
    """One step size per output channel of a weight, instead of one per tensor."""
    first_last_bits: int | None = None
    """Bit-width of the first and last layer whenever the others are quantized; none: that of the others."""
    quantize_image: bool | None = None
    """Quantize the model's own input, too; none: the variant's choice, true except for carousel."""
    full_precision: tuple[str, ...] = ()
    """Names of modules (with everything in them) and parameters that stay in full precision."""

    def __post_init__(self) -> None:
        check_types(self)

    def grid_of_input(self, layer: str) -> GridName:
        """Return the grid of a layer's input."""
        if self.activation_grid == "auto":
            return "unsigned" if layer in (self.one_sided or ()) else "full"
        return self.activation_grid or "full"


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


def prepare(model: nn.Module, weights: Transform | None = None, activations: Transform | None = None,
            options: SiteOptions = SiteOptions(), last_dropout: float = 0.0) -> nn.Module:
    """Copy `model`, names included, with layers that transform weights and inputs; last_dropout: before the last layer."""
    check_is_model(model)
    model = copy.deepcopy(model)
    layers = checked_layers(model, options.full_precision)
    plain, at_end = [name for name, (kind, _) in layers.items() if kind.of in LAYERS], (next(iter(layers)), [*layers][-1])
    instead, of_parameter, number = dict[nn.Module, nn.Module](), dict[int, Quantizer](), 0
    for name, (kind, layer) in layers.items():
        own_bits = options.first_last_bits if name in at_end else None
        sites, matrices, inputs = dict[str, Quantizer](), kind.weights(layer), kind.inputs(layer)
        for i, (weight, fed_by) in enumerate(matrices.items()):
            # One tensor, one site: tied layers share the quantizer of their weight.
            site = of_parameter.setdefault(id(layer._parameters[weight]), Quantizer(
                "weights", 2 * (number + i), options.weight_grid or "full", weights))
            site.own_bits = site.own_bits or own_bits
            site.fed_by += [f"{name}.{x}_quantizer" for x in fed_by]
            sites[weight] = site
        for i, x in enumerate(inputs):
            kept = number == 0 and options.quantize_image is False and not x.startswith("hidden")
            grid = options.grid_of_input(input_of(f"{name}.{x}_quantizer"))
            sites[x] = Quantizer("activations", 2 * (number + i) + 1, grid, activations, own_bits, kept)
        instead[layer] = _with_sites(kind.make(layer), sites)
        number += max(len(matrices), len(inputs))
    put_in_place(model, instead.get)
    put_in_place(model, _rebuilt_in_float)
    for encoder in (m for m in model.modules() if isinstance(m, nn.TransformerEncoder)):
        encoder.use_nested_tensor = False  # which only torch's own attention takes
    if last_dropout and plain:
        model.get_submodule(plain[-1]).input_dropout = KeyedDropout(last_dropout, 2 * number)
    numbers = itertools.count(2 * number + 1)
    put_in_place(model, lambda module: _keyed(module, numbers))
    return model.to(next(model.parameters()).device)


def _with_sites(layer: nn.Module, sites: Mapping[str, nn.Module]) -> nn.Module:
    for name, site in sites.items():
        setattr(layer, f"{name}_quantizer", site)
    return layer


def _rebuilt_in_float(module: nn.Module) -> nn.Module | None:
    """Return a layer in full precision in plain operations, where torch's own cannot be taken apart; none: it can."""
    kind = kind_of(module)
    if kind is None or not kind.rebuilt or kind.computes_otherwise(module) or kind.refusal(module):
        return None
    return _with_sites(kind.make(module), {name: nn.Identity() for name in (*kind.weights(module), *kind.inputs(module))})


def _keyed(module: Any, numbers: Iterator[int]) -> nn.Module | None:
    """Return the keyed dropout in place of torch's, and of stochastic depth as libraries call it; none: it is neither."""
    name = type(module).__name__
    if isinstance(module, _DROPOUTS):
        p, dims = module.p, None if type(module) is nn.Dropout else 2
    elif name == "StochasticDepth" and getattr(module, "mode", None) == "row":
        p, dims = module.p, 1
    elif name.endswith("DropPath") and isinstance(getattr(module, "drop_prob", None), float) and getattr(
            module, "scale_by_keep", True):
        p, dims = module.drop_prob, 1
    else:
        return None
    return KeyedDropout(p, next(numbers), dims).train(module.training)


def quantizers(model: nn.Module, kind: Kind | None = None) -> dict[str, Quantizer]:
    """Return the sites of a prepared model (or those of a kind) by name, e.g. 'conv1.weight_quantizer'."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Quantizer) and kind in (None, m.kind)}


def weight_sites(model: nn.Module, among: Collection[str] | None = None) -> dict[str, str]:
    """Return {weight site: name of the parameter that it quantizes}; among: of these parameters only."""
    sites = {name: parameter_of(name) for name in quantizers(model, "weights")}
    return {site: name for site, name in sites.items() if among is None or name in among}


def kind_of_site(site: str) -> Kind:
    """Return the kind of a site by its name, where there is no model to ask: torch calls all matrices weights."""
    return "weights" if "weight" in site.rpartition(".")[2] else "activations"


def parameter_of(site: str) -> str:
    """Return the name of the parameter that a weight site quantizes: the first, as in `named_parameters`, if it has many."""
    return site.removesuffix("_quantizer")


def input_of(site: str) -> str:
    """Return the name of the tensor at an activation site: of the layer whose only input it is, else 'lstm.hidden_l0'."""
    return site.removesuffix("_quantizer").removesuffix(".input")


def all_parameters(model: nn.Module, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every parameter of a model by name: the trained ones from w, frozen ones as the model has them."""
    return {name: w.get(name, p.detach()) for name, p in model.named_parameters()}


def float_parameters(model: nn.Module, options: SiteOptions) -> dict[str, int]:
    """Return {name: bytes} of the parameters that no width quantizes."""
    quantized = set(weight_sites(prepare(model, options=options)).values())
    return {name: p.numel() * p.element_size() for name, p in model.named_parameters() if name not in quantized}


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


def tied_names(model: nn.Module) -> dict[str, str]:
    """Return {further name of a parameter: its first}, for parameters that several modules hold."""
    first, further = dict[int, str](), dict[str, str]()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(module_name, recurse=False):
            if (known := first.setdefault(id(parameter), name)) != name:
                further[name] = known
    return further


def call(model: nn.Module, tensors: dict[str, Tensor], inputs: Inputs) -> Any:
    """Call a prepared model with these parameters and buffers; `tensors` holds their final values afterwards.

    Ties are resolved here: torch's own way leaves the buffers of a module with two names changed after the call.
    """
    tensors.update({name: tensors[first] for name, first in tied_names(model).items() if first in tensors})
    return torch.func.functional_call(model, tensors, *arguments(inputs), tie_weights=False)


def observed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the observers' statistics by site: `call` leaves the final buffers in the dict it was given."""
    return {name.removesuffix(".observed"): value for name, value in tensors.items() if name.endswith(".observed")}


def replace_batchnorm(model: nn.Module, groups: int = 2) -> nn.Module:
    """Copy `model` with GroupNorm(groups) in place of every BatchNorm, as the paper does with ResNet-20.

    γ, β and ε stay. A BatchNorm with an activation of its own (`act`, and `drop` before it) keeps them behind the GroupNorm.
    """
    check_is_model(model)
    model = copy.deepcopy(model)
    instead, problems = dict[nn.Module, nn.Module](), list[str]()
    norms = [child for child in model.modules() if isinstance(child, nn.modules.batchnorm._BatchNorm)]
    common = next(n for n in (*range(groups, 1, -1), 1) if not any(norm.num_features % n for norm in norms))
    for name, child in model.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            if child.num_features % groups:
                problems.append(f"layer '{name}' has {child.num_features} channels, not divisible by {groups} groups: give "
                                f"groups={common}")
            elif set(dict(child.named_children())) - {"drop", "act"}:
                problems.append(f"layer '{name}' is a {type(child).__name__}, a BatchNorm with its own layers: replace it "
                                "yourself")
            else:
                instead[child] = _group_norm(child, groups)
    refuse(problems)
    put_in_place(model, instead.get)
    return model


def _group_norm(norm: Any, groups: int) -> nn.Module:
    new = nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine).train(norm.training)
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias
    after = [part for part in (getattr(norm, "drop", None), getattr(norm, "act", None)) if isinstance(part, nn.Module)]
    return nn.Sequential(new, *after) if after else new
