"""Planning, grouping and training many runs, and the small files that keep their results."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from anybit.cli.sweep import _resolve
from anybit.config import ComputeOptions, Config, EngineName, from_recipe
from anybit.errors import ConfigError, RunError
from anybit.sweeps.lockstep import train_side_by_side
from anybit.sweeps.plan import SweepFolder, group_key, groups, plan
from anybit.sweeps.results import read_results, write_results
from anybit.sweeps.schedule import GroupRun, SweepWatch, train_group, train_sweep
from anybit.training.course import Progress, Training
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task

MODELS = '''
import torch
from torch import nn

def tiny(hidden: int = 8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

def broken():
    raise RuntimeError("out of memory\\nand more")
'''
TINY = ["model.name=sweep_models:tiny", "rounds=4", "evaluation.every=2", "checkpoint_every=1", "client.batch_size=32",
        'evaluation.sites=["W"]', "evaluation.bits=[32,4,2]", "engine=sequential"]
TRUSTED = ["sweep_models"]
RESULTS = ("model.safetensors", "metrics.jsonl", "evaluation.json", "steps.json", "config.json", "split.safetensors")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sweep_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small sweep, trained without a break."""
    home = tmp_path_factory.mktemp("whole")
    (home / "sweep_models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        train_sweep(SweepFolder.begin(home / "sweep", plan(["quickstart"], TINY, [1, 2])), SweepWatch(), TRUSTED)
    return home / "sweep"


@pytest.fixture
def small() -> SweepFolder:
    return SweepFolder.begin(Path("sweep"), plan(["quickstart"], TINY, [1, 2]))


def test_a_plan_is_recipes_times_seeds() -> None:
    runs = plan(["paper/cifar10-lenet5", "quickstart/mqat"], ["rounds=3"], [1, 5])
    assert len(runs) == 20
    assert [run.name for run in runs[:2]] == ["apqn2-seed1", "apqn2-seed5"]
    assert [run.name for run in runs if "mqat-" in run.name and "seed5" in run.name] == [
        "cifar10-lenet5-mqat-seed5", "mqat-fixed-seed5", "mqat-full-seed5", "quickstart-mqat-seed5"]
    assert {run.config.rounds for run in runs} == {3}
    assert [run.config.seed for run in runs[:2]] == [run.seed for run in runs[:2]] == [1, 5]
    assert [run.seed for run in plan(["quickstart/mqat"], ["seed=7"])] == [7]


def test_varied_settings_are_trained_in_every_combination() -> None:
    runs = plan(["quickstart/mqat", "quickstart/fedavg"], ["rounds=3"], [1, 5],
                ["split.alpha=0.1, 10,0.1", "evaluation.bits=[32,4],[2, 3]"])
    assert len(runs) == 2 * 4 * 2
    assert [run.name for run in runs[:4]] == ["mqat-alpha-0.1-bits-32-4-seed1", "mqat-alpha-0.1-bits-32-4-seed5",
                                              "mqat-alpha-0.1-bits-2-3-seed1", "mqat-alpha-0.1-bits-2-3-seed5"]
    assert runs[2].overrides == ("rounds=3", "split.alpha=0.1", "evaluation.bits=[2, 3]")
    assert runs[2].config.evaluation.bits == (2, 3)
    assert [run.config.split.arguments["alpha"] for run in runs[::4]] == [0.1, 10, 0.1, 10]
    assert [run.seed for run in plan(["quickstart/mqat"], vary=["seed=3,4"])] == [3, 4]
    assert [run.name for run in plan(["quickstart/mqat"], vary=["data.x=-1,1,1e-3"])] == [
        "mqat-x--1-seed1", "mqat-x-1-seed1", "mqat-x-1e-3-seed1"]
    quoted = plan(["quickstart/mqat"], vary=['model.name="a,b:c",lenet5'])
    assert [run.config.model.name for run in quoted] == ["a,b:c", "lenet5"]


def test_a_folder_of_the_users_recipes(home: Path) -> None:
    (home / "mine").mkdir()
    for name in ("b", "a", "_base"):
        (home / f"mine/{name}.toml").write_text("rounds = 9\n")
    assert [run.name for run in plan(["mine"])] == ["a-seed1", "b-seed1"]
    (home / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no recipes"):
        plan(["empty"])


def test_two_recipes_never_share_a_folder(home: Path) -> None:
    for name in ("a/c", "x/c", "a-c"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / f"{name}.toml").write_text("")
    assert [run.name for run in plan(["a", "x"])] == ["a-c-seed1", "x-c-seed1"]
    with pytest.raises(ConfigError, match=r"would both be trained in the folder 'a-c-seed1'"):
        plan(["a", "x", "a-c.toml"])


@pytest.mark.parametrize(("names", "overrides", "seeds", "vary", "message"), [
    (["quickstart/mqt"], [], None, [], "did you mean 'quickstart/mqat'"), ([], [], None, [], "at least one recipe"),
    (["quickstart"], ["seed=3"], [1], [], "give one of them"),
    (["quickstart"], ["rouds=3"], None, [], "did you mean 'rounds'"),
    (["quickstart"], [], [-1], [], "seed = -1"), (["quickstart"], [], [1], ["seed=1,2"], "give one of them"),
    (["quickstart"], ["rounds=3"], None, ["rounds=1,2"], "rounds is said twice"),
    (["quickstart"], [], None, ["rounds=1", "rounds=2"], "rounds is said twice"),
    (["quickstart"], [], None, ["rouds=1,2"], "did you mean 'rounds'"),
    (["quickstart"], [], None, ["rounds=1,,2"], "--vary rounds=1,,2: write key=value,value"),
    (["quickstart"], [], None, ["rounds"], "--vary rounds: write key=value,value"),
    (["quickstart"], [], None, ["=1,2"], "write key=value"),
    (["quickstart"], [], None, [f"loss={'x' * 200},y"], "is no name of a folder: at most 200 bytes"),
    (["quickstart/mqat"], [], None, ['loss="a b","a-b"'], "would both be trained in the folder 'mqat-loss-a-b-seed1'")])
def test_a_plan_that_cannot_be(names: list[str], overrides: list[str], seeds: list[int] | None, vary: list[str],
                               message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(names, overrides, seeds, vary)
    assert message in str(caught.value)


def test_groups_share_data_and_the_settings_of_a_process() -> None:
    runs = plan(["paper/cifar10-lenet5", "paper/femnist-lenet5/mqat"], [], [1, 2])
    assert [len(group) for group in groups(runs)] == [18, 2]
    key = group_key(from_recipe("quickstart/mqat"))
    for same in ("seed=4", "variant.name=qat", "cohort=3", "split.alpha=0.3", "model.groups=4"):
        assert group_key(from_recipe("quickstart/mqat", [same])) == key, same
    for other in ("data.name=cifar10", "compute.precision=bf16", "threads=3", "device=cpu", "engine=sequential"):
        assert group_key(from_recipe("quickstart/mqat", [other])) != key, other


def test_a_sweep_is_a_folder_of_ordinary_runs(small: SweepFolder) -> None:
    states: list[tuple[str, str]] = []
    assert train_sweep(small, SweepWatch(lambda name, state, reason: states.append((name, state))), TRUSTED) == {}
    assert states == [(run.name, "done") for run in small.runs]
    content = json.loads(Path("sweep/sweep.json").read_text())["runs"]
    assert {key: content[0][key] for key in ("name", "recipe", "seed", "overrides")} == {
        "name": "fedavg-seed1", "recipe": "quickstart/fedavg", "seed": 1, "overrides": TINY}
    assert SweepFolder.open(Path("sweep")).runs == small.runs
    config = RunFolder.open(Path("sweep/mqat-seed2")).config()
    assert (config["seed"], config["device"], config["threads"]) == (2, "cpu", 1)
    assert small.unfinished() == []
    before = Path("sweep/mqat-seed2/model.safetensors").stat().st_mtime_ns
    train_sweep(small, SweepWatch(), TRUSTED)
    assert Path("sweep/mqat-seed2/model.safetensors").stat().st_mtime_ns == before, "finished runs are not trained again"


def test_what_a_killed_writer_left_behind_is_removed(small: SweepFolder) -> None:
    left = small.path / ".sweep.json.dbcd9m3f"
    left.write_text("{")
    train_sweep(small, SweepWatch(), TRUSTED)
    assert not left.exists()
    assert (small.path / "sweep.json").exists()


def test_another_definition_is_refused(small: SweepFolder, home: Path) -> None:
    SweepFolder.begin(Path("sweep"), plan(["quickstart"], TINY, [1, 2]))
    for names, overrides, seeds, how in ((["quickstart"], TINY, [1, 3], "it also has .*-seed2"),
                                         (["quickstart"], [*TINY, "rounds=5"], [1, 2, 3], "with other settings of .*-seed1"),
                                         (["quickstart/mqat"], TINY, [1, 2], "it also has fedavg-seed1")):
        with pytest.raises(RunError, match=rf"holds another sweep \({how}\): .* choose another folder with --path"):
            SweepFolder.begin(Path("sweep"), plan(names, overrides, seeds))
    (home / "run").mkdir()
    (home / "run/config.json").write_text("{}")
    with pytest.raises(RunError, match="holds a run, not a sweep"):
        SweepFolder.begin(Path("run"), small.runs)


def test_more_seeds_join_a_sweep(whole: Path, home: Path) -> None:
    """As if they had been there from the start: whether the others are finished or not."""
    train_sweep(SweepFolder.begin(Path("sweep"), plan(["quickstart"], TINY, [1])), SweepWatch(), TRUSTED)
    (home / "sweep/mqat-seed1/evaluation.json").unlink()
    longer = SweepFolder.begin(Path("sweep"), plan(["quickstart"], TINY, [2, 1]))
    assert [run.name for run in longer.unfinished()] == ["fedavg-seed2", "mqat-seed2", "mqat-seed1"]
    assert train_sweep(longer, SweepWatch(), TRUSTED) == {}
    for run, name in product(longer.runs, RESULTS):
        assert (longer.run_path(run) / name).read_bytes() == (whole / run.name / name).read_bytes(), (run.name, name)
    assert SweepFolder.open(Path("sweep")).runs == longer.runs
    assert SweepFolder.begin(Path("sweep"), longer.runs).unfinished() == []


LENET = [f"paper/{data}-lenet5/{variant}" for data in ("cifar10", "femnist") for variant in ("mqat", "qat2", "qat4")]


def test_a_short_default_folder_is_named_after_the_recipes() -> None:
    assert _resolve(["quickstart/mqat", "quickstart/fedavg", "rounds=4"], [], None, None)[1] == Path(
        "runs/sweeps/quickstart-mqat-quickstart-fedavg")


@pytest.mark.parametrize("names", [["quickstart"], LENET])
def test_more_seeds_and_values_find_the_default_folder(names: list[str]) -> None:
    runs, folder = _resolve(names, ["client.lr=0.02"], "1", None)
    SweepFolder.begin(folder, runs)
    for vary, seeds, times in (["client.lr=0.02"], "1,2", 2), (["client.lr=0.05,0.02"], "1,2,3", 6):
        more, again = _resolve(names, vary, seeds, None)
        assert again == folder
        assert len(SweepFolder.begin(again, more).runs) == times * len(runs)
    with pytest.raises(RunError, match=r"holds another sweep .* choose another folder with --path"):
        SweepFolder.begin(*reversed(_resolve(names, [], "1", None)))


def test_long_lists_of_recipes_do_not_share_a_default_folder() -> None:
    """Not even equally many, or those that begin alike."""
    folders = [_resolve(names, [], None, None)[1] for names in (LENET, LENET[::-1], [*LENET[:-1], "quickstart/mqat"])]
    assert len(set(folders)) == 3
    assert re.fullmatch(r"paper-cifar10-lenet5-mqat-and-5-more-[0-9a-f]{8}", folders[0].name)


def test_more_recipes_join_the_sweep_at_its_path() -> None:
    for names in ["quickstart/mqat"], ["quickstart/mqat", "quickstart/fedavg"]:
        runs, folder = _resolve(names, [], None, Path("mine"))
        assert len(SweepFolder.begin(folder, runs).runs) == len(names)


@pytest.mark.parametrize(("writes", "runs"), [(0, 4), (1, 4), (2, 6)])
def test_a_sweep_killed_while_it_got_more_runs_has_them_or_not(small: SweepFolder, monkeypatch: pytest.MonkeyPatch,
                                                               writes: int, runs: int) -> None:
    more, left = plan(["quickstart"], TINY, [1, 2, 3]), iter(range(writes))

    def write(path: Path, content: bytes) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        path.write_bytes(content)
    with monkeypatch.context() as patch:
        patch.setattr("anybit.sweeps.plan.write_bytes", write)
        patch.setattr("anybit.files.digests.write_bytes", write)
        with pytest.raises(KeyboardInterrupt):
            SweepFolder.begin(small.path, more)
    assert len(SweepFolder.open(small.path).runs) == runs
    assert SweepFolder.begin(small.path, more).runs == more == SweepFolder.open(small.path).runs


def test_a_signed_sweep_gets_no_more_runs(small: SweepFolder) -> None:
    (small.path / "manifest.json.sig").write_bytes(b"signed")
    with pytest.raises(RunError, match="is signed, and gets no more runs: choose another folder with --path"):
        SweepFolder.begin(small.path, plan(["quickstart"], TINY, [1, 2, 3]))
    assert SweepFolder.begin(small.path, small.runs).runs == small.runs


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": [{"name": "a"}]}', '{"runs": [3]}'])
def test_a_damaged_sweep_is_named(small: SweepFolder, content: str) -> None:
    Path("sweep/manifest.json").unlink()  # which would tell
    Path("sweep/sweep.json").write_text(content)
    with pytest.raises(RunError, match=r"sweep\.json"):
        SweepFolder.open(Path("sweep"))


@pytest.mark.parametrize("name", ["../elsewhere", "x" * 300, "a\0b", ".."])
def test_a_run_of_a_sweep_stays_inside_its_folder(small: SweepFolder, name: str) -> None:
    content = json.loads(Path("sweep/sweep.json").read_text())
    content["runs"][0]["name"] = name
    Path("sweep/manifest.json").unlink()
    Path("sweep/sweep.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="is no name of a folder"):
        SweepFolder.open(Path("sweep"))


def test_a_failed_run_does_not_stop_the_others(home: Path) -> None:
    """One diverges, one has a model that cannot be built; both are tried again by the next call."""
    for name, lines in (("a", "[client]\nlr = 1e38"), ("b", '[model]\nname = "sweep_models:broken"'), ("c", "")):
        (home / f"{name}.toml").write_text(f"{lines}\n")
    names = [f"{name}.toml" for name in "abc"]
    overrides = [o for o in TINY if not o.startswith("model.name")]
    runs = [run for i, name in enumerate(names)
            for run in plan([name], [*overrides, *(TINY[:1] if i != 1 else [])])]
    sweep, states = SweepFolder.begin(Path("sweep"), runs), list[tuple[str, str, str]]()
    watch = SweepWatch(lambda *state: states.append(state))
    failed = train_sweep(sweep, watch, TRUSTED)
    assert set(failed) == {"a-seed1", "b-seed1"}
    assert "lower client.lr" in failed["a-seed1"]
    assert failed["b-seed1"] == "model 'sweep_models:broken' with {}: out of memory"
    assert ("c-seed1", "done", "") in states
    assert not Path("sweep/b-seed1").exists(), "a run that cannot start leaves no folder"
    models = Path("sweep_models.py").read_text().replace('raise RuntimeError("out of memory\\nand more")', "return tiny()")
    Path("sweep_models.py").write_text(models)
    del sys.modules["sweep_models"]
    assert set(train_sweep(sweep, watch, TRUSTED)) == {"a-seed1"}


def test_an_open_engine_is_chosen_once_and_kept(small: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(config: Config, task: Task, say: Callable[[str], None]) -> Config:
        assert task.model is not None
        say("the stacked engine")
        return replace(config, engine="stacked")

    said = list[tuple[str, str]]()
    monkeypatch.setattr("anybit.training.opening.with_engine", chosen)
    watch = SweepWatch(on_message=lambda *message: said.append(message))
    train_sweep(small, watch, TRUSTED)
    assert [each for each in said if "engine" in each[1]] == [(run.name, "the stacked engine") for run in small.runs]
    assert ("mqat-seed1", "evaluating at all widths") in said
    assert {json.loads((small.run_path(run) / "config.json").read_text())["engine"] for run in small.runs} == {"stacked"}
    (small.path / "mqat-seed2/evaluation.json").unlink()
    said.clear()
    train_sweep(small, watch, TRUSTED)
    assert said == [("mqat-seed2", "evaluating at all widths")]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_every_run_computes_with_its_own_threads_and_convolutions(engine: EngineName, small: SweepFolder,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a group are opened before the first of them trains, and each may have been given another choice."""
    def chosen(config: Config, task: Task, say: Callable[[str], None]) -> Config:
        return replace(config, engine=engine, threads=1 + config.seed, compute=ComputeOptions(convolution="no-onednn"))

    seen = set[tuple[str, int, bool]]()

    def on_round(name: str, progress: Progress) -> None:
        seen.add((name[-1], torch.get_num_threads(), torch.backends.mkldnn.enabled))

    monkeypatch.setattr("anybit.training.opening.with_engine", chosen)
    threads = torch.get_num_threads()
    try:
        assert train_sweep(small, SweepWatch(on_round=on_round), TRUSTED) == {}
    finally:
        torch.set_num_threads(threads)
    assert seen == {("1", 2, False), ("2", 3, False)}


def test_a_stopped_sweep_goes_on_with_every_run_at_its_own_round(small: SweepFolder, whole: Path) -> None:
    seen: list[tuple[str, int]] = []
    for stop_at in (("fedavg-seed1", 3), ("mqat-seed1", 2)):
        watch = SweepWatch()

        def on_round(name: str, progress: Progress, watch: SweepWatch = watch, at: tuple[str, int] = stop_at) -> None:
            seen.append((name, progress.round))
            watch.stop = (name, progress.round) == at

        watch.on_round = on_round
        train_sweep(small, watch, TRUSTED)
    assert seen == [("fedavg-seed1", 1), ("fedavg-seed1", 2), ("fedavg-seed1", 3), ("fedavg-seed1", 4),
                    *(("fedavg-seed2", i) for i in range(1, 5)), ("mqat-seed1", 1), ("mqat-seed1", 2)]
    (small.path / "mqat-seed2/config.json").unlink()  # as if killed in the moment it was created
    train_sweep(small, SweepWatch(), TRUSTED)
    for run in small.runs:
        for name in RESULTS:
            assert (small.run_path(run) / name).read_bytes() == (whole / run.name / name).read_bytes(), (run, name)


def test_when_the_time_is_over_nothing_more_is_begun(small: SweepFolder) -> None:
    train_sweep(small, SweepWatch(deadline=time.monotonic() - 1), TRUSTED)
    assert not small.run_path(small.runs[0]).exists()
    seen: list[int] = []
    watch = SweepWatch(deadline=time.monotonic() + 1e6)

    def on_round(name: str, progress: Progress) -> None:
        seen.append(progress.round)
        watch.deadline = time.monotonic()

    watch.on_round = on_round
    train_sweep(small, watch, TRUSTED)
    assert seen == [1]
    assert [p.name for p in (small.run_path(small.runs[0]) / "checkpoints").iterdir()] == ["round-000001.safetensors"]


def test_a_group_is_given_to_one_function(small: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What trains runs side by side takes its place: all runs of a group come together, with the data once."""
    asked: list[list[GroupRun]] = []

    def together(runs: list[GroupRun]) -> Any:
        asked.append(list(runs))
        return train_group(runs)

    monkeypatch.setattr("anybit.sweeps.schedule.train_group", together)
    train_sweep(small, SweepWatch(), TRUSTED)
    assert [len(group) for group in asked] == [4]
    assert len({run.opened.computation.task.data.train.x.data_ptr() for run in asked[0]}) == 1


def test_runs_of_the_same_operations_go_side_by_side(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stacked engine all four runs are one program, stopped in the middle and gone on with."""
    programs: list[int] = []

    def counted(trainings: dict[str, Training]) -> Any:
        programs.append(len(trainings))
        return train_side_by_side(trainings)

    monkeypatch.setattr("anybit.sweeps.schedule.train_side_by_side", counted)
    runs = plan(["quickstart"], [*TINY[:-1], "engine=stacked"], [1, 2])
    sweep, watch = SweepFolder.begin(Path("sweep"), runs), SweepWatch()
    watch.on_round = lambda name, progress: setattr(watch, "stop", progress.round == 2)
    train_sweep(sweep, watch, TRUSTED)
    assert sweep.unfinished() == runs
    train_sweep(sweep, SweepWatch(), TRUSTED)
    assert programs == [4, 4]
    for run in runs:
        ours, alone = (RunFolder(folder / run.name) for folder in (sweep.path, whole))
        for name, w in alone.model().items():
            assert torch.allclose(w, ours.model()[name], atol=2e-3), (run.name, name)
        assert [e["round"] for e in ours.lines("metrics")] == [1, 2, 3, 4]


def test_a_sweep_in_use_is_locked(small: SweepFolder) -> None:
    with small.locked(), pytest.raises(RunError, match="in use by another process"):
        train_sweep(small, SweepWatch(), TRUSTED)


@pytest.fixture
def trained(whole: Path) -> SweepFolder:
    shutil.copytree(whole, "sweep")
    return SweepFolder.open(Path("sweep"))


def test_results_come_home_in_one_file(trained: SweepFolder) -> None:
    found = read_results([trained.path])
    assert [r.name for r in found.results] == [run.name for run in trained.runs]
    assert found.unfinished == []
    result, folder = found.results[3], RunFolder.open(trained.run_path(trained.runs[3]))
    assert (result.config, result.evaluation, result.seed) == (folder.config(), folder.evaluation(), 2)
    metrics = folder.lines("metrics")
    assert [p.round for p in result.curve] == [2, 4]
    assert result.curve[1].loss == pytest.approx((metrics[2]["loss"] + metrics[3]["loss"]) / 2)
    assert result.curve[1].scores == metrics[3]["evaluation"]["scores"]
    assert result.seconds >= 0
    assert result.environment["torch"]
    write_results(found.results, Path("out/all.json"))
    assert read_results([Path("out/all.json")]).results == found.results
    write_results(found.results, Path("out/all.csv"))
    rows = list(csv.DictReader(Path("out/all.csv").read_text().splitlines()))
    assert len(rows) == sum(len(s) for r in found.results for s in r.evaluation["grid"].values())
    assert float(rows[-1]["metric"]) == list(result.evaluation["grid"].values())[-1]["W2"]["metric"]


def test_a_csv_has_a_column_for_every_setting_that_differs(trained: SweepFolder) -> None:
    """After what says which line it is and before the figures; what is the same everywhere is left out."""
    runs = plan(["quickstart/mqat"], TINY, [1], ["client.lr=0.05,0.1", "variant.bits=[2],[2, 32]", "model.hidden=8"])
    varied = SweepFolder.begin(Path("varied"), runs)
    assert train_sweep(varied, SweepWatch(), TRUSTED) == {}
    write_results(read_results([varied.path]).results, Path("varied.csv"))
    head, *lines = csv.reader(Path("varied.csv").read_text().splitlines())
    assert head == ["run", "data", "model", "variant", "seed", "rounds", "steps", "own", "width", "variant.bits",
                    "client.lr", "loss", "metric", "seconds", "device"]
    assert {(line[0], *line[9:11]) for line in lines} == {
        ("mqat-lr-0.05-bits-2-hidden-8-seed1", "[2]", "0.05"), ("mqat-lr-0.1-bits-2-hidden-8-seed1", "[2]", "0.1"),
        ("mqat-lr-0.05-bits-2-32-hidden-8-seed1", "[2, 32]", "0.05"),
        ("mqat-lr-0.1-bits-2-32-hidden-8-seed1", "[2, 32]", "0.1")}
    same, clipped = read_results([trained.path]).results[2:]
    write_results([same, replace(clipped, config={**clipped.config, "loss": "mine:loss", "client": {
        **clipped.config["client"], "clip": 0.5}})], Path("clip.csv"))
    rows = list(csv.DictReader(Path("clip.csv").read_text().splitlines()))
    assert {(row["seed"], row["client.clip"]) for row in rows} == {("1", ""), ("2", "0.5")}
    assert len(rows[0]) == 14, "seed and loss are columns already"


def test_unfinished_runs_are_named(trained: SweepFolder) -> None:
    (trained.path / "mqat-seed1/evaluation.json").unlink()
    found = read_results([trained.path, trained.path / "fedavg-seed1"])
    assert found.unfinished == ["sweep/mqat-seed1"]
    assert [r.name for r in found.results] == ["fedavg-seed1", "fedavg-seed2", "mqat-seed2", "fedavg-seed1"]


@pytest.mark.parametrize("damage", [lambda t: t[:50], lambda t: "[]", lambda t: '{"runs": [{}]}',
                                    lambda t: t.replace('"grid"', '"gird"'), lambda t: t.replace('"rounds"', '"ronds"')])
def test_a_damaged_results_file_is_named(trained: SweepFolder, damage: Callable[[str], str]) -> None:
    write_results(read_results([trained.path]).results, Path("all.json"))
    Path("all.json").write_text(damage(Path("all.json").read_text()))
    with pytest.raises(RunError, match=r"all\.json"):
        read_results([Path("all.json")])
