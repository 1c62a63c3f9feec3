"""A sweep as a person runs it: killed, stopped, out of time, with a failing run."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from rich.console import Console
from torch import nn

from anybit.cli.main import run
from anybit.cli.progress import SweepReporter
from anybit.errors import AnybitError, RunsFailed
from anybit.sweeps.plan import SweepFolder, plan
from anybit.training.build import Components
from anybit.training.course import Progress
from tests.e2e.conftest import TINY
from tests.e2e.test_cli import SAME, start, wait_for

OWN = ["--import", "tiny_models"]
SHORT = [*TINY, "evaluation.every=10", "checkpoint_every=4", "evaluation.bits=[32,2]", "evaluation.steps=[\"mse\"]"]


@pytest.fixture(autouse=True)
def inside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commands run in this process, which is quicker; the ones to be killed have their own."""
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.kills
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_killed_sweep_ends_with_the_same_bytes(engine: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One run after another, and side by side."""
    settings = [*SHORT, "rounds=30", f"engine={engine}", "--quiet"]
    assert run(["sweep", "quickstart", *settings, "--path", "whole"]) == 0
    process = start(home, "sweep", "quickstart", *settings, "--path", "cut")
    wait_for(home / "cut/mqat-seed1/metrics.jsonl", process, 6)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (home / "cut/fedavg-seed1/evaluation.json").exists() == (engine == "sequential")
    assert not (home / "cut/mqat-seed1/evaluation.json").exists()
    assert run(["sweep", "quickstart", *settings, "--path", "cut"]) == 0
    for name in ("fedavg-seed1", "mqat-seed1"):
        for file in (*SAME, "config.json", "checkpoints/round-000030.safetensors"):
            assert (home / "cut" / name / file).read_bytes() == (home / "whole" / name / file).read_bytes(), (name, file)
    assert (home / "cut/sweep.json").read_bytes() == (home / "whole/sweep.json").read_bytes()

    capsys.readouterr()
    assert run(["sweep", "cut", "--json", *OWN]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(line["run"], line["round"], line["state"]) for line in shown] == [
        ("fedavg-seed1", 30, "done"), ("mqat-seed1", 30, "done")]
    assert shown[1]["scores"] == json.loads((home / "cut/mqat-seed1/evaluation.json").read_text())["grid"]["table"]
    assert run(["collect", "cut", "--out", "all.json"]) == 0
    with pytest.raises(AnybitError, match=r"'all\.txt': a results file ends in \.json or \.csv"):
        run(["collect", "cut", "--out", "all.txt"])
    assert capsys.readouterr().err.strip() == "2 runs: all.json"
    assert len(json.loads((home / "all.json").read_text())["runs"]) == 2


@pytest.mark.kills
def test_stopping_and_running_out_of_time(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start(home, "sweep", "quickstart", *SHORT, "rounds=200", "checkpoint_every=1000", "engine=sequential",
                    "--path", "sweep")
    wait_for(home / "sweep/fedavg-seed1/metrics.jsonl", process, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "2 of 2 runs are not finished; continue with: anybit sweep sweep --import tiny_models" in errors
    assert "Traceback" not in errors
    (checkpoint,) = (home / "sweep/fedavg-seed1/checkpoints").iterdir()
    assert not list((home / "sweep/mqat-seed1/checkpoints").iterdir())

    assert run(["sweep", "sweep", "--time-limit", "0", *OWN]) == 0
    assert "continue with: anybit sweep sweep --import tiny_models" in capsys.readouterr().err
    assert checkpoint.exists()
    assert run(["sweep", "sweep", *OWN]) == 0
    output = capsys.readouterr()
    first = next(line for line in output.err.splitlines() if line.startswith("fedavg-seed1"))
    assert int(first.split()[2].partition("/")[0]) > 5, "it goes on from its checkpoint"
    assert output.out.split()[:6] == ["run", "round", "rounds/s", "own", "scores", "state"]
    assert [line.split()[-1] for line in output.out.splitlines()[1:]] == ["done", "done"]


def test_a_failed_run_is_named_and_the_others_finish(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "good.toml").write_text("")
    (home / "wild.toml").write_text("[client]\nlr = 1e38\n")
    with pytest.raises(RunsFailed) as caught:
        run(["sweep", "wild.toml", "good.toml", *SHORT, "--path", "sweep"])
    assert str(caught.value) == "1 of 2 runs failed: wild-seed1; retry with: anybit sweep sweep --import tiny_models"
    assert caught.value.exit_code == 1
    assert (home / "sweep/good-seed1/evaluation.json").exists()
    wild, good = capsys.readouterr().out.splitlines()[1:]
    assert "failed: the loss is" in wild
    assert good.split()[-1] == "done"
    with pytest.raises(RunsFailed):
        run(["sweep", "sweep", *OWN])


def test_dry_run_lists_and_leaves_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", "paper/cifar10-lenet5", "rounds=5", "--seeds", "1,2", "--dry-run", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 18
    assert listed[1] == {"name": "apqn2-seed2", "recipe": "paper/cifar10-lenet5/apqn2", "overrides": ["rounds=5"],
                         "seed": 2, "rounds": 5}
    varied = ["--vary", "model.init=torch,he", "--vary", "split.alpha=0.1,1"]
    assert run(["sweep", "paper/cifar10-lenet5/qat4", "rounds=5", *varied, "--dry-run", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == [f"qat4-init-{init}-alpha-{alpha}-seed1" for init in ("torch", "he")
                                                   for alpha in ("0.1", "1")]
    assert listed[2]["overrides"] == ["rounds=5", "model.init=he", "split.alpha=0.1"]
    assert run(["sweep", "paper/cifar10-lenet5", "--dry-run"]) == 0
    assert "qat4-seed1" in capsys.readouterr().out
    assert not (home / "runs").exists()


@pytest.mark.parametrize("settings", [
    "split.name=dirichet", "split.alph=1", "split.alpha=-1", "split.clients=0", "split.examples=-1", "split.seed=3",
    "split.name=shards split.labels_per_client=0", "split.name=by_id split.clients=-1",
    "split.name=dirichlet_free split.least=0", "cohort=21", "split.name=tiny_models:empty_client split.clints=2",
    "model.name=resnet21", "model.grops=3", "model.groups=3", "model.init=hee", "model.name=other:tiny",
    "model.name=tiny_models:Normed", 'sites.full_precision=["nowhere"]',
    "variant.name=mqta", "variant.bits=[2,9]", "variant.bits=[32]", "variant.sites=X",
    "variant.name=baseline ranges.learned=true",
    "data.name=cifar11", "data.x=1", "data.name=images", "data.name=cifar10 data.crop=-1",
    "data.name=cifar10 data.evaluate=holdout", "data.name=cifar10 data.holdout=-1", "data.name=femnist data.writers=-1",
    "loss=crossentropy", "metric=acc", "device=nowhere", "compute.convolution=native engine=sequential"])
def test_a_dry_run_refuses_what_the_run_would(home: Path, monkeypatch: pytest.MonkeyPatch, settings: str) -> None:
    monkeypatch.setenv("ANYBIT_DATA", str(home / "no-data"))
    monkeypatch.setattr("anybit.kernels.native.compiled.COMPILERS", ())
    monkeypatch.setenv("CXX", "")
    said = []
    for verb in (["run", "--quiet", "--path", "run"], ["sweep", "--dry-run", "--seeds", "1,2"]):
        with pytest.raises(AnybitError) as caught:
            run([verb[0], "quickstart/mqat", *settings.split(), *verb[1:], *OWN])
        assert caught.value.exit_code == 2
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert not (home / "runs").exists()


def test_a_dry_run_looks_once_at_what_runs_share_and_at_no_finished_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(self: Components) -> nn.Module:
        built.append(self.config.model)
        return build_model(self)

    build_model = Components.build_model
    monkeypatch.setattr(Components, "build_model", build)
    assert run(["sweep", "quickstart", "--seeds", "1,2", "--vary", "model.groups=2,4", "--dry-run"]) == 0
    assert [model.arguments["groups"] for model in built] == [2, 4]
    assert run(["sweep", "quickstart/mqat", *SHORT, "--path", "sweep", "--quiet"]) == 0
    assert run(["sweep", "sweep", "--dry-run"]) == 0
    (home / "sweep/mqat-seed1/evaluation.json").unlink()
    with pytest.raises(AnybitError, match="allow it with --import tiny_models"):
        run(["sweep", "sweep", "--dry-run"])


@pytest.mark.pages
def test_every_command_of_a_report_works_in_its_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs lie elsewhere, and the report was made from a third place."""
    settings = [*SHORT, "engine=sequential", "--quiet"]
    assert run(["run", "quickstart/mqat", *settings, "--path", "away/a"]) == 0
    assert run(["sweep", "quickstart", *settings, "--path", "sweep"]) == 0
    shutil.copytree("away/a", "cut")
    for unfinished in ("cut", "sweep/mqat-seed1"):
        Path(unfinished, "evaluation.json").unlink()
    (home / "third").mkdir()
    monkeypatch.chdir("third")
    assert run(["report", "../away/a", str(home / "cut"), "../sweep", "--out", "page"]) == 0
    said = re.search(r"<pre>(.*?)</pre>", Path("page/index.html").read_text(), re.S)
    assert said is not None
    Path("page/index.html").unlink()
    monkeypatch.chdir("page")
    for line in html.unescape(said[1]).splitlines():
        assert run(shlex.split(line)[1:]) == 0, line
    assert Path("index.html").exists()
    again = {path.name.rsplit("-", 2)[0]: path for path in Path("runs").iterdir()}
    assert set(again) == {"a", "cut", "fedavg-seed1", "mqat-seed1"}
    for name, path in {"a": "away/a", "cut": "cut", "mqat-seed1": "sweep/mqat-seed1"}.items():
        assert (again[name] / "evaluation.json").read_bytes() == (home / path / "evaluation.json").read_bytes()


def test_a_live_table_fits_the_terminal_and_shows_what_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "13")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    sweep = SweepFolder(home / "sweep", plan(["quickstart/mqat"], ["rounds=9"], range(50)))
    reporter = SweepReporter(sweep, quiet=False)
    assert reporter.live is not None
    reporter.on_round("mqat-seed40", Progress(3, 9, 1.0, {"scores": {"W2": {"metric": 81.26}}}, 0.1))
    console = Console(file=io.StringIO(), width=120)
    console.print(reporter._table())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 11
    assert any(line.split() == ["mqat-seed40", "3/9", "–", "W2", "81.26", "running"] for line in lines)


def test_what_a_run_of_a_sweep_says_is_printed_with_its_name(home: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    sweep = SweepFolder(home / "sweep", plan(["quickstart/mqat"], ["rounds=9"], [1]))
    for terminal, quiet in ((True, False), (False, False), (False, True)):
        monkeypatch.setattr("sys.stderr.isatty", lambda on=terminal: on)
        SweepReporter(sweep, quiet).on_message("mqat-seed1", "5 clients at a time")
        assert ("mqat-seed1: 5 clients at a time" in capsys.readouterr().err) is not quiet


@pytest.mark.parametrize(("arguments", "message"), [
    (["sweep", "quickstart/mqt"], "did you mean 'quickstart/mqat'?"),
    (["sweep", "quickstart", "--seeds", "1,b"], "--seeds 1,b: write whole numbers with commas"),
    (["sweep", "there", "rounds=3"], "there is a sweep: it continues as it was defined"),
    (["sweep", "there", "--vary", "rounds=3,4"], "there is a sweep: it continues as it was defined"),
    (["resume", "there"], "there is a sweep: continue it with 'anybit sweep there'"),
    (["collect", "there", "--out", "all.txt"], "no run in there is finished: there is nothing to collect yet"),
    (["collect", "nowhere", "--out", "all.json"], "nowhere does not exist"),
    (["report", "nowhere", "--markdown", "x.md"], "--markdown belongs to --paper"),
    (["report", "--paper", "there"], "no finished run is a column of the paper")])
def test_one_line_and_exit_code_two(home: Path, arguments: list[str], message: str) -> None:
    (home / "there").mkdir()
    (home / "there/sweep.json").write_text('{"runs": []}')
    with pytest.raises(AnybitError) as caught:
        run(arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
