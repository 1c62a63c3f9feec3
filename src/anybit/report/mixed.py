"""Heat maps of mixed widths: weights at one bit-width, activations at another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anybit.federated.metrics import ACCURACY
from anybit.quant.grid import Width
from anybit.report.style import HALF, PAPER, Plot, colour, figure
from anybit.training.reading import RunRecord


def mixed_plots(runs: Sequence[RunRecord]) -> list[Plot]:
    """Draw a heat map for each run with evaluated mixed widths."""
    return [_heat_map(run, i) for i, run in enumerate(runs) if run.mixed]


def _heat_map(run: RunRecord, number: int) -> Plot:
    from matplotlib.colors import LinearSegmentedColormap

    widths = {Width.parse(name): score for name, score in run.mixed.items()}
    weights, activations = (sorted({w[i] for w in widths}, reverse=True) for i in (0, 1))
    values = np.array([[widths.get(Width(w, a), {}).get("metric", np.nan) for a in activations] for w in weights])
    fig = figure(HALF, 0.75 + 0.36 * len(weights))
    axes = fig.subplots()
    score = run.metric or ACCURACY
    low = np.nanmin(values)
    spread = max(np.nanmax(values) - low, 1e-9)
    # Rectangles, not a picture: the page stays free of embedded images, and the gaps follow its theme.
    axes.pcolormesh(values, cmap=LinearSegmentedColormap.from_list("run", ["#fdfdfd", colour(number)]),
                    vmin=low - 0.15 * spread, vmax=low + spread, edgecolors=PAPER, linewidth=1.5)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            # White on the full colours and black on the pale ones, in either theme of the page.
            text = f"{value:.1f}" if score.unit == "%" else f"{value:.3g}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7.5,
                      color="#fefefe" if value > low + 0.6 * spread else "#101010")
    axes.set_xticks(np.arange(len(activations)) + 0.5, [f"A{a}" for a in activations])
    axes.set_yticks(np.arange(len(weights)) + 0.5, [f"W{w}" for w in weights])
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="bits of activations", ylabel="bits of weights")
    return Plot(f"mixed-{number + 1}", run.name, f"Test {score.name} with weights and activations at bits of their own, by "
                "the run's own steps.", fig)
