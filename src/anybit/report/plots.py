"""Plots of scores and training: accuracy over bits, curves over rounds, the health of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anybit.quant.grid import FLOAT, Width
from anybit.quant.modules import Kind
from anybit.quant.penalty import UNIFORM_KURTOSIS
from anybit.quant.sites import input_of, kind_of_site, parameter_of
from anybit.report.style import FULL, HALF, QUIET, Plot, colour, figure, legend, marker
from anybit.report.tables import Score, shared_metric, sorted_widths
from anybit.training.reading import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = {"W": "weights", "A": "activations", "WA": "weights and activations"}
_SMOOTH_FROM = 200
_MAX_LAYER_NAMES = 40


def accuracy_plots(runs: Sequence[RunRecord]) -> list[Plot]:
    """Draw one plot for each kind of sites that was evaluated, the runs' own kind first."""
    kinds = [kind for kind in _WORDS if any(_points(run, kind) for run in runs)]
    kinds.sort(key=lambda kind: -sum(run.sites == kind for run in runs))
    return [_accuracy(runs, kind, first=kind == kinds[0]) for kind in kinds]


def _points(run: RunRecord, kind: str) -> list[tuple[int, dict[str, float]]]:
    """List (bits, scores) with the given sites quantized; empty when only full precision is known."""
    widths = {Width.parse(name): score for name, score in run.scores.items()}
    by_bits = {min(w): score for w, score in widths.items() if str(w).rstrip("0123456789") in (kind, "FP")}
    return sorted(by_bits.items(), reverse=True) if set(by_bits) - {FLOAT} else []


def _accuracy(runs: Sequence[RunRecord], kind: str, first: bool) -> Plot:
    fig = figure(*((5.4, 3.7) if first else (HALF, 2.9)))
    axes = fig.subplots()
    key, label = _score(runs)
    lines = {i: line for i, run in enumerate(runs) if (line := _points(run, kind))}
    bits = sorted({b for line in lines.values() for b, _ in line}, reverse=True)
    handles = [_line(axes, i, [(bits.index(b), s.get(key)) for b, s in line]) for i, line in lines.items()]
    axes.set_xticks(range(len(bits)), [str(b) for b in bits])
    axes.set(xlim=(-0.25, len(bits) - 0.75), xlabel=f"bits of {_WORDS[kind]}", ylabel=label)
    legend(fig, handles, [runs[i].name for i in lines])
    return Plot(f"accuracy-{kind}", f"{_sentence(_WORDS[kind])} quantized",
                f"{_sentence(label)} with {_WORDS[kind]} at each bit-width, by each run's own step rule.", fig)


def _line(axes: Axes, number: int, points: Sequence[tuple[float, float | None]], **style: Any) -> Any:
    """Draw one run's line, with gaps for missing values."""
    x, y = [p for p, _ in points], [np.nan if v is None else v for _, v in points]
    return axes.plot(x, y, color=colour(number), **{"marker": marker(number), "markeredgecolor": "none", **style})[0]


def _score(runs: Sequence[RunRecord]) -> tuple[Score, str]:
    """Return (the score that all runs share, its label on an axis)."""
    metric = shared_metric(runs)
    if metric is None:
        return "loss", "test loss"
    return "metric", f"test {metric.label}" + (", lower is better" if metric.better == "lower" else "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def curve_plots(runs: Sequence[RunRecord]) -> list[Plot]:
    """Draw the loss of the clients in every round, and the server model's score during training."""
    told = [run for run in runs if any("loss" in entry for entry in run.metrics)]
    plots = [_loss_curve(runs)] if told else []
    return plots + ([_score_curve(runs)] if any(run.last for run in runs) else [])


def _loss_curve(runs: Sequence[RunRecord]) -> Plot:
    fig = figure(HALF, 2.9)
    axes = fig.subplots()
    handles = []
    for i, run in enumerate(runs):
        rounds = np.array([e["round"] for e in run.metrics], dtype=float)
        loss = np.array([e.get("loss", np.nan) for e in run.metrics], dtype=float)
        style = {"marker": marker(i), "markersize": 3} if len(rounds) <= 20 else {"marker": ""}
        if len(rounds) > _SMOOTH_FROM:
            axes.plot(rounds, loss, color=colour(i), alpha=0.2, linewidth=0.6)
            window = len(rounds) // 50
            loss = np.convolve(loss, np.ones(window) / window, "valid")
            rounds = rounds[window - 1:]
        handles.append(_line(axes, i, list(zip(rounds, loss, strict=True)), **style))
    _label_rounds(axes, "training loss")
    legend(fig, handles, [run.name for run in runs])
    smoothed = any(len(run.metrics) > _SMOOTH_FROM for run in runs)
    return Plot("loss", "Training loss", "Mean loss over the local steps of each round's cohort, at the widths the "
                "clients trained at" + ("; moving mean over 2 % of the rounds." if smoothed else "."), fig)


def _score_curve(runs: Sequence[RunRecord]) -> Plot:
    from matplotlib.lines import Line2D

    fig = figure(HALF, 2.9)
    axes = fig.subplots()
    key, label = _score(runs)
    for i, run in enumerate(runs):
        entries = [(point["round"], point["scores"]) for point in run.curve]
        style = {"markersize": 3 if len(entries) <= 30 else 0}
        _line(axes, i, [(r, scores.get("FP32", {}).get(key)) for r, scores in entries], **style)
        _line(axes, i, [(r, _lowest(scores).get(key)) for r, scores in entries], linestyle=(0, (3, 1.5)), **style)
    _label_rounds(axes, label)
    lowest = sorted({f"{min(run.bits)}" for run in runs if run.bits})
    handles = [Line2D([], [], color=colour(i), marker=marker(i), markeredgecolor="none") for i in range(len(runs))]
    handles += [Line2D([], [], color=QUIET, linestyle=dashes) for dashes in ("-", (0, (3, 1.5)))]
    names = [*(run.name for run in runs), "32 bits", f"{' or '.join(lowest) or 'lowest'} bits"]
    legend(fig, handles, names)
    return Plot("score", f"{_sentence(label.removeprefix('test '))} over rounds",
                "The server model on the whole test set, in full precision (solid) and at the lowest width (dashed).", fig)


def _lowest(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return min(scores.items(), key=lambda item: min(Width.parse(item[0])))[1] if scores else {}


def _label_rounds(axes: Axes, ylabel: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(xlabel="round", ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 5, 10]))


def layer_plots(runs: Sequence[RunRecord]) -> list[Plot]:
    """Draw saturation and kurtosis of every layer at the lowest width, of weights and of activations."""
    kinds: tuple[Kind, Kind] = ("weights", "activations")
    lines = {kind: [_health(run, index, kind) for run in runs] for index, kind in enumerate(kinds)}
    return [_layers(runs, health, kind) for kind, health in lines.items() if any(health)]


def _health(run: RunRecord, index: int, kind: Kind) -> dict[str, dict[str, float]]:
    """Return {layer: {saturation, kurtosis}} of one kind of sites; empty if the newest evaluation did not quantize it."""
    last = run.last
    if not last or Width.parse(last["layers_at"])[index] == FLOAT:
        return {}
    return {_tensor(site, kind): value for site, value in last["layers"].items() if kind_of_site(site) == kind}


def _tensor(site: str, kind: Kind) -> str:
    """Name what is at a site: the layer, or one of its tensors where it has several ('lstm.weight_hh_l0')."""
    return input_of(site) if kind == "activations" else parameter_of(site).removesuffix(".weight")


def _layers(runs: Sequence[RunRecord], lines: Sequence[dict[str, dict[str, float]]], kind: str) -> Plot:
    fig = figure(FULL, 4.2)
    top, bottom = fig.subplots(2, 1, sharex=True)
    shown = [i for i, line in enumerate(lines) if line]
    handles = []
    for i in shown:
        style = {"linewidth": 0.7, "markersize": 4, "clip_on": False}
        values = list(lines[i].values())
        handles.append(_line(top, i, [(x, 100 * v["saturation"]) for x, v in enumerate(values)], **style))
        _line(bottom, i, [(x, v["kurtosis"]) for x, v in enumerate(values)], **style)
    bottom.axhline(UNIFORM_KURTOSIS, color=QUIET, linewidth=0.8, linestyle=(0, (4, 2)))
    bottom.annotate("uniform: 1.8", (0, UNIFORM_KURTOSIS), (3, -3), xycoords=("axes fraction", "data"),
                    textcoords="offset points", ha="left", va="top", fontsize=7, color=QUIET)
    bottom.margins(y=0.15)
    bottom.set_ylabel("kurtosis")
    top.set_ylabel("saturated (%)")
    top.set_ylim(bottom=0)
    names = list(lines[shown[0]])
    if all(list(lines[i]) == names for i in shown) and len(names) <= _MAX_LAYER_NAMES:
        bottom.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=7)
    else:
        bottom.set_xlabel("layer, in the model's order")
    legend(fig, handles, [runs[i].name for i in shown])
    widths = sorted_widths({last["layers_at"] for i in shown if (last := runs[i].last)})
    return Plot(f"layers-{kind}", f"{_sentence(kind)} of every layer at {' or '.join(widths)}",
                "Saturated: the share of values beyond the ends of the grid. Kurtosis: low is flat and easy to "
                "quantize (a uniform distribution has 1.8, a normal one 3), high means outliers.", fig, wide=True)
