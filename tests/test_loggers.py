"""Loggers and early stopping: callbacks that come with anybit."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.errors import ConfigError
from anybit.training.loggers import logger
from anybit.training.run_folder import RunFolder

Arrays = tuple[np.ndarray, np.ndarray]
SETTINGS: dict[str, Any] = {"rounds": 4, "cohort": 2, "checkpoint_every": 2, "evaluation": anybit.EvaluationOptions(every=2)}


class Cut(anybit.Callback):
    def after_round(self, training: Any, progress: anybit.Progress) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt


def test_csv_has_every_round_once_also_after_a_resume(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                     tmp_path: Path) -> None:
    out = tmp_path / "logs/run.csv"
    given = {**SETTINGS, "path": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        anybit.fit(mlp, clients, held_out, callbacks=[anybit.CsvLogger(out), Cut()], **given)
    result = anybit.fit(mlp, clients, held_out, callbacks=[anybit.CsvLogger(out)], resume=True, **given)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert [float(row["loss"]) for row in rows] == [entry["loss"] for entry in result.metrics]
    assert [row["W2 metric"] for row in rows] == ["" if entry.get("evaluation") is None else
                                                  str(entry["evaluation"]["scores"]["W2"]["metric"])
                                                  for entry in result.metrics]


def test_bytes_of_a_round_are_weights_times_clients(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                    tmp_path: Path) -> None:
    heard: list[anybit.Progress] = []
    anybit.fit(mlp, clients, held_out, path=tmp_path / "run", on_round=heard.append, **SETTINGS)
    weights = 8 * 16 + 16 + 16 * 4 + 4
    assert {(p.bytes_down, p.bytes_up) for p in heard} == {(4 * weights * 2, 4 * weights * 2)}
    assert {line["bytes_up"] for line in RunFolder.open(tmp_path / "run").lines("timing")} == {4 * weights * 2}


def constant(outputs: Tensor, targets: Tensor) -> Tensor:
    """Never improves."""
    return torch.full((len(outputs),), 5.0, device=outputs.device)


def falling(outputs: Tensor, targets: Tensor) -> Tensor:
    """Falls with every local step: better, if lower is."""
    return -outputs.detach().abs().sum(1)


falling.better = "lower"  # type: ignore[attr-defined]


def test_a_training_that_no_longer_improves_ends_with_its_evaluation(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                                     tmp_path: Path) -> None:
    """Evaluated after 1, 2, 3: the first is the best, and two more do not improve on it."""
    given: dict[str, Any] = {"rounds": 9, "cohort": 2, "evaluation": anybit.EvaluationOptions(every=1), "metric": constant,
                             "path": tmp_path / "run", "callbacks": [anybit.EarlyStopping("W2", patience=2)]}
    result = anybit.fit(mlp, clients, held_out, **given)
    assert len(result.metrics) == 3
    assert result.scores["W2"].metric == 5.0
    folder = RunFolder.open(tmp_path / "run")
    assert folder.whole
    assert folder.round_of(folder.checkpoints()[-1]) == 3
    assert len(anybit.fit(mlp, clients, held_out, resume=True, **given).metrics) == 3
    with pytest.raises(ConfigError, match=r"EarlyStopping\(width='W5'\) is not evaluated"):
        anybit.fit(mlp, clients, held_out, rounds=1, cohort=1, callbacks=[anybit.EarlyStopping("W5")])


def test_lower_is_better_where_the_metric_says_so(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    result = anybit.fit(mlp, clients, held_out, rounds=5, cohort=5, metric=falling, client=anybit.ClientOptions(lr=0.5),
                        server=anybit.ServerOptions("sgd", lr=1.0), evaluation=anybit.EvaluationOptions(every=1),
                        callbacks=[anybit.EarlyStopping("FP32", patience=1)])
    values = [entry["evaluation"]["scores"]["FP32"]["metric"] for entry in result.metrics]
    assert values == sorted(values, reverse=True)
    assert len(values) == 5


def test_loggers_by_name_and_without_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(logger("csv:a.csv"), anybit.CsvLogger)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        logger("tensorboard:folder")
    with pytest.raises(ConfigError, match="pip install wandb"):
        anybit.WandbLogger("project")
    with pytest.raises(ConfigError, match="--log cvs:x: did you mean 'csv'"):
        logger("cvs:x")
    with pytest.raises(ConfigError, match="write csv:NAME"):
        logger("csv")


def test_wandb_hears_of_every_round(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in: the real one needs an account."""
    heard: list[Any] = []
    run = SimpleNamespace(log=lambda values, step: heard.append((step, values["loss"])), finish=lambda: heard.append("end"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: heard.append(settings) or run))
    result = anybit.fit(mlp, clients, held_out, callbacks=[anybit.WandbLogger("mine", name="a")], **SETTINGS)
    settings, *rounds, end = heard
    assert (settings["project"], settings["name"], settings["config"]["rounds"], end) == ("mine", "a", 4, "end")
    assert rounds == [(entry["round"], entry["loss"]) for entry in result.metrics]
