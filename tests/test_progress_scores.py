"""Whoever shows the progress of a training writes its scores as the metric wants them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from torch import nn

import anybit
from anybit.cli.console import Reporter
from anybit.fleet import server_app

SCORE = r"FP32 0\.0\d*[1-9]\d* W2 0\.0\d*[1-9]\d*$"


def test_small_errors_are_not_rounded_to_zero(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32) / 1000
    reporter, said = Reporter(quiet=False), list[str]()
    monkeypatch.setattr(server_app, "_say", said.append)

    def on_round(progress: anybit.Progress) -> None:
        reporter.on_round(progress)
        server_app._say_round(progress)

    model = nn.Sequential(nn.Linear(3, 1, bias=False))
    anybit.fit(model, [(x, x[:, :1])], (x, x[:, :1]), loss="mse", metric="mae", rounds=1, on_round=on_round, progress=True,
               evaluation=anybit.EvaluationOptions(every=1, bits=(32, 2), sites=()), engine="sequential")
    by_reporter, by_line = [line for line in re.split(r"[\r\n]", capsys.readouterr().err) if "FP32" in line]
    for line in (by_reporter, by_line, said[0]):
        assert re.search(SCORE, line.rstrip()), line
