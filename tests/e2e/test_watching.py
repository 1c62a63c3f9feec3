"""Runs that are extended, logged, estimated and looked at, as a person does it in a terminal."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import anybit
from anybit.cli.console import Reporter
from anybit.cli.main import run
from anybit.errors import AnybitError, RunError
from anybit.sweeps.plan import plan
from anybit.training.course import Progress
from tests.e2e.conftest import TINY

OWN = ["--import", "tiny_models", "--quiet"]


@pytest.fixture(autouse=True)
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("COLUMNS", "200")


def trained(path: str, rounds: int) -> None:
    assert run(["run", "quickstart/mqat", *TINY, f"rounds={rounds}", "--path", path, "--quiet"]) == 0


def test_a_finished_run_gets_more_rounds(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained("run", 2)
    with pytest.raises(RunError, match=r"is finished: .* more rounds with --rounds"):
        run(["resume", "run", *OWN])
    with pytest.raises(RunError, match="rounds may only grow"):
        run(["resume", "run", "--rounds", "1", *OWN])
    assert run(["resume", "run", "--rounds", "4", "--log", "csv:log.csv", *OWN]) == 0
    trained("whole", 4)
    for name in ("config.json", "task.json", "model.safetensors", "metrics.jsonl", "evaluation.json"):
        assert (home / "run" / name).read_bytes() == (home / "whole" / name).read_bytes(), name
    assert [row["round"] for row in csv.DictReader((home / "log.csv").read_text().splitlines())] == ["1", "2", "3", "4"]
    capsys.readouterr()
    assert run(["eval", "run", "--per-client", "--width", "W4", "--json", "--import", "tiny_models"]) == 0
    values = json.loads(capsys.readouterr().out)["W4"]
    assert values == pytest.approx(anybit.Run.load("run", trusted=["tiny_models"]).per_client("W4").tolist())
    assert len(values) == 20
    assert run(["eval", "run", "--per-client", "--width", "W4", "--import", "tiny_models"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["width", "clients", "mean", "accuracy", "10th", "percentile"]


def test_a_recipe_goes_on_with_the_data_it_was_begun_with(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a data set stays when its files change."""
    (home / "own_data.py").write_text("""
import os, torch
from anybit.data.examples import Data, as_examples

def some():
    x = torch.arange(20 * 64).reshape(20, 1, 8, 8) / 1280 + float(os.environ.get("SHIFT", "0"))
    return Data(as_examples(x, torch.arange(20) % 10, "training data"), as_examples(x, torch.arange(20) % 10, "test data"))
""")
    settings = ["data.name=own_data:some", "split.name=iid", "split.clients=2", "cohort=2", "--import", "own_data"]
    assert run(["run", "quickstart/mqat", *TINY, *settings, "rounds=1", "--path", "run", "--quiet"]) == 0
    monkeypatch.setenv("SHIFT", "1")
    with pytest.raises(RunError, match=r"another task: data.train.inputs was float32 \[20, 1, 8, 8\], sha256"):
        run(["resume", "run", "--rounds", "2", *OWN, "--import", "own_data"])


def test_a_dry_run_says_what_it_takes_in_five_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "quickstart/mqat", *TINY, "--dry-run", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["model", "time", "memory", "traffic", "work"]
    parameters = 64 * 8 + 8 + 8 * 10 + 10
    assert lines[0] == f"model    {parameters} parameters, 20 clients"
    assert lines[3] == f"traffic  {4 * parameters * 10 * 6 / 1000:.3g} kB to the clients and 146 kB back"


def test_version_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("anybit ")
    with pytest.raises(AnybitError, match="'cifar10' is a data set, and a recipe spreads it over clients: use one of"):
        run(["data", "show", "cifar10"])
    assert [r.name for r in plan(["quickstart/mqat"], vary=["seed=1,2"])] == ["mqat-seed1", "mqat-seed2"]
    assert "parameters that stay in full precision." in (anybit.SiteOptions.__doc__ or "")


def test_progress_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    scores = {width: {"metric": 100.0, "loss": 0.0} for width in ("FP32", "W8", "W6", "W4", "W3", "W2")}
    reporter = Reporter(quiet=False)
    reporter.live = True
    reporter.on_round(Progress(4999, 5000, 12.345, {"scores": scores}))
    assert reporter.bar is not None
    reporter.bar.tasks[0].finished_speed = 123.45
    out = io.StringIO()
    Console(file=out, width=80).print(reporter.bar.get_renderable())
    reporter.close()
    rounds, accuracies = out.getvalue().splitlines()
    assert rounds.startswith("round 4999/5000 ")
    assert rounds.rstrip().endswith("loss 12.345")
    assert accuracies.rstrip() == "FP32 100.00 W8 100.00 W6 100.00 W4 100.00 W3 100.00 W2 100.00"


def test_per_client_is_the_mean_over_a_clients_own_examples(home: Path) -> None:
    trained("run", 1)
    opened = anybit.Run.load("run", trusted=["tiny_models"])
    task = opened.task()
    with torch.no_grad():
        right = opened.model().eval()(task.data.pipeline(task.data.train.x)).argmax(1) == task.data.train.y
    assert opened.per_client("FP32") == pytest.approx(np.array([100 * right[index].double().mean() for index in task.split]))
