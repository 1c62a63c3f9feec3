"""Plots of ours against the paper's: accuracy over bits for every table, and who overfits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anybit.build import build_variant
from anybit.quant.grid import Width
from anybit.report.paper import ComparedColumn, ComparedTable, Comparison
from anybit.report.paper_text import measured
from anybit.report.style import FULL, INK, QUIET, Plot, colour, figure, legend, marker
from anybit.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHED = (0, (3, 1.5))
_PER_ROW = 5
_OVERFITTING = {"baseline": "Baseline", "baseline-dropout": "Baseline (dropout)", "mqat": "MQAT-W", "mqat-a": "MQAT-A",
                "mqat-wa": "MQAT-WA", "mqat-fixed": "MQAT*-W", "mqat-full": "MQAT-W (2…32)"}
"""Recipes of the overfitting figure, by the last part of their names."""


def paper_plots(comparison: Comparison) -> list[Plot]:
    """One figure per table with more than full precision, and one of curves per data set and model."""
    tables = [_table(table) if len(table.bits) > 1 else _bars(table) for table in comparison.tables]
    return tables + _overfitting(comparison.by_recipe)


def _table(table: ComparedTable) -> Plot:
    """One panel per variant: sixteen lines in one would hide each other."""
    from matplotlib.lines import Line2D

    columns = measured(table)
    down = math.ceil(len(columns) / _PER_ROW)
    across = math.ceil(len(columns) / down)
    fig = figure(FULL if across > 2 else FULL * 0.6, 0.55 + 1.75 * down)
    panels = fig.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for i, panel in enumerate(panels.flat):
        if i >= len(columns):
            panel.set_axis_off()
            continue
        _panel(panel, columns[i], table.bits, i)
        panel.tick_params(labelbottom=True)
    for row in panels:
        row[0].set_ylabel("accuracy (%)")
    panels[0, 0].set_ylim(bottom=0)
    fig.supxlabel("bits", fontsize=8)
    kinds: list[tuple[Any, str]] = [("-", "ours"), (_DASHED, "paper")]
    if any(cell.depends_on_steps for column in columns for cell in column.cells.values()):
        kinds.append((":", "ours, steps re-estimated (mse)"))
    legend(fig, [Line2D([], [], color=QUIET, linestyle=style) for style, _ in kinds], [name for _, name in kinds])
    return Plot(f"paper-{table.key}", f"{table.title}: ours and the paper's",
                "Accuracy at each bit-width. Bars: standard deviation over seeds.", fig, wide=True)


def _panel(axes: Axes, column: ComparedColumn, bits: Sequence[int], number: int) -> None:
    cells = [column.cells[b] for b in bits]
    x = np.arange(len(bits))
    paper = [np.nan if cell.paper is None else cell.paper for cell in cells]
    ours = [np.nan if cell.ours is None else cell.ours.mean for cell in cells]
    spread = [cell.ours.std or 0.0 if cell.ours else 0.0 for cell in cells]
    axes.plot(x, paper, color=QUIET, linestyle=_DASHED, linewidth=1.2)
    if any(cell.depends_on_steps for cell in cells):
        again = [np.nan if cell.reestimated is None else cell.reestimated.mean for cell in cells]
        axes.plot(x, again, color=colour(number), linestyle=":", linewidth=1.2)
    axes.errorbar(x, ours, yerr=spread if any(spread) else None, color=colour(number), marker=marker(number),
                  markeredgecolor="none", markersize=3.5, elinewidth=0.8, capsize=1.5)
    axes.set_xticks(x, [str(b) for b in bits])
    axes.set_title(column.title, fontsize=8)


def _bars(table: ComparedTable) -> Plot:
    """A table of one row: a bar per variant, the paper's figure as a line across it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns, bits = measured(table), table.bits[0]
    fig = figure(FULL * 0.75, 0.7 + 0.24 * len(columns))
    axes = fig.subplots()
    for row, column in enumerate(columns):
        cell = column.cells[bits]
        if cell.ours is not None:
            axes.barh(row, cell.ours.mean, height=0.62, xerr=cell.ours.std, color=colour(0), alpha=0.75,
                      error_kw={"elinewidth": 0.8, "capsize": 1.5, "ecolor": INK})
        if cell.paper is not None:
            axes.plot([cell.paper] * 2, [row - 0.4, row + 0.4], color=QUIET, linewidth=1.6)
    axes.set_yticks(range(len(columns)), [column.title for column in columns])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.set_xlabel("accuracy at full precision (%)" if bits == 32 else f"accuracy at {bits} bits (%)")
    legend(fig, [Patch(color=colour(0), alpha=0.75), Line2D([], [], color=QUIET, linewidth=1.6)], ["ours", "paper"])
    return Plot(f"paper-{table.key}", f"{table.title}: ours and the paper's",
                "Bars: ours, with the standard deviation over seeds. Lines: the paper's.", fig)


def _overfitting(by_recipe: Mapping[str, Sequence[Result]]) -> list[Plot]:
    homes = dict.fromkeys(recipe.rpartition("/")[0] for recipe in by_recipe if recipe.endswith("/baseline"))
    plots = []
    for home in homes:
        lines = {title: by_recipe[f"{home}/{leaf}"] for leaf, title in _OVERFITTING.items() if f"{home}/{leaf}" in by_recipe}
        if any(title.startswith("MQAT") for title in lines) and all(r.curve for runs in lines.values() for r in runs):
            plots.append(_curves(home.removeprefix("paper/"), lines))
    return plots


def _curves(home: str, lines: Mapping[str, Sequence[Result]]) -> Plot:
    fig = figure(FULL, 2.9)
    left, right = fig.subplots(1, 2)
    handles = []
    for number, results in enumerate(lines.values()):
        lowest = _lowest(results[0])
        handles.append(_curve(left, results, lowest, "loss", number))
        _curve(right, results, "FP32", "metric", number)
    left.set_ylabel("test loss")
    right.set_ylabel("test accuracy (%)")
    for axes in (left, right):
        axes.set_xlabel("round")
    legend(fig, handles, list(lines))
    return Plot(f"overfitting-{home}", f"Overfitting: {home}",
                "Left: test loss, of MQAT after quantization at the lowest width it trains at, else in full precision. "
                "Right: test accuracy in full precision. Mean over seeds, with their extremes shaded.", fig, wide=True)


def _lowest(result: Result) -> str:
    """The lowest width that the variant trains at."""
    variant = build_variant(result.settings)
    return str(Width.of(variant.sites, min(variant.bits)))


def _curve(axes: Axes, results: Sequence[Result], width: str, key: str, number: int) -> Any:
    """The mean over seeds at the rounds that all of them have."""
    curves = [{point.round: point.scores[width][key] for point in r.curve if width in point.scores} for r in results]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = np.array([[curve[round] for round in rounds] for curve in curves])
    if len(curves) > 1:
        axes.fill_between(rounds, values.min(0), values.max(0), color=colour(number), alpha=0.18, linewidth=0)
    return axes.plot(rounds, values.mean(0), color=colour(number), marker=marker(number), markeredgecolor="none",
                     markersize=3.5 if len(rounds) <= 30 else 0)[0]
