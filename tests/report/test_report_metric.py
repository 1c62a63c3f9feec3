"""A report of a regression says its unit and direction, and nothing of accuracy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

import anybit
from anybit.federated.metrics import LOSSES
from anybit.report import read_runs, write_report
from anybit.report.plots import accuracy_plots, curve_plots
from anybit.sweeps.results import read_results, write_results


def test_a_regression(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    path, y = tmp_path / "run", x.sum(1)
    anybit.fit(nn.Sequential(nn.Linear(3, 1)), [(x[:20], y[:20])], (x[20:], y[20:]), rounds=2, cohort=1, loss="mse",
               metric=anybit.Metric(LOSSES["mae"], better="lower", unit="°C"), path=path,
               evaluation=anybit.EvaluationOptions(every=1, bits=(32, 4, 2), mixed=True))
    page = write_report([path], tmp_path / "report").read_text()
    assert "Lower is better, in °C" in page
    assert "mae (°C) at FP32" in page
    assert "higher is better" not in page.lower()
    plots = accuracy_plots(read_runs([path])) + curve_plots(read_runs([path]))
    labels = {axes.get_ylabel() for plot in plots for axes in plot.figure.axes}
    assert labels == {"test mae (°C), lower is better", "training loss"}
    write_results(read_results([path]).results, tmp_path / "results.csv")
    assert ",loss,mae (°C),seconds," in (tmp_path / "results.csv").read_text().splitlines()[0]
