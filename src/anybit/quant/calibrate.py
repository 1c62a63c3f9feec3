"""Step sizes of a model: of weights from their values, of activations from theirs on training images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anybit.inputs import Inputs, device_of, length, split
from anybit.quant import ranges
from anybit.quant.checks import refuse
from anybit.quant.grid import FLOAT, Grid, GridName, Width, nearest
from anybit.quant.modules import Observer
from anybit.quant.penalty import kurtosis
from anybit.quant.ranges import ActivationRule, RangeRule, StepTable
from anybit.quant.sites import SiteOptions, all_parameters, bind, call, input_of, observed, prepare, quantizers, weight_sites
from anybit.tensors import Tensors


def weight_table(prepared: nn.Module, w: Tensors, rule: RangeRule, per_channel: bool, spread: float) -> StepTable:
    """Estimate the step sizes of every weight site from the weights `w` (and those that are frozen)."""
    every = all_parameters(prepared, w)
    with torch.no_grad():
        return StepTable({site: ranges.weight_steps(every[name].detach(), rule, quantizers(prepared)[site].grid, per_channel,
                                                    spread) for site, name in weight_sites(prepared).items()})


def following(prepared: nn.Module, w: Tensors, table: StepTable, spread: float) -> StepTable:
    """Return the table with the root mean square of every trained weight, whose step sizes follow it from now on.

    A weight that is all zero has no scale: it gets the step sizes of one at 1, and is not rounded until it has one.
    """
    steps, start, sites = dict(table.steps), dict[str, Tensor](), quantizers(prepared)
    for site, name in weight_sites(prepared, w).items():
        rms = ranges.root_mean_square(w[name].detach(), steps[site].dim() > 1)
        start[site] = torch.where(rms > 0, rms, 1.0)
        at_one = ranges.rms_steps(torch.ones_like(rms), spread, sites[site].grid)
        steps[site] = torch.where(rms > 0, steps[site], at_one)
    return StepTable(steps, start)


class ActivationRange(NamedTuple):
    """Statistics of the values at one activation site."""

    low: Tensor
    high: Tensor
    mean: Tensor
    """Mean of |x|."""
    features: Tensor
    """Values per image."""
    usual_low: Tensor
    """Mean over batches of their smallest value."""
    usual_high: Tensor


BATCH = 64
"""Images per batch; usual extremes are means over batches."""
SEEN = 8
"""Length of an activation site's statistics: (calls, min, max, sum |x|, values, rows, sum of mins, sum of maxes)."""


def _fold_range(seen: Tensor, x: Tensor, rows: Tensor, grid: Grid) -> Tensor:
    size = torch.tensor(float(x.numel()), device=x.device)
    low, high = x.min(), x.max()
    return torch.stack([seen[0] + 1, torch.minimum(seen[1], low), torch.maximum(seen[2], high),
                        seen[3] + x.abs().sum(), seen[4] + size, seen[5] + rows.sum(), seen[6] + low, seen[7] + high])


def merge_seen(parts: Sequence[Tensor]) -> Tensor:
    """Merge one site's statistics on parts of the images: extremes of extremes, sums of sums."""
    all_parts = torch.stack(list(parts))
    total = all_parts.sum(0)
    return torch.stack([total[0], all_parts[:, 1].min(), all_parts[:, 2].max(), *total[3:]])


def activation_seen(model: nn.Module, options: SiteOptions, w: Tensors, images: Inputs) -> dict[str, Tensor]:
    """Return the statistics of every activation site on `images` in full precision.

    Raise if the images never reach a layer: its weight would be trained but never seen quantized.
    """
    initial = torch.tensor([0.0, torch.inf, -torch.inf, 0.0, 0.0, 0.0, 0.0, 0.0])
    prepared = prepare(model, options=options).eval()
    sites, alone = quantizers(prepared, "activations"), [name for name, site in quantizers(prepared, "weights").items()
                                                         if not site.fed_by]
    for name, site in quantizers(prepared).items():
        if name in sites or name in alone:
            site.observer = Observer(initial, _fold_range)
    seen = _observe(prepared, w, {}, split(images, BATCH))
    idle = dict.fromkeys(name.rpartition(".")[0] for name in (*sites, *alone) if seen[name][0] == 0)
    refuse([f"layer '{layer}' is never called in forward (is its weight used functionally?): call it, remove it, or name it "
            "in full_precision" for layer in idle])
    return {name: seen[name] for name in sites}


def activation_ranges(model: nn.Module, options: SiteOptions, w: Tensors, images: Inputs) -> dict[str, ActivationRange]:
    """Return the range of every activation site on `images`."""
    return ranges_of(activation_seen(model, options, w, images))


def ranges_of(seen: Tensors) -> dict[str, ActivationRange]:
    """Return the ranges that the statistics of `activation_seen` give."""
    return {name: ActivationRange(s[1], s[2], s[3] / s[4], s[4] / s[5], s[6] / s[0], s[7] / s[0])
            for name, s in seen.items()}


def activation_table(model: nn.Module, options: SiteOptions, w: Tensors, images: Inputs, rule: ActivationRule) -> StepTable:
    """Estimate the step sizes of every activation site on `images` with the full-precision model."""
    return table_of(activation_ranges(model, options, w, images), rule, grids_of_inputs(model, options),
                    lambda candidates: activation_errors(model, options, w, images, candidates))


def grids_of_inputs(model: nn.Module, options: SiteOptions) -> dict[str, GridName]:
    """Return {activation site: its grid}."""
    return {name: site.grid for name, site in quantizers(prepare(model, options=options), "activations").items()}


def one_sided_layers(model: nn.Module, options: SiteOptions, w: Tensors, images: Inputs) -> tuple[str, ...]:
    """Return the layers whose inputs are never negative on `images`, as after a ReLU."""
    seen = activation_ranges(model, options, w, images)
    return tuple(input_of(site) for site, r in seen.items() if float(r.low) >= 0)


def table_of(seen: Mapping[str, ActivationRange], rule: ActivationRule, grids: Mapping[str, GridName],
             errors_of: Callable[[Tensors], Tensors]) -> StepTable:
    """Return the step sizes that ranges give by a rule; "mse" also asks for the squared errors of its candidates."""
    if rule == "mse":
        candidates = {name: ranges.candidate_steps(r.low, r.high, grids[name]) for name, r in seen.items()}
        errors = errors_of(candidates)
        return StepTable({name: ranges.best_steps(candidates[name], errors[name]) for name in candidates})
    steps: dict[str, Callable[[ActivationRange, GridName], Tensor]] = {
        "minmax": lambda r, grid: ranges.minmax_steps(r.low, r.high, grid),
        "lsq": lambda r, grid: ranges.lsq_steps(r.mean, grid),
        "cover": lambda r, grid: ranges.cover_steps(r.low, r.high, grid),
        "running": lambda r, grid: ranges.minmax_steps(r.usual_low, r.usual_high, grid)}
    return StepTable({name: steps[rule](r, grids[name]) for name, r in seen.items()})


def activation_errors(model: nn.Module, options: SiteOptions, w: Tensors, images: Inputs,
                      candidates: Tensors) -> dict[str, Tensor]:
    """Return Σ (Q(x) − x)² over `images` at every activation site, for every candidate step size and bit-width."""
    def observer(of_site: Tensor, name: GridName) -> Observer:
        def fold(seen: Tensor, x: Tensor, rows: Tensor, grid: Grid) -> Tensor:
            return seen + ranges.squared_errors(x, of_site, name)
        return Observer(torch.zeros_like(of_site, dtype=torch.float64), fold)

    prepared = prepare(model, options=options).eval()
    for name, site in quantizers(prepared, "activations").items():
        site.observer = observer(candidates[name], site.grid)
    return _observe(prepared, w, {}, [images])


class LayerHealth(NamedTuple):
    """Kurtosis of one site, and the share of its values outside the grid at a width."""

    kurtosis: float
    saturation: float


def _fold_health(seen: Tensor, x: Tensor, rows: Tensor, grid: Grid) -> Tensor:
    """Add to (sum of kurtosis, sum of the share outside the grid, calls)."""
    level = nearest(x, grid)
    outside = ((level < grid.low) | (level > grid.high)).float().mean()
    return seen + torch.stack([kurtosis(x), outside, torch.ones_like(outside)])


def health_seen(prepared: nn.Module, w: Tensors, steps: Tensors, images: Inputs, width: Tensor) -> dict[str, Tensor]:
    """Return the statistics of every site for `layer_health`: a function of tensors alone, so that it can be captured."""
    for site in quantizers(prepared).values():
        site.observer = Observer(torch.zeros(3, device=device_of(images)), _fold_health)
    return _observe(prepared, w, steps, [images], width)


def layer_health(prepared: nn.Module, seen: Tensors, width: Width) -> dict[str, LayerHealth]:
    """Return kurtosis and saturation of every site at `width`, from the statistics of `health_seen`."""
    health, sites = {}, quantizers(prepared)
    for name, (peak, outside, calls) in zip(seen, torch.stack(list(seen.values())).tolist(), strict=True):
        bits = width.weights if sites[name].kind == "weights" else width.activations
        health[name] = LayerHealth(peak / calls, outside / calls if bits != FLOAT else 0.0)
    return health


@torch.no_grad()
def _observe(prepared: nn.Module, w: Tensors, steps: Tensors, batches: Iterable[Inputs],
             width: Tensor | None = None) -> dict[str, Tensor]:
    """Fold the observers of a prepared model over batches of images."""
    seen: dict[str, Tensor] = {}
    for x in batches:
        device = device_of(x)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        buffers = bind(prepared, steps, torch.full((2,), FLOAT, device=device) if width is None else width,
                       rows=torch.ones(length(x), device=device), key=zero, count=zero)
        tensors = {**w, **buffers, **{f"{name}.observed": value for name, value in seen.items()}}
        call(prepared, tensors, x)
        seen = observed(tensors)
    return seen
