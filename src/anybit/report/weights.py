"""Weight histograms with the grids they are quantized to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from anybit.errors import RunError
from anybit.quant.grid import BITS, GridName, limits, rescaled
from anybit.quant.ranges import all_bits, weight_steps
from anybit.quant.sites import kind_of_site, parameter_of
from anybit.report.style import FULL, INK, QUIET, Plot, colour, figure
from anybit.training.reading import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = {"table": "the table of the training", "rule": "the step rule", "mse": "least squared error (mse)",
          "minmax": "min-max", "cover": "the smallest steps that clip nothing"}


def weight_plots(runs: Sequence[RunRecord]) -> list[Plot]:
    """Draw the first, middle and last layer of each run with weights."""
    return [_histograms(run, i) for i, run in enumerate(runs) if representative_layers(run) and run.bits]


def weight_sites_of(run: RunRecord) -> list[str]:
    """List the sites of trained weights in the model's order, which only evaluations know."""
    order = {site: place for place, site in enumerate((run.last or {}).get("layers", {}))}
    sites = [site for site in run.steps if kind_of_site(site) == "weights" and parameter_of(site) in run.weights]
    return sorted(sites, key=lambda site: order.get(site, len(order)))


def representative_layers(run: RunRecord) -> list[str]:
    """List the first, the middle and the last weight site; fewer in a smaller model."""
    sites = weight_sites_of(run)
    return [sites[i] for i in sorted({0, len(sites) // 2, len(sites) - 1})] if sites else []


def drawn_rule(run: RunRecord) -> str:
    """Return the run's own step rule, whose grid is drawn.

    The rule "rule" needs the bit-width of the training, which a variant that is a Python object lacks: then "table".
    """
    return "table" if run.own is None or (run.own == "rule" and not _trained_bits(run)) else run.own


def grid_points(run: RunRecord, site: str) -> dict[int, np.ndarray]:
    """Return {bits: the possible values of a weight}; with step sizes per channel, in the channel of median step size."""
    options, sites = run.config.get("sites", {}), weight_sites_of(run)
    grid: GridName = options.get("weight_grid") or "full"
    edge = options.get("first_last_bits") if _layer(site) in (_layer(sites[0]), _layer(sites[-1])) else None
    step_sizes = _step_sizes(run, site, drawn_rule(run), grid, bool(options.get("per_channel")))
    points = {}
    for bits in run.bits:
        actual = edge or bits
        low, high = limits(torch.tensor(actual), grid)
        points[bits] = (torch.arange(float(low), float(high) + 1) * step_sizes[BITS.index(actual)].median()).numpy()
    return points


def _layer(site: str) -> str:
    return site.rpartition(".")[0]


def _step_sizes(run: RunRecord, site: str, rule: Any, grid: GridName, per_channel: bool) -> Tensor:
    """Return the step sizes of a weight at all BITS: (7, channels)."""
    if rule not in ("table", "rule"):
        return weight_steps(run.weights[parameter_of(site)].float(), rule, grid, per_channel).reshape(len(BITS), -1)
    try:
        stored = torch.stack([torch.tensor(run.steps[site][str(b)], dtype=torch.float32).flatten() for b in BITS])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"{run.path / 'steps.json'}: site '{site}' is malformed ({error!r})") from None
    if rule == "table":
        return stored
    base = min(_trained_bits(run))
    return rescaled(stored[BITS.index(base)], base, all_bits(stored.device).reshape(-1, 1), grid)


def _trained_bits(run: RunRecord) -> list[int]:
    bits = run.config.get("variant", {}).get("bits", [])
    return [b for b in (bits if isinstance(bits, list) else [bits]) if b in BITS]


def _histograms(run: RunRecord, number: int) -> Plot:
    layers = representative_layers(run)
    fig = figure(FULL if len(layers) > 1 else FULL / 2, 2.9)
    axes = fig.subplots(2, len(layers), squeeze=False, sharex="col", height_ratios=[2.1, 1])
    for column, site in enumerate(layers):
        _histogram(axes[0, column], run, site, number)
        _grids(axes[1, column], run, site, first=column == 0)
    axes[0, 0].set_ylabel("density of weights")
    channels = run.config.get("sites", {}).get("per_channel")
    return Plot(f"weights-{number + 1}", run.name,
                f"Weights of the first, middle and last layer. Ticks: the values left at each bit-width, steps by "
                f"{_WORDS[drawn_rule(run)]}" + (", in the channel of median step." if channels else "."),
                fig, wide=True)


def _histogram(axes: Axes, run: RunRecord, site: str, number: int) -> None:
    values = run.weights[parameter_of(site)].float().flatten().numpy()
    axes.hist(values, bins=min(80, max(10, int(values.size**0.5))), density=True, histtype="stepfilled",
              color=colour(number), alpha=0.75)
    axes.set_title(f"{parameter_of(site)}  ", fontsize=8)
    axes.annotate(f"{values.size:,} weights", (1, 1), (0, 2), xycoords="axes fraction", textcoords="offset points",
                  ha="right", va="bottom", fontsize=7, color=QUIET)
    axes.yaxis.set_ticks([])
    axes.spines["left"].set_visible(False)


def _grids(axes: Axes, run: RunRecord, site: str, first: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    for row, points in enumerate(grid_points(run, site).values()):
        # One interrupted line instead of hundreds of short ones keeps the page small.
        x = np.stack([points, points, np.full_like(points, np.nan)], 1).ravel()
        y = np.tile([row - 0.36, row + 0.36, np.nan], len(points))
        axes.plot(x, y, color=INK, linewidth=0.9 if len(points) <= 16 else 0.5 if len(points) <= 64 else 0.25)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_yticks(range(len(run.bits)), [f"W{b}" for b in run.bits] if first else [])
    axes.set_ylim(len(run.bits) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
