"""auto measures, chooses, remembers; and keeps out of the way where that does not pay."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import anybit
from anybit.cli.main import run
from anybit.config import Config, from_recipe
from anybit.engines.stacked import Stacked
from anybit.errors import ModelError
from anybit.training import engine_choice
from anybit.training.computation import open_computation
from anybit.training.course import Progress
from anybit.training.engine_choice import Candidate, Measured, best, example_task, measure, round_seconds, with_engine
from anybit.training.machine import open_engine
from anybit.training.task import Task

SPEEDS = {"sequential": 10.0, "processes": 4.0, "stacked": 30.0}


@pytest.fixture
def task() -> Task:
    return example_task(nn.Sequential(nn.Conv2d(3, 2, 5, stride=4), nn.Flatten(), nn.Linear(98, 10)), clients=3, images=20)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Candidate]:
    """Every measurement is made up, and noted; the cache is an empty folder."""
    seen: list[Candidate] = []

    def seconds(config: Config, task: Task, candidate: Candidate) -> float:
        seen.append(candidate)
        return SPEEDS[candidate.engine] * (0.5 if candidate.convolution == "channels-last" else 1.0) * candidate.threads

    monkeypatch.setattr(engine_choice, "round_seconds", seconds)
    monkeypatch.setattr(engine_choice, "_has_native", lambda model: False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setenv("ANYBIT_DATA", str(tmp_path))
    return seen


def test_the_fastest_is_chosen_said_and_remembered(task: Task, counted: list[Candidate], tmp_path: Path) -> None:
    said: list[str] = []
    config = with_engine(Config(cohort=3), task, said.append)
    assert (config.engine, config.threads, config.compute.convolution) == ("processes", 1, "channels-last")
    assert len(said) == 1
    assert "processes engine, 1 thread, channels-last convolutions" in said[0]
    assert {c.engine for c in counted} == {"sequential", "processes", "stacked"}
    assert {c.threads for c in counted} == {1, 2}
    before = len(counted)
    assert with_engine(Config(cohort=3), task) == config
    assert len(counted) == before
    assert with_engine(Config(cohort=2), task).engine == "processes"
    assert len(counted) > before


def test_what_a_busy_machine_shows_is_not_remembered(task: Task, counted: list[Candidate], tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that waits for the processor, as this one sleeps, is good for one run."""
    made_up, said = engine_choice.round_seconds, list[str]()

    def waiting(config: Config, task: Task, candidate: Candidate) -> float:
        time.sleep(0.3 if not counted else 0)
        return made_up(config, task, candidate)

    monkeypatch.setattr(engine_choice, "round_seconds", waiting)
    assert with_engine(Config(cohort=3), task, said.append).engine == "processes"
    assert "the machine is busy, so the next run measures again" in said[0]
    assert not (tmp_path / engine_choice.FILE).exists()
    before = len(counted)
    assert with_engine(Config(cohort=3), task, said.append).engine == "processes"
    assert len(counted) > before
    assert "busy" not in said[1]
    assert (tmp_path / engine_choice.FILE).exists()


@pytest.mark.parametrize("content", ["", "[1]", '{"x": 3', '{"KEY": {"engine": "warp"}}', '{"KEY": 7}'])
def test_a_damaged_cache_is_ignored_and_rewritten(task: Task, counted: list[Candidate], tmp_path: Path,
                                                  content: str) -> None:
    key = engine_choice._key(Config(cohort=3), task)
    (tmp_path / engine_choice.FILE).write_text(content.replace("KEY", key))
    assert with_engine(Config(cohort=3), task).engine == "processes"
    assert json.loads((tmp_path / engine_choice.FILE).read_text())[key]["engine"] == "processes"


def test_native_kernels_that_are_gone_are_no_longer_chosen(task: Task, counted: list[Candidate],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = Measured(Candidate("processes", 1, "native"), 1.0)
    engine_choice._remember(engine_choice._key(Config(cohort=3), task), chosen)
    assert with_engine(Config(cohort=3), task).compute.convolution == "channels-last"
    engine_choice._remember(engine_choice._key(Config(cohort=3), task), chosen)
    monkeypatch.setattr(engine_choice, "_has_native", lambda model: True)
    assert with_engine(Config(cohort=3), task).compute.convolution == "native"


def test_nothing_is_measured_where_the_choice_is_made_or_does_not_pay(task: Task, counted: list[Candidate],
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    given = Config(cohort=3, engine="stacked")
    assert with_engine(given, task) == given
    assert not counted
    short = Config(cohort=3, rounds=2)
    assert with_engine(short, task) == short
    assert len(counted) == 1
    monkeypatch.setenv("ANYBIT_CALIBRATION", "off")
    assert with_engine(Config(cohort=3), task) == Config(cohort=3)
    assert len(counted) == 1


def test_threads_that_the_user_names_are_kept(task: Task, counted: list[Candidate]) -> None:
    assert with_engine(Config(cohort=3, threads=1), task).threads == 1
    assert {c.threads for c in counted} == {1}
    assert len(counted) == len(set(counted)) + 1  # the first one is measured once to see whether it pays


def test_another_engine_must_be_clearly_faster() -> None:
    simple = Measured(Candidate("sequential", 1, "default"), 1.0)
    close = Measured(Candidate("stacked", 1, "default"), 0.95)
    fast = Measured(Candidate("processes", 1, "default"), 0.6)
    assert best([simple, close]) == simple
    assert best([simple, close, fast]) == fast


def test_measuring_really_runs_every_candidate(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native kernels have their own test, where they are compiled."""
    monkeypatch.setattr(engine_choice, "_has_native", lambda model: False)
    table = list(measure(Config(cohort=3), task))
    assert all(m.seconds > 0 for m in table)
    assert {m.candidate.convolution for m in table} == {"default", "channels-last", "no-onednn"}
    assert {"sequential", "stacked"} <= {m.candidate.engine for m in table}


def test_what_is_made_once_is_not_part_of_a_round(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first pass of 5 s, which made everything, and one of 1 s: 20 images in 1 s, times 3 clients."""
    clock = iter([0.0, 5.0, 5.0, 6.0])
    monkeypatch.setattr(engine_choice.time, "perf_counter", lambda: next(clock))
    assert round_seconds(Config(cohort=3), task, Candidate("sequential", 1, "default")) == pytest.approx(3)


def test_fit_keeps_the_choice_and_resumes_with_it(counted: list[Candidate], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    clients = [(draw.normal(size=(9, 4)).astype(np.float32), draw.integers(3, size=9)) for _ in range(3)]
    settings = {"rounds": 8, "cohort": 2, "checkpoint_every": 3, "path": tmp_path / "run"}
    model = nn.Sequential(nn.Linear(4, 3))

    def stop(progress: Progress) -> None:
        if progress.round == 4:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        anybit.fit(model, clients, clients[0], on_round=stop, **settings)  # type: ignore[arg-type]
    stored = json.loads((tmp_path / "run/config.json").read_text())
    assert stored["engine"] == "processes"
    before = len(counted)
    anybit.fit(model, clients, clients[0], resume=True, **settings)  # type: ignore[arg-type]
    assert len(counted) == before
    assert json.loads((tmp_path / "run/config.json").read_text()) == stored


def test_a_dry_run_is_estimated_with_the_engine_that_the_run_will_take(counted: list[Candidate],
                                                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "quickstart/mqat", "engine=auto", "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    shown = json.loads(captured.out)
    assert (shown["config"]["engine"], shown["config"]["threads"]) == ("processes", 1)
    assert "processes engine, 1 thread" in captured.err
    assert shown["cost"]["seconds"] > 0


def test_an_engine_that_the_user_names_is_kept(task: Task) -> None:
    assert with_engine(replace(Config(), engine="processes"), task).engine == "processes"


class Decides(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x if bool((x > 0).any()) else -x)
        return out


class Recomputed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out


@pytest.mark.parametrize(("model", "reason"), [(Decides, "decides by values"), (Recomputed, "torch.utils.checkpoint")])
def test_away_from_the_cpu_clients_are_stacked_or_it_is_said_why_not(task: Task, monkeypatch: pytest.MonkeyPatch,
                                                                     model: type[nn.Sequential], reason: str) -> None:
    """The data of a sweep are on its device before the model is; the meta device stands for one, as it computes shapes."""
    device, said = torch.device("meta"), list[str]()
    monkeypatch.setattr(engine_choice, "pick_device", lambda name: device)
    away = replace(task, data=task.data.to(device))
    assert with_engine(Config(cohort=3), away, said.append).engine == "auto"
    assert said == []
    other = replace(task, model=model(nn.Flatten(), nn.Linear(3072, 10)))
    assert with_engine(Config(cohort=3), other, said.append).engine == "sequential"
    assert [line for line in said if "one after another" in line and reason in line] == said != []


def test_a_model_that_is_computed_again_for_its_gradient_is_refused_by_the_stacked_engine(task: Task) -> None:
    given = replace(task, model=Recomputed(nn.Flatten(), nn.Linear(3072, 10)))
    with pytest.raises(ModelError, match=r"\(its forward is computed again .*\): use engine 'sequential' or 'processes'"):
        open_computation(given, Config(cohort=3, engine="stacked", device="cpu"))


@pytest.mark.parametrize(("recipe", "weights", "overrides", "compiled"), [
    ("tinyimagenet-resnet18", 11_279_112, (), True), ("tinyimagenet-resnet18", 11_279_112, ("rounds=88",), False),
    ("cifar10-resnet20", 269_722, (), False), ("cifar10-resnet20", 269_722, ("compute.compile=true",), True),
    ("tinyimagenet-resnet18", 11_279_112, ("compute.compile=false",), False)])
def test_a_step_is_compiled_where_a_run_gets_the_time_back(recipe: str, weights: int, overrides: tuple[str, ...],
                                                           compiled: bool) -> None:
    """4,500 rounds · 100 clients · 1.1·10⁷ weights = 5·10¹² are enough, 5,000 · 10 · 2.7·10⁵ = 1.4·10¹⁰ are not."""
    engine = open_engine(from_recipe(f"paper/{recipe}/mqat", overrides), torch.device("cuda"), weights)
    assert isinstance(engine, Stacked)
    assert engine.compiled is compiled
    assert bool(engine.slow_start) is compiled
