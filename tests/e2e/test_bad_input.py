"""Whatever is wrong: exit code 2, one line that says what is wrong and how to fix it, no traceback."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY, Anybit
from tests.unrecorded import unrecorded

OWN = ["--import", "tiny_models"]


@pytest.mark.parametrize(("arguments", "message"), [
    (["run", "quickstart/mqt"], "unknown recipe 'quickstart/mqt': did you mean 'quickstart/mqat'?"),
    (["run", "quickstart"], "'quickstart' is a folder of recipes; choose one of: quickstart/fedavg, quickstart/mqat"),
    (["run", "mqta"], "unknown recipe 'mqta': did you mean 'demo/mqat' or 'quickstart/mqat'"),
    (["run", "quickstart/mqat", "sever.lr=1"], "sever is unknown: did you mean 'server'?"),
    (["run", "quickstart/mqat", "server.optimizer=adan"], "server.optimizer = 'adan': must be one of sgd, adam"),
    (["run", "quickstart/mqat", "rounds=ten"], "rounds = 'ten': must be a whole number"),
    (["run", "quickstart/mqat", "variant.bits=[2,9]"], "bits = 9: a bit-width is one of 2…8, or 32"),
    (["run", "quickstart/mqat", "variant.bits=2,4"],
     "variant.bits = '2,4': must be a list, written 'variant.bits=[2, 4]' (in the shell with these quotes)"),
    (["run", "quickstart/mqat", "variant.bits=3"], "variant.bits = 3: must be a list, written 'variant.bits=[3]' (in the"),
    (["run", "quickstart/mqat", "evaluation.sites=W,A"],
     """evaluation.sites = 'W,A': must be a list, written 'evaluation.sites=["W", "A"]' (in"""),
    (["run", "quickstart/fedavg", "ranges.learned=true", "--dry-run"],
     "ranges.learned: variant 'baseline' quantizes nothing while training"),
    (["run", "quickstart/fedavg", "ranges.learned=true"],
     "ranges.learned: variant 'baseline' quantizes nothing while training"),
    (["run", "quickstart/mqat", "evaluation.bits=[1]"], "bits = 1: a bit-width is one of 2…8, or 32"),
    (["run", "quickstart/mqat", "cohort=21"], "cohort = 21, but there are only 20 clients"),
    (["run", "quickstart/mqat", "split.name=tiny_models:empty_client", *OWN], "client 1 has no examples"),
    (["run", "quickstart/mqat", "model.name=tiny_models:narrow", *OWN], "but the model's 4 outputs allow 0…3"),
    (["run", "quickstart/mqat", "data.name=tiny_models:lone_nan", *OWN], "the inputs of example 3 hold NaN or infinity"),
    (["run", "quickstart/mqat", "model.name=tiny_models:Normed", *OWN], "layer 'norm' is BatchNorm2d in training"),
    (["run", "quickstart/mqat", "model.name=tiny_models:Idle", *OWN], "layer 'spare' is never called in forward"),
    (["run", "quickstart/mqat", "model.in_channels=3"], "the model does not take inputs of shape (1, 1, 8, 8)"),
    (["run", "quickstart/mqat", "model.name=tiny_models:tiny"], "allow it with --import tiny_models"),
    (["run", "quickstart/mqat", "device=cuda"], "device = 'cuda' cannot be used here"),
    (["run", "paper/cifar10-lenet5/mqat"], "anybit data prepare cifar10"),
    (["resume", "nowhere"], "nowhere does not exist"),
    (["runn"], "anybit: no such command 'runn'. Did you mean 'run'? (see anybit --help)"),
    (["run", "quickstart/mqat", "--bogus"], "anybit: no such option '--bogus'"),
    (["run"], "anybit: missing argument 'RECIPE'. (see anybit run --help)"),
    (["sweep", "quickstart/mqat", "--seeds"], "anybit: option '--seeds' requires an argument"),
    (["run", "quickstart/mqat", "cohort=100", "--dry-run"], "cohort = 100, but there are only 20 clients"),
    (["run", "quickstart/mqat", "model.in_channels=3", "--dry-run"], "the model does not take inputs of shape (1, 1, 8, 8)"),
    (["eval", "."], ". is not a run: it has no config.json"),
    (["report", "nowhere"], "nowhere"),
    (["run", "quickstart/mqat", "rounds"], "override 'rounds': write key=value"),
    (["run", "missing.toml"], "recipe file 'missing.toml' does not exist"),
    (["resume", "x" * 300], "cannot be read or written (File name too long)")])
def test_one_line_and_exit_code_two(anybit: Anybit, home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str],
                                    message: str) -> None:
    monkeypatch.setenv("ANYBIT_DATA", str(home / "no-data"))
    done = anybit(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("anybit: ")
    assert not (home / "runs").exists(), "a run that cannot start leaves no folder"


def test_debug_shows_the_traceback(anybit: Anybit) -> None:
    assert "Traceback" in anybit("run", "quickstart/mqt", "--debug").stderr


def test_an_unwritable_folder(anybit: Anybit, home: Path) -> None:
    (home / "file").write_text("not a folder")
    done = anybit("run", "quickstart/mqat", *TINY, "--path", "file/run")
    assert done.returncode == 2
    assert "file/run cannot be written (Not a directory)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def interrupted(anybit: Anybit, home: Path) -> Path:
    """A run with two checkpoints and no end."""
    assert anybit("run", "quickstart/mqat", *TINY, "--path", "run", "--quiet").returncode == 0
    (home / "run/evaluation.json").unlink()
    return home / "run"


def test_a_corrupt_checkpoint_says_how_to_go_on(anybit: Anybit, interrupted: Path) -> None:
    newest = interrupted / "checkpoints/round-000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:-100])
    done = anybit("resume", "run", *OWN)
    assert done.returncode == 2
    assert "round-000006.safetensors" in done.stderr
    assert "delete it to resume from round-000004.safetensors" in done.stderr
    newest.unlink()
    assert anybit("resume", "run", *OWN).returncode == 0


def test_resume_with_another_config_is_refused(anybit: Anybit, interrupted: Path) -> None:
    config = json.loads((interrupted / "config.json").read_text())
    config["client"]["lr"] = 0.5
    (interrupted / "config.json").write_text(json.dumps(config))
    done = anybit("resume", "run", *OWN)
    assert done.returncode == 2
    assert "config.json is damaged, edited or another run's" in done.stderr
    unrecorded(interrupted)
    assert "is not the config that round-000006.safetensors was trained with" in anybit("resume", "run", *OWN).stderr


def test_damaged_configs_and_metrics_are_named(anybit: Anybit, interrupted: Path) -> None:
    metrics = interrupted / "metrics.jsonl"
    os.truncate(metrics, 10)
    assert "metrics.jsonl is shorter than its checkpoint says" in anybit("resume", "run", *OWN).stderr
    (interrupted / "config.json").write_text("{")
    done = anybit("resume", "run", *OWN)
    assert done.returncode == 2
    assert "config.json is damaged, edited or another run's" in done.stderr


def test_eval_of_an_unfinished_run_names_the_verb(anybit: Anybit, interrupted: Path) -> None:
    done = anybit("eval", "run", *OWN)
    assert done.returncode == 2
    assert "anybit resume run" in done.stderr


def test_an_unfinished_run_says_so_in_a_report_and_where_it_goes_on(anybit: Anybit, interrupted: Path) -> None:
    shown = anybit("report", "run", "--out", "page")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"run is not finished: round \d+ of \d+", shown.stderr)
    collected = anybit("collect", "run", "--out", "all.json")
    assert collected.returncode == 2
    assert "no run in run is finished: there is nothing to collect yet" in collected.stderr
    assert not Path(interrupted.parent, "all.json").exists()
    resumed = anybit("resume", "run", *OWN)
    assert re.search(r"from round [1-9]\d*\n", resumed.stderr)
