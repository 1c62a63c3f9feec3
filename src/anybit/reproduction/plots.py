"""Plots of our figures against the paper's: accuracy over bits for every table, and overfitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anybit.report.style import FULL, INK, QUIET, Plot, colour, figure, legend, marker
from anybit.reproduction.compare import ComparedColumn, ComparedTable, Comparison
from anybit.reproduction.overfitting import Course, Curve, courses
from anybit.reproduction.text import measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHED = (0, (3, 1.5))
_PER_ROW = 5


def paper_plots(comparison: Comparison) -> list[Plot]:
    """Draw one figure per table, and one of curves per data set and model."""
    tables = [_table(table) if len(table.bits) > 1 else _bars(table) for table in comparison.tables]
    return tables + [_curves(home, lines) for home, lines in courses(comparison.by_recipe).items()]


def _table(table: ComparedTable) -> Plot:
    """Draw one panel per variant: sixteen lines in one would hide each other."""
    from matplotlib.lines import Line2D

    names = [name for name, column in table.columns.items() if column.seeds]
    columns = [(table.columns[name], table.best(name)) for name in names]
    down = math.ceil(len(columns) / _PER_ROW)
    across = math.ceil(len(columns) / down)
    fig = figure(FULL if across > 2 else FULL * 0.6, 0.55 + 1.75 * down)
    panels = fig.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for i, (column, best) in enumerate(columns):
        _panel(panels.flat[i], column, best, table.bits, i)
    for panel in panels.flat[len(columns):]:
        panel.set_axis_off()
    for row in panels:
        row[0].set_ylabel("accuracy (%)")
    panels[0, 0].set_ylim(bottom=0)
    fig.supxlabel("bits", fontsize=8)
    compared = any(cell.paper is not None for column, _ in columns for cell in column.cells.values())
    kinds: list[tuple[Any, str]] = [("-", "ours")]
    if compared:
        kinds.append((_DASHED, "paper"))
    if any(best is not column for column, best in columns):
        kinds.append((":", "ours, nearest reading"))
    legend(fig, [Line2D([], [], color=QUIET, linestyle=style) for style, _ in kinds], [name for _, name in kinds])
    return Plot(f"paper-{table.key}", f"{table.title}: ours" + (" and the paper's" if compared else ""),
                "Accuracy at each bit-width. Bars: standard deviation over seeds.", fig, wide=True)


def _panel(axes: Axes, column: ComparedColumn, best: ComparedColumn, bits: Sequence[int], number: int) -> None:
    def means(of: ComparedColumn) -> list[float]:
        return [np.nan if (ours := of.cells[b].ours) is None else ours.mean for b in bits]

    cells = [column.cells[b] for b in bits]
    x = np.arange(len(bits))
    paper = [np.nan if cell.paper is None else cell.paper for cell in cells]
    spread = [cell.ours.std or 0.0 if cell.ours else 0.0 for cell in cells]
    axes.plot(x, paper, color=QUIET, linestyle=_DASHED, linewidth=1.2)
    if best is not column:
        axes.plot(x, means(best), color=colour(number), linestyle=":", linewidth=1.5)
    axes.errorbar(x, means(column), yerr=spread if any(spread) else None, color=colour(number), marker=marker(number),
                  markeredgecolor="none", markersize=3.5, elinewidth=0.8, capsize=1.5)
    axes.set_xticks(x, [str(b) for b in bits])
    axes.set_title(column.title, fontsize=8)
    axes.tick_params(labelbottom=True)


def _bars(table: ComparedTable) -> Plot:
    """Draw a table of one row: a bar per variant, the paper's figure as a line across it."""
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


def _curves(home: str, lines: Sequence[Course]) -> Plot:
    fig = figure(FULL, 2.9)
    left, right = fig.subplots(1, 2)
    handles = [_curve(left, course.loss, number) for number, course in enumerate(lines)]
    for number, course in enumerate(lines):
        _curve(right, course.accuracy, number)
    left.set(xlabel="round", ylabel="test loss")
    right.set(xlabel="round", ylabel="test accuracy (%)")
    legend(fig, handles, [course.title for course in lines])
    return Plot(f"overfitting-{home}", f"Overfitting: {home}",
                "Left: test loss, of MQAT after quantization at the lowest width it trains at, else in full precision. "
                "Right: test accuracy in full precision. Mean over seeds, with their extremes shaded.", fig, wide=True)


def _curve(axes: Axes, curve: Curve, number: int) -> Any:
    if len(curve.values) > 1:
        axes.fill_between(curve.rounds, curve.values.min(0), curve.values.max(0), color=colour(number), alpha=0.18,
                          linewidth=0)
    return axes.plot(curve.rounds, curve.mean, color=colour(number), marker=marker(number), markeredgecolor="none",
                     markersize=3.5 if len(curve.rounds) <= 30 else 0)[0]
