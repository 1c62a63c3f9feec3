from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from anybit.federated.metrics import Meaning
from anybit.report.read import read_runs
from anybit.report.tables import (
    accuracy_table,
    config_differences,
    environment_rows,
    grid_csv,
    grid_table,
    shared_metric,
    sorted_widths,
)
from anybit.training.reading import RunRecord

Copied = Callable[[str, str], Path]


@pytest.fixture
def runs(trained: Path) -> list[RunRecord]:
    return read_runs([trained / name for name in ("baseline", "mqat", "qat", "stopped")])


def edited(path: Path, metric: str, meaning: dict[str, str | None] | None = None, **scores: float) -> Path:
    """A run with other scores at its own steps."""
    evaluation = json.loads((path / "evaluation.json").read_text())
    evaluation |= {"metric": metric, **(meaning or {})}
    for width, value in scores.items():
        evaluation["grid"][evaluation["own"]][width]["metric"] = value
    (path / "evaluation.json").write_text(json.dumps(evaluation))
    return path


def test_values_are_those_of_evaluation_json_at_the_own_steps(trained: Path, runs: list[RunRecord]) -> None:
    table = accuracy_table(runs)
    assert table.columns == ("width", "baseline", "mqat", "qat", "stopped")
    for column, name in enumerate(("baseline", "mqat", "qat")):
        evaluation = json.loads((trained / name / "evaluation.json").read_text())
        own = evaluation["grid"][evaluation["own"]]
        assert {r.width: r.values[column] for r in table.rows if r.values[column] is not None} == {
            width: score["metric"] for width, score in own.items()}


def test_runs_with_different_widths_leave_cells_empty(runs: list[RunRecord]) -> None:
    table = accuracy_table(runs)
    assert [row.width for row in table.rows] == ["FP32", "W8", "W4", "W3", "W2", "A4", "A3", "WA4", "WA3"]
    cells = {row[0]: row[1:] for row in table.cells()}
    assert cells["W3"][:2] == ["–", "–"]
    assert cells["W2"][2] == "–"
    assert [row.group for row in table.rows][::4] == ["full precision", "weights", "weights and activations"]
    assert not any(next(row for row in table.rows if row.width == "A4").best), "nothing to compare with"


def test_the_best_of_a_row_is_marked_and_ties_all_are(copied: Copied) -> None:
    first = edited(copied("mqat", "first"), "accuracy", FP32=80.0, W4=70.001, W2=10.0)
    second = edited(copied("mqat", "second"), "accuracy", FP32=79.0, W4=70.004, W2=30.0)
    table = accuracy_table(read_runs([first, second]))
    marks = {cells[0]: mark[1:] for cells, mark in zip(table.cells(), table.marks(), strict=True)}
    assert marks["FP32"] == [True, False]
    assert marks["W4"] == [True, True]
    assert marks["W2"] == [False, True]


def test_a_single_run_has_no_best(runs: list[RunRecord]) -> None:
    assert not any(any(row) for row in accuracy_table(runs[:1]).marks())


@pytest.mark.parametrize(("better", "best"), [("lower", (False, True)), ("higher", (True, False)), (None, (False, False))])
def test_the_best_follows_the_metrics_direction(copied: Copied, better: str | None, best: tuple[bool, bool]) -> None:
    first = edited(copied("mqat", "first"), "squared_error", {"better": better, "unit": "°C²"}, FP32=0.2)
    second = edited(copied("mqat", "second"), "squared_error", {"better": better, "unit": "°C²"}, FP32=0.1)
    runs = read_runs([first, second])
    table = accuracy_table(runs)
    assert table.score.name == "squared_error"
    assert table.as_json()["better"] == better
    assert table.rows[0].best == best
    assert grid_csv(runs).splitlines()[0].endswith("loss,squared_error (°C²)")


def test_runs_with_different_metrics_are_compared_by_loss(copied: Copied, trained: Path) -> None:
    runs = read_runs([edited(copied("mqat", "other"), "f1"), trained / "mqat"])
    assert shared_metric(runs) is None
    table = accuracy_table(runs)
    assert table.score == Meaning("loss", "lower", "")
    assert table.rows[0].values[0] == runs[0].scores["FP32"]["loss"]


def test_json_names_the_best(runs: list[RunRecord]) -> None:
    table = accuracy_table(runs[:2])
    content = json.loads(json.dumps(table.as_json()))
    row = content["rows"][0]
    best = max(row["values"].values())
    assert row["width"] == "FP32"
    assert row["best"] == [name for name, value in row["values"].items() if value == best]


def test_csv_has_all_digits_and_empty_cells(runs: list[RunRecord]) -> None:
    table = accuracy_table(runs)
    lines = list(csv.reader(io.StringIO(table.as_csv())))
    assert lines[0] == list(table.columns)
    for line, row in zip(lines[1:], table.rows, strict=True):
        assert [float(cell) if cell else None for cell in line[1:]] == list(row.values)


def test_grid_csv_has_every_score(runs: list[RunRecord]) -> None:
    lines = list(csv.DictReader(io.StringIO(grid_csv(runs))))
    assert len(lines) == sum(len(scores) for run in runs for scores in run.grid.values())
    line = next(line for line in lines if (line["run"], line["steps"], line["width"]) == ("qat", "rule", "WA3"))
    assert float(line["loss"]) == runs[2].grid["rule"]["WA3"]["loss"]


def test_the_grid_of_a_run_has_its_step_rules_as_columns(runs: list[RunRecord]) -> None:
    assert runs[2].evaluation is not None
    assert grid_table(runs[2]).columns == ("width", *runs[2].evaluation["grid"])
    assert grid_table(runs[2], "loss").rows[0].values[0] == runs[2].grid["rule"]["FP32"]["loss"]


def test_only_what_differs_in_the_configs(runs: list[RunRecord]) -> None:
    assert config_differences(runs[:1]) == []
    assert config_differences([runs[1], runs[1]]) == []
    differences = dict(config_differences([runs[1], runs[2]]))
    assert differences == {"variant.name": ["mqat", "qat"], "variant.bits": ["2, 3, 4, 6, 8, 32", "4"],
                           "evaluation.bits": ["32, 8, 4, 2", "32, 4, 3"], "evaluation.sites": ["W", "W, A, WA"]}


def test_environments_are_folded_where_equal(copied: Copied, trained: Path) -> None:
    path = copied("mqat", "elsewhere")
    (path / "environment.json").write_text('{"anybit": "0.1.0", "machine": "arm64", "gpu": null}')
    rows = environment_rows(read_runs([trained / "mqat", path]))
    assert rows == [("anybit", ["0.1.0"]), ("machine", ["x86_64", "arm64"]), ("gpu", ["–", "none"])]


def test_widths_are_sorted_by_sites_and_bits() -> None:
    assert sorted_widths(["W4A8", "WA2", "A8", "W2", "W8", "FP32", "WA8"]) == [
        "FP32", "W8", "W2", "A8", "WA8", "WA2", "W4A8"]
