"""The command line as a person uses it, in a process of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY, Anybit, command, environment
from tests.unrecorded import unrecorded

SAME = ("model.safetensors", "metrics.jsonl", "evaluation.json", "steps.json", "split.safetensors")


def wait_for(path: Path, process: subprocess.Popen[str], lines: int = 1) -> None:
    """Until `path` has so many lines."""
    for _ in range(4800):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError(f"{path} was not written in four minutes")


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*arguments), cwd=home, env=environment(), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def test_run_report_eval(anybit: Anybit, home: Path) -> None:
    done = anybit("run", "quickstart/mqat", *TINY, "--path", "runs/a")
    assert done.returncode == 0, done.stderr
    assert "round 6/6" in done.stderr
    assert done.stdout.split()[:7] == ["accuracy", "FP32", "W8", "W6", "W4", "W3", "W2"]
    shown = [float(n) for n in done.stdout.split()[8:]]
    scores = json.loads((home / "runs/a/evaluation.json").read_text())["grid"]["table"]
    assert shown == [round(scores[w]["metric"], 2) for w in ("FP32", "W8", "W6", "W4", "W3", "W2")]

    evaluated = anybit("eval", "runs/a", "--width", "W2", "--width", "w4a8", "--json", "--import", "tiny_models")
    assert evaluated.returncode == 0, evaluated.stderr
    values = json.loads(evaluated.stdout)
    assert values["W2"]["metric"] == pytest.approx(scores["W2"]["metric"])
    assert set(values) == {"W2", "W4A8"}
    mixed = anybit("eval", "runs/a", "--mixed", "--import", "tiny_models")
    assert mixed.returncode == 0, mixed.stderr
    assert mixed.stdout.split()[:7] == ["accuracy", "A32", "A8", "A6", "A4", "A3", "A2"]
    kept = json.loads((home / "runs/a/evaluation.json").read_text())["mixed"]
    assert kept["W4A8"]["metric"] == pytest.approx(values["W4A8"]["metric"])
    assert mixed.stdout.splitlines()[4].split() == ["W4", *(f"{kept[w]['metric']:.2f}" for w in
                                                            ("W4", "W4A8", "W4A6", "WA4", "W4A3", "W4A2"))]

    elsewhere = unrecorded(Path(shutil.copytree(home / "runs/a", home / "runs/from-a-gpu")))
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps({**config, "device": "xpu"}))  # which no test machine has
    again = anybit("eval", "runs/from-a-gpu", "--width", "W2", "--json", "--import", "tiny_models")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["W2"]["metric"] == pytest.approx(scores["W2"]["metric"])

    quiet = anybit("run", "quickstart/fedavg", *TINY, "--path", "runs/b", "--quiet", "--json")
    assert "round" not in quiet.stderr
    assert json.loads(quiet.stdout) == {"path": "runs/b", **json.loads((home / "runs/b/evaluation.json").read_text())}
    report = anybit("report", "runs/b", "runs/a", "--out", "out")
    assert report.returncode == 0, report.stderr
    assert "FP32" in report.stdout
    assert report.stderr.strip().endswith("out/index.html")
    assert (home / "out/index.html").stat().st_size > 10_000
    table = json.loads(anybit("report", "runs/b", "runs/a", "--out", "out", "--json").stdout)
    assert json.dumps(table)


@pytest.mark.kills
def test_sigkill_in_the_middle_then_resume_gives_the_same_bytes(anybit: Anybit, home: Path) -> None:
    settings = [*TINY, "rounds=60", "evaluation.every=7", "checkpoint_every=4"]
    assert anybit("run", "quickstart/mqat", *settings, "--path", "whole").returncode == 0
    process = start(home, "run", "quickstart/mqat", *settings, "--path", "cut")
    wait_for(home / "cut/metrics.jsonl", process, 10)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (home / "cut/evaluation.json").exists()
    resumed = anybit("resume", "cut", "--import", "tiny_models")
    assert resumed.returncode == 0, resumed.stderr
    for name in (*SAME, "config.json", "checkpoints/round-000060.safetensors"):
        assert (home / "cut" / name).read_bytes() == (home / "whole" / name).read_bytes(), name
    rounds = [json.loads(line)["round"] for line in (home / "cut/timing.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, 61))


@pytest.mark.kills
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_saves_and_resumes(anybit: Anybit, home: Path, number: signal.Signals) -> None:
    settings = [*TINY, "rounds=200", "evaluation.every=1000", "checkpoint_every=1000"]
    process = start(home, "run", "quickstart/mqat", *settings, "--path", "run")
    wait_for(home / "run/metrics.jsonl", process, 5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "continue with: anybit resume run" in errors
    assert "Traceback" not in errors
    assert len(list((home / "run/checkpoints").glob("*.safetensors"))) == 1
    finished = anybit("resume", "run", "--import", "tiny_models", "--quiet")
    assert finished.returncode == 0, finished.stderr
    again = anybit("resume", "run", "--import", "tiny_models")
    assert again.returncode == 2
    assert "is finished" in again.stderr
    if number == signal.SIGTERM:
        return
    model = (home / "run/model.safetensors").read_bytes()
    (home / "run/model.safetensors").write_bytes(model[:-9])
    damaged = anybit("report", "run")
    assert "delete it, and 'anybit resume run' makes it anew from round-000200.safetensors" in damaged.stderr
    (home / "run/model.safetensors").unlink()
    steps = (home / "run/steps.json").read_bytes()
    (home / "run/steps.json").unlink()
    resumed = anybit("resume", "run", "--import", "tiny_models", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert (home / "run/model.safetensors").read_bytes() == model
    assert (home / "run/steps.json").read_bytes() == steps
    (home / "run/steps.json").write_bytes(steps[:-9])
    assert "delete it, and 'anybit resume run' makes it anew" in anybit("report", "run").stderr


def test_a_folder_in_use_is_locked(anybit: Anybit, home: Path) -> None:
    process = start(home, "run", "quickstart/mqat", *TINY, "rounds=2000", "--path", "run")
    wait_for(home / "run/metrics.jsonl", process)
    other = anybit("resume", "run", "--import", "tiny_models")
    process.kill()
    process.communicate()
    assert other.returncode == 2
    assert other.stderr.strip() == "anybit: run is in use by another process"


def test_dry_run_prints_config_and_cost_and_leaves_nothing(anybit: Anybit, home: Path) -> None:
    shown = json.loads(anybit("run", "quickstart/mqat", *TINY, "--dry-run", "--json").stdout)
    assert shown["config"]["rounds"] == 6
    assert shown["cost"]["training_images"] == 6 * 10 * 71
    on_the_way, at_the_end = 3 * 6, 3 * 6  # three times six widths; six widths by three step rules
    assert shown["cost"]["evaluation_images"] == (on_the_way + at_the_end) * 360
    assert not (home / "runs").exists()


def test_what_an_override_leaves_behind_is_said(anybit: Anybit, home: Path) -> None:
    shown = anybit("show", "quickstart/mqat", "split.name=iid")
    assert json.loads(shown.stdout)["split"]["name"] == "iid"
    for said in (shown, anybit("run", "quickstart/mqat", "split.name=iid", "--dry-run"),
                 anybit("sweep", "quickstart", "split.name=iid", "--dry-run")):
        assert said.returncode == 0
        assert said.stderr.count("note: split.name=iid starts from the settings of 'iid'; dropped from the recipe") == 1
    assert anybit("run", "quickstart/mqat", "split.name=iid", "--dry-run", "--quiet").stderr == ""


def test_recipes_are_listed_shown_and_copied(anybit: Anybit, home: Path) -> None:
    names = anybit("ls").stdout.split()
    assert "quickstart/mqat" in names
    assert len(names) == 80
    listed = json.loads(anybit("ls", "paper/cifar10-lenet5", "--json").stdout)
    assert len(listed) == 9
    assert all(entry["description"] for entry in listed)
    config = json.loads(anybit("show", "quickstart/mqat", "server.lr=1e-2").stdout)
    assert config["server"]["lr"] == 0.01
    assert anybit("cp", "quickstart/mqat", "mine.toml").returncode == 0
    assert json.loads(anybit("show", "mine.toml", "server.lr=1e-2").stdout) == config
    assert anybit("cp", "quickstart/mqat", "mine.toml").returncode == 2


def test_doctor(anybit: Anybit) -> None:
    facts = json.loads(anybit("doctor", "--json").stdout)
    assert facts["environment"]["torch"]
    assert facts["extras"]["report"]["matplotlib"]
    assert "threads" in anybit("doctor").stdout
