from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from anybit.errors import MissingExtra
from anybit.quant.ranges import weight_steps
from anybit.quant.sites import parameter_of
from anybit.report import mixed, plots, weights, write_report
from anybit.report.read import read_runs
from anybit.report.style import inline, render, require_matplotlib, styled
from anybit.training.reading import RunRecord

Copied = Callable[[str, str], Path]
MIDDLE = "3.weight_quantizer"


@pytest.fixture
def runs(trained: Path) -> list[RunRecord]:
    return read_runs([trained / name for name in ("baseline", "mqat", "qat", "stopped")])


def test_lines_carry_the_scores_on_a_categorical_axis(runs: list[RunRecord]) -> None:
    with styled():
        (plot,) = plots.accuracy_plots(runs[:2])
    axes = plot.figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "8", "4", "2"]
    for line, run in zip(axes.get_lines(), runs, strict=False):
        assert list(np.asarray(line.get_ydata())) == [run.scores[w]["metric"] for w in ("FP32", "W8", "W4", "W2")]


def test_each_kind_of_sites_has_its_plot(runs: list[RunRecord]) -> None:
    with styled():
        assert [p.name for p in plots.accuracy_plots(runs)] == ["accuracy-W", "accuracy-A", "accuracy-WA"]
        assert [p.name for p in plots.layer_plots(runs)] == ["layers-weights"]
        assert [p.name for p in plots.curve_plots(runs)] == ["loss", "score"]


def test_mixed_widths_are_a_heat_map(copied: Copied) -> None:
    path = copied("mqat", "mixed")
    evaluation = json.loads((path / "evaluation.json").read_text())
    values = {"FP32": 90.0, "W2": 50.0, "A2": 20.0, "WA2": 10.0}
    evaluation["mixed"] = {width: {"loss": 1.0, "metric": value} for width, value in values.items()}
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    with styled():
        (plot,) = mixed.mixed_plots(read_runs([path, copied("mqat", "other")]))
        svg = inline(render(plot).svg, "mixed")
    (axes,) = plot.figure.axes
    assert [t.get_text() for t in axes.texts] == ["90.0", "20.0", "50.0", "10.0"], "weights down, activations across"
    assert [t.get_text() for t in axes.get_yticklabels()] == ["W32", "W2"]
    assert axes.yaxis_inverted()
    assert "<image" not in svg
    page = write_report([path], path.parent / "out")
    assert 'id="mixed"' in page.read_text()


def test_an_inlined_plot_is_well_formed_and_has_its_own_ids(runs: list[RunRecord]) -> None:
    with styled():
        plot = plots.curve_plots(runs)[0]
        svg = inline(render(plot).svg, "loss")
    root = ElementTree.fromstring(svg)
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert ids
    assert all(i.startswith("loss-") for i in ids)
    assert "width" not in root.attrib
    assert "#ffffff" not in svg
    assert "http://www.w3.org/Graphics" not in svg, "no document type that points elsewhere"


def test_odd_names_stay_as_they_are(copied: Copied) -> None:
    names = ["_hidden", "$x^2$ & <b>", "模型"]
    with styled():
        svg = render(plots.curve_plots(read_runs([copied("mqat", name) for name in names]))[0]).svg.decode()
    text = [e.text for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]
    assert set(names) <= set(text)


def test_drawn_grids_are_those_of_the_own_steps(runs: list[RunRecord]) -> None:
    baseline, mqat, qat, _ = runs
    stored = {run.name: json.loads((run.path / "steps.json").read_text())[MIDDLE] for run in runs[:3]}
    table = weights.grid_points(mqat, MIDDLE)[4]
    np.testing.assert_allclose(table, np.arange(-8, 8) * stored["mqat"]["4"], rtol=1e-6)
    rule = weights.grid_points(qat, MIDDLE)[3]
    np.testing.assert_allclose(rule, np.arange(-4, 4) * stored["qat"]["4"] * 15 / 7, rtol=1e-6)
    mse = weights.grid_points(baseline, MIDDLE)[2]
    found = weight_steps(baseline.weights["3.weight"], "mse", "full")[0]
    np.testing.assert_allclose(mse, np.arange(-2, 2) * found.item(), rtol=1e-6)


def test_grids_follow_the_site_options(copied: Copied) -> None:
    path = copied("mqat", "options")
    config = json.loads((path / "config.json").read_text())
    config["sites"] |= {"first_last_bits": 8, "weight_grid": "narrow"}
    (path / "config.json").write_text(json.dumps(config))
    steps = json.loads((path / "steps.json").read_text())
    steps[MIDDLE]["2"] = [0.1, 0.2, 0.7]
    for bits in "345678":
        steps[MIDDLE][bits] = [0.1] * 3
    (path / "steps.json").write_text(json.dumps(steps))
    (run,) = read_runs([path])
    assert len(weights.grid_points(run, "0.weight_quantizer")[2]) == 255
    np.testing.assert_allclose(weights.grid_points(run, MIDDLE)[2], [-0.2, 0, 0.2], rtol=1e-6)


@pytest.mark.parametrize(("grid", "two", "eight"), [("centred", [-0.3, -0.1, 0.1, 0.3], 255),
                                                    (None, [-0.4, -0.2, 0, 0.2], 256)])
def test_half_integer_grids(copied: Copied, grid: str | None, two: list[float], eight: int) -> None:
    path = copied("mqat", str(grid))
    config = json.loads((path / "config.json").read_text())
    config["sites"]["weight_grid"] = grid
    (path / "config.json").write_text(json.dumps(config))
    steps = json.loads((path / "steps.json").read_text())
    steps[MIDDLE] = dict.fromkeys("2345678", 0.2)
    (path / "steps.json").write_text(json.dumps(steps))
    (run,) = read_runs([path])
    points = weights.grid_points(run, MIDDLE)
    np.testing.assert_allclose(points[2], two, rtol=1e-6)
    assert [len(points[bits]) for bits in (4, 8)] == [16, eight]


def changed(run: RunRecord, **read: Any) -> RunRecord:
    """The record with something else in place of what it read."""
    other = copy.copy(run)
    vars(other).update(read)
    return other


def test_first_middle_and_last_layer(runs: list[RunRecord]) -> None:
    assert weights.representative_layers(runs[1]) == ["0.weight_quantizer", MIDDLE, "5.weight_quantizer"]
    alone = {MIDDLE: runs[1].steps[MIDDLE]}
    single = changed(runs[1], _trained=({"3.weight": torch.ones(2, 2)}, alone))
    assert weights.representative_layers(single) == [MIDDLE]
    named = {old: f"{name}.weight_quantizer" for old, name in
             zip(weights.weight_sites_of(runs[1]), ("stem", "block", "head"), strict=True)}
    last = runs[1].metrics[-1]
    evaluated = {**last, "evaluation": {**last["evaluation"], "layers": {new: {} for new in named.values()}}}
    by_name = sorted(named, key=lambda old: named[old])
    steps = {named[old]: runs[1].steps[old] for old in by_name}
    w = {parameter_of(named[old]): runs[1].weights[parameter_of(old)] for old in by_name}
    renamed = changed(RunRecord(runs[1].path), metrics=[evaluated], _trained=(w, steps))
    assert weights.representative_layers(renamed) == list(named.values()), "in the model's order, not by name"


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"anybit\[report\]"):
        require_matplotlib()
