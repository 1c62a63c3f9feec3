from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from anybit.errors import RunError
from anybit.report.read import read_runs, unique_names

Copied = Callable[[str, str], Path]


def test_a_finished_run_is_read_whole(trained: Path) -> None:
    (run,) = read_runs([trained / "mqat"])
    assert (run.name, run.variant, run.metric.name, run.own, run.sites) == ("mqat", "mqat", "accuracy", "table", "W")
    assert run.finished
    assert run.rounds == len(run.metrics) == len(run.timing) == 3
    assert run.split_sizes == [12, 28]
    assert run.bits == [8, 4, 2]
    assert run.lowest == "W2"
    assert run.weights["0.weight"].shape == (4, 1, 3, 3)
    assert set(run.steps) == {f"{layer}.{kind}_quantizer" for layer in "035" for kind in ("weight", "input")}


def test_an_unfinished_run_shows_its_newest_evaluation_and_checkpoint(trained: Path) -> None:
    (run,) = read_runs([trained / "stopped"])
    logged = [json.loads(line) for line in (trained / "stopped" / "metrics.jsonl").read_text().splitlines()]
    assert not run.finished
    assert run.metric is None
    assert run.rounds < 3
    assert run.scores == logged[-1]["evaluation"]["scores"]
    assert "5.weight" in run.weights
    assert "5.weight_quantizer" in run.steps


def test_names_are_folder_names_made_unique(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a" / "mqat", tmp_path / "b" / "mqat", tmp_path / "b" / "qat"
    assert unique_names([a, b, c]) == ["a/mqat", "b/mqat", "qat"]
    assert unique_names([c, c, c]) == ["qat", "qat (2)", "qat (3)"]
    assert unique_names([tmp_path / "x\x01y"]) == ["x�y"]


def test_a_folder_that_is_no_run_is_named(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere does not exist"):
        read_runs([tmp_path / "nowhere"])
    with pytest.raises(RunError, match=r"no config\.json"):
        read_runs([tmp_path])
    with pytest.raises(RunError, match="a folder of runs"):
        read_runs([trained])
    with pytest.raises(RunError, match="no run given"):
        read_runs([])


@pytest.mark.parametrize(("file", "content", "message"), [
    ("evaluation.json", "[]", "not an evaluation"),
    ("evaluation.json", '{"metric": "accuracy"}', "not an evaluation"),
    ("evaluation.json", "{", "not readable as JSON"),
    ("config.json", "[]", "not a config"),
    ("metrics.jsonl", '{"loss": 1.0}\n', "line 1, is not a round"),
])
def test_damaged_files_are_named(copied: Copied, file: str, content: str, message: str) -> None:
    path = copied("mqat", "damaged")
    (path / file).write_text(content)
    with pytest.raises(RunError, match=message) as error:
        read_runs([path])
    assert file in str(error.value)


def test_a_score_that_is_not_finite_counts_as_missing(copied: Copied) -> None:
    path = copied("mqat", "infinite")
    evaluation = json.loads((path / "evaluation.json").read_text())
    evaluation["grid"]["table"]["W2"] = {"loss": float("nan"), "metric": 50.0}
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    (run,) = read_runs([path])
    assert run.scores["W2"] == {"metric": 50.0}


def test_a_sweep_is_all_its_runs(copied: Copied) -> None:
    home = copied("mqat", "b").parent
    copied("baseline", "a")
    (home / "sweep.json").write_text("{}")
    assert [run.name for run in read_runs([home])] == ["a", "b"]
