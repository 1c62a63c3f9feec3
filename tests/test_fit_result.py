"""The result of a training, at hand: the model at a width, the metric of every client; and the line that shows progress."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import anybit

Arrays = tuple[np.ndarray, np.ndarray]


@pytest.mark.parametrize("sites", [anybit.SiteOptions(), anybit.SiteOptions(per_channel=True, first_last_bits=8)])
def test_the_quantized_model_is_that_of_the_evaluation(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                       sites: anybit.SiteOptions) -> None:
    result = anybit.fit(mlp, clients, held_out, anybit.mqat(sites="WA"), rounds=3, cohort=3, sites=sites)
    x, y = (torch.from_numpy(values) for values in held_out)
    for width in ("FP32", "W2", "A3", "WA2"):
        model = result.quantized(width)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(x), y)
        assert not model.training
        assert float(loss) == pytest.approx(result.scores[width].loss, rel=1e-5)
    inner = result.quantized("W2")[0].weight  # type: ignore[index]
    assert type(result.quantized("W2")[0]) is nn.Linear  # type: ignore[index]
    if not sites.per_channel:
        assert len(inner.unique()) <= 4
    assert torch.equal(result.quantized("FP32")[0].weight, result.model[0].weight)  # type: ignore[index]


def test_the_metric_of_every_client(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, rounds=3, cohort=3)
    with torch.no_grad():
        expected = [100 * float((result.quantized("W2")(torch.from_numpy(x)).argmax(1).numpy() == y).mean())
                    for x, y in clients]
    assert result.per_client("W2") == pytest.approx(np.array(expected))


def test_progress_where_it_is_wanted(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    anybit.fit(mlp, clients, held_out, rounds=2, cohort=2)
    assert not capsys.readouterr().err  # no terminal
    anybit.fit(mlp, clients, held_out, rounds=2, cohort=2, progress=True, threads=2, path=tmp_path / "run")
    first, second = capsys.readouterr().err.strip("\r\n").split("\r")
    assert first.startswith("round 1/2  loss ")
    assert second.startswith("round 2/2  loss ")
    assert "W4 " in second
    assert json.loads((tmp_path / "run/config.json").read_text())["threads"] == 2
