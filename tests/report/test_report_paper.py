"""Ours against the paper's, from results whose figures are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anybit.cli.main import run
from anybit.config import from_recipe
from anybit.errors import RunError
from anybit.quant.grid import Width
from anybit.report.style import styled
from anybit.reproduction import text as paper_text
from anybit.reproduction.agreement import Count, agreement, count
from anybit.reproduction.compare import Measured, compare
from anybit.reproduction.facts import facts
from anybit.reproduction.overfitting import courses
from anybit.reproduction.plots import paper_plots
from anybit.schema import plain
from anybit.sweeps.results import Point, Result, write_results
from anybit.training.build import Components, settled

BITS = (32, 8, 6, 4, 3, 2)
LENET = "paper/cifar10-lenet5"


def result(recipe: str, seed: int, accuracies: dict[int, float], again: dict[int, float] | None = None,
           overrides: tuple[str, ...] = ()) -> Result:
    """A finished run with these accuracies; `again`: with re-estimated steps."""
    config = settled(from_recipe(recipe, [f"seed={seed}", *overrides]))
    variant = Components(config).build_variant()

    def scores(values: dict[int, float]) -> dict[str, dict[str, float]]:
        return {str(Width.of(sites, b)): {"loss": 1.0, "metric": v} for sites in ("W", "A", "WA") for b, v in values.items()}  # type: ignore[arg-type]

    grid = {variant.evaluate: scores(accuracies)}
    if variant.evaluate != "mse":
        grid["mse"] = scores(again or accuracies)
    curve = tuple(Point(r, 1.0, {str(Width.of(variant.sites, b)): {"loss": r / b + seed, "metric": float(b)} for b in BITS})
                  for r in (100, 200))
    return Result(f"{recipe.rpartition('/')[2]}-seed{seed}", plain(config),
                  {"metric": "accuracy", "variant": variant.name, "own": variant.evaluate, "sites": variant.sites,
                   "test_examples": 10_000, "grid": grid}, curve, 7200.0, {"gpu": "a GPU", "torch": "2.11"})


def papers(recipe: str, column: str, shift: float = 0.0) -> dict[int, float]:
    """The paper's own figures, moved."""
    columns = [table.columns[column] for table in facts().tables.values() if column in table.columns]
    figures = next(found.values for found in columns if found.recipe == recipe)
    return {bits: value + shift for bits, value in figures.items()}


@pytest.fixture
def results() -> list[Result]:
    """LeNet-5: a baseline over two seeds, QAT(4) that hangs on its steps, and MQAT on all bits, which the paper lacks."""
    base = papers(f"{LENET}/baseline", "baseline")
    qat = papers(f"{LENET}/qat4", "qat4")
    return [result(f"{LENET}/baseline", 1, {b: v + 1 for b, v in base.items()}),
            result(f"{LENET}/baseline", 2, {b: v - 2 for b, v in base.items()}),
            result(f"{LENET}/qat4", 1, {**qat, 2: 17.0}, {**qat, 2: 61.0}),
            result(f"{LENET}/mqat-full", 1, dict.fromkeys(BITS, 66.0))]


def test_cells_are_means_over_seeds(results: list[Result]) -> None:
    (table,) = compare(results).tables
    cell = table.columns["baseline"].cells[2]
    assert cell.ours == Measured(pytest.approx(48.18), pytest.approx(1.5 * 2**0.5))
    assert cell.paper == 48.68
    assert cell.difference == pytest.approx(-0.5)
    assert cell.within
    assert table.columns["baseline"].seeds == (1, 2)
    assert table.columns["kure"].cells[2].ours is None
    qat = table.columns["qat4"].cells
    assert qat[2].within is False
    assert qat[2].suspect
    assert qat[2].depends_on_steps
    assert not qat[4].depends_on_steps
    assert qat[2].reestimated == Measured(61.0, None)
    assert table.columns["mqat_full"].cells[2].paper is None


def test_rows_to_print(results: list[Result]) -> None:
    (table,) = compare(results).tables
    lines = {line[0].strip(): line[1:] for line in paper_text.rows(table)[:3]}
    assert lines == {"Baseline, ours": ["68.50 ± 2.12", "68.52 ± 2.12", "68.22 ± 2.12", "67.74 ± 2.12", "66.32 ± 2.12",
                                        "48.18 ± 2.12"],
                     "paper": ["69.00", "69.02", "68.72", "68.24", "66.82", "48.68"], "difference": ["−0.50"] * 6}
    names = [line[0].strip() for line in paper_text.rows(table)]
    assert names[3:] == ["QAT (W-4), ours", "re-estimated", "paper", "difference", "MQAT-W (2…32), ours"]
    assert paper_text.rows(table)[6][-1] == "−44.44 !"
    assert paper_text.rows(table)[5][-1] == "61.44 ?"
    assert any("61.44 at 2 bits is above 58.4" in note for note in paper_text.notes(table))
    assert agreement([table]) == ("11 of 11 figures lie within 2 points of the paper's under the recipes' reading of it, "
                                  "doubted ones aside and those in several tables counted once; of what quantization takes "
                                  "from full precision, 9 of 9. Under each column's nearest reading (of least mean "
                                  "distance; the step rule of the evaluation is a part of it) it is 11 of 11.")
    assert "Clients: split.name = dirichlet, split.clients = 100, split.alpha = 1.0." in paper_text.notes(table)


def test_losses_from_full_precision_are_compared_apart_from_accuracy() -> None:
    figures = papers(f"{LENET}/baseline", "baseline", 5)
    (table,) = compare([result(f"{LENET}/baseline", 1, {**figures, 2: figures[2] - 3})]).tables
    assert table.columns["baseline"].drops == pytest.approx({8: 0, 6: 0, 4: 0, 3: 0, 2: -3}, abs=1e-9)
    assert count([table]) == Count(1, 6, 4, 5), "5 points more everywhere but at 2 bits"


def test_claims_hold_or_do_not_or_were_not_measured(results: list[Result]) -> None:
    verdicts = {(v.claim.says, v.claim.table): v for v in compare(results).verdicts}
    own = verdicts["QAT(4) is best at its own width", "cifar10_lenet5_w"]
    assert (own.ours, own.measured, own.pairs) == ("holds", 5, 5)
    assert own.narrowest == pytest.approx(66.74 - 65.68), "at 4 bits against 32, the nearest"
    assert verdicts["MQAT beats the baseline at 2 bits", "cifar10_lenet5_w"].ours == "not measured"
    assert verdicts["MQAT beats the baseline at 2 bits", "cifar10_lenet5_w"].paper == "holds"
    worse = replace(results[2], evaluation={**results[2].evaluation, "grid": {
        "rule": {str(Width.of("W", b)): {"loss": 1.0, "metric": 50.0 + (b == 32)} for b in BITS}}})
    (again,) = (v for v in compare([worse]).verdicts if v.claim == own.claim)
    assert (again.ours, again.holding) == ("does not", 0)
    assert paper_text.claim_rows([again])[0][1:5] == ["Table 8", "does not (0 of 5)", "−1.00", "holds"]
    assert paper_text.claim_rows([verdicts["MQAT beats the baseline at 2 bits", "cifar10_lenet5_w"]])[0][3] == "–"


def test_the_baseline_stands_in_every_table_of_its_network() -> None:
    recipe = "paper/cifar10-resnet20/baseline"
    comparison = compare([result(recipe, 1, papers(recipe, "baseline"))])
    assert [table.number for table in comparison.tables] == ["Table 5", "Table 9", "Table 11", "Table 3", "Table 4"]
    assert [len(table.bits) for table in comparison.tables] == [6, 6, 6, 6, 1]
    counted = count(comparison.tables)
    assert (counted.figures, counted.drops) == (16, 15), "full precision, and five widths each of W, A and WA"


def test_what_the_paper_does_not_say_stands_below_the_table() -> None:
    runs = [result(f"paper/cifar10-resnet20/{name}", 1, dict.fromkeys(BITS, 50.0)) for name in ("baseline", "qat2-a")]
    (table,) = (table for table in compare(runs).tables if table.number == "Table 9")
    assert "Not in the paper (QAT (A-2)): client.clip = 10, the longest gradient of a local step." in paper_text.notes(table)
    assert not any("steps" in note.lower() for note in paper_text.notes(table)), "they come from the same rule in both"


def test_where_steps_come_from_stands_below_the_table_if_columns_differ_in_it() -> None:
    names = ("baseline", "qat4", "mqat", "mqat-a")
    runs = [result(f"paper/cifar10-resnet20/{name}", 1, dict.fromkeys(BITS, 50.0)) for name in names]
    notes = {table.number: paper_text.notes(table) for table in compare(runs).tables}
    assert "Activation steps (Baseline): ranges.activations = minmax." in notes["Table 9"]
    assert "Activation steps (MQAT-A): ranges.activations = mse." in notes["Table 9"]


def test_femnist_has_no_figures_but_a_claim() -> None:
    comparison = compare([result("paper/femnist-lenet5/baseline", 1, {32: 84.0, 4: 83.5, 2: 82.0},
                                 overrides=("evaluation.bits=[32,4,2]",))])
    (table,) = comparison.tables
    assert paper_text.rows(table) == [["Baseline, ours", "84.00", "83.50", "82.00"]]
    (verdict,) = (v for v in comparison.verdicts if v.measured)
    assert (verdict.ours, verdict.paper, verdict.measured) == ("holds", "not measured", 2)


def test_settings_that_differ_are_said_and_never_averaged(results: list[Result]) -> None:
    short = result(f"{LENET}/kure", 1, dict.fromkeys(BITS, 60.0), overrides=("rounds=50", "device=cpu"))
    (table,) = compare([short]).tables
    assert table.columns["kure"].deviations == ("rounds = 50 instead of 2000",)
    assert "Not the recipe's setting (KURE): rounds = 50 instead of 2000." in paper_text.notes(table)
    other = result(f"{LENET}/kure", 2, dict.fromkeys(BITS, 60.0), overrides=("compute.precision=bf16",))
    with pytest.raises(RunError, match=r"kure-seed1 and kure-seed2 differ in compute.precision \('tf32', 'bf16'\)"):
        compare([result(f"{LENET}/kure", 1, dict.fromkeys(BITS, 60.0)), other])
    doubled = compare([*results, *results])
    assert [t.columns["baseline"].seeds for t in doubled.tables] == [(1, 2)], "a run that is given twice counts once"


def test_runs_from_before_a_setting_are_seeds_beside_younger_ones() -> None:
    runs = [result(f"{LENET}/baseline", seed, dict.fromkeys(BITS, 60.0)) for seed in (1, 2)]
    assert runs[0].config["client"].pop("batches") == "full"
    (table,) = compare(runs).tables
    assert (table.columns["baseline"].seeds, table.readings["baseline"]) == ((1, 2), ())
    even = result(f"{LENET}/baseline", 3, dict.fromkeys(BITS, 60.0), overrides=("client.batches=even",))
    (table,) = compare([runs[0], even]).tables
    assert [reading.reading for reading in table.readings["baseline"]] == [("client.batches=even",)]


def test_other_readings_stand_beside_the_recipes_own(results: list[Result]) -> None:
    qat = papers(f"{LENET}/qat4", "qat4")
    wide = [result(f"{LENET}/qat4", seed, {b: v + 4 * (b > 3) for b, v in qat.items()},
                   overrides=("model.init=he", "evaluation.every=50", "compute.precision=bf16")) for seed in (1, 2)]
    comparison = compare([wide[0], *results, wide[1]])
    (table,) = comparison.tables
    (reading,) = table.readings["qat4"]
    assert (reading.reading, reading.seeds) == (("model.init=he",), (1, 2))
    assert reading.off == pytest.approx(4 * 4 / 5), "four cells of five; the one at 2 bits is doubted"
    assert table.columns["qat4"].off == pytest.approx(0)
    assert table.columns["qat4"].seeds == (1,), "the recipe's own, whatever came first"
    assert [r.config["model"].get("init", "torch") for r in comparison.by_recipe[f"{LENET}/qat4"]] == ["torch"]
    assert paper_text.reading_rows(table) == [
        ["QAT (W-4), paper", "65.68", "55.10", "59.42", "66.74", "58.40", "61.44 ?", ""],
        ["  as in the recipe", "65.68", "55.10", "59.42", "66.74", "58.40", "17.00", "0.00"],
        ["  model.init=he", "69.68 ± 0.00", "59.10 ± 0.00", "63.42 ± 0.00", "70.74 ± 0.00", "58.40 ± 0.00",
         "61.44 ± 0.00", "3.20"]]
    assert not paper_text.reading_rows(compare(results).tables[0])
    (said,) = paper_text.as_json(comparison)["tables"]["cifar10_lenet5_w"]["columns"]["qat4"]["readings"]
    assert (said["overrides"], said["cells"]["8"]["difference"]) == (["model.init=he"], pytest.approx(4))


def test_where_no_run_follows_the_recipe_the_nearest_is_in_the_table() -> None:
    recipe, bits = "paper/femnist-lenet5/baseline", (32, 8, 6, 4, 3, 2)
    far = result(recipe, 1, dict.fromkeys(bits, 70.0), overrides=("rounds=9", "model.init=he"))
    near = result(recipe, 1, dict.fromkeys(bits, 80.0), overrides=("rounds=9",))
    (table,) = compare([far, near]).tables
    assert table.columns["baseline"].reading == ("rounds=9",)
    assert [row[:2] for row in paper_text.reading_rows(table)] == [
        ["Baseline, paper", "–"], ["  rounds=9", "80.00"], ["  model.init=he rounds=9", "70.00"]]


def test_how_activations_are_rounded_matters_where_they_are() -> None:
    recipe = "paper/cifar10-resnet20/baseline"
    plain_run = result(recipe, 1, papers(recipe, "baseline"))
    other = result(recipe, 2, papers(recipe, "baseline", 1), overrides=("ranges.activations=cover",))
    tables = {table.number: table for table in compare([plain_run, other]).tables}
    for number, own in {"Table 5": (1, 2), "Table 4": (1, 2), "Table 9": (1,), "Table 11": (1,)}.items():
        assert tables[number].columns["baseline"].seeds == own, number
        readings = [column.reading for column in tables[number].readings["baseline"]]
        assert readings == [("ranges.activations=cover",)] * (len(own) == 1), number
    assert "cover" not in paper_text.commands(tables["Table 5"])[0]


def test_every_table_says_what_trains_it_again() -> None:
    settings = ("evaluation.every=250", "compute.precision=bf16", "evaluation.bits=[32, 2]", "device=cpu", "threads=1")
    runs = [result(f"{LENET}/{name}", seed, {32: 60.0, 2: 50.0}, overrides=settings)
            for name, seeds in (("baseline", (1, 2)), ("mqat", (1, 2)), ("kure", (1,))) for seed in seeds]
    (table,) = compare(runs).tables
    said = "compute.precision=bf16 evaluation.every=250 'evaluation.bits=[32, 2]'"
    assert {frozenset(line.split()) for line in paper_text.commands(table)} == {
        frozenset(f"anybit sweep {LENET}/baseline {LENET}/mqat --seeds 1,2 {said}".split()),
        frozenset(f"anybit sweep {LENET}/kure --seeds 1 {said}".split())}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 5000.0, -1.0])
def test_what_is_no_percentage_is_an_error(results: list[Result], value: float) -> None:
    results[1].evaluation["grid"]["mse"]["W2"]["metric"] = value
    with pytest.raises(RunError, match=rf"baseline-seed2 has {value} at W2 \(steps mse\), which is no accuracy in percent"):
        compare(results)


def test_plots_carry_the_figures(results: list[Result]) -> None:
    regular = [result("paper/cifar10-resnet20/mqat-a", 1, papers("paper/cifar10-resnet20/mqat-a", "mqat")),
               result(f"{LENET}/mqat", 1, papers(f"{LENET}/mqat", "mqat")),
               result(f"{LENET}/baseline", 1, papers(f"{LENET}/baseline", "baseline", 0.25), overrides=("model.init=he",))]
    with styled():
        plots = {plot.name: plot for plot in paper_plots(compare([*results, *regular]))}
    assert set(plots) == {"paper-cifar10_lenet5_w", "paper-cifar10_resnet20_a", "paper-cifar10_resnet20_regularization",
                          "overfitting-cifar10-lenet5"}
    axes = plots["paper-cifar10_lenet5_w"].figure.axes
    assert [a.get_title(loc="left") for a in axes if a.axison] == ["Baseline", "QAT (W-4)", "MQAT-W", "MQAT-W (2…32)"]
    drawn = [[list(line.get_ydata())[-1] for line in panel.get_lines()[:3]] for panel in axes[:2]]  # type: ignore[arg-type]
    assert drawn[0] == pytest.approx([48.68, 48.93, 48.18]), "the paper's, under the nearest reading, as in the recipe"
    assert drawn[1] == pytest.approx([61.44, 17.0]), "none is nearer"
    assert [text.get_text() for text in plots["paper-cifar10_lenet5_w"].figure.legends[0].get_texts()] == [
        "ours", "paper", "ours, nearest reading"]
    loss, accuracy = plots["overfitting-cifar10-lenet5"].figure.axes
    baseline, mqat = (list(line.get_ydata()) for line in loss.get_lines()[:2])  # type: ignore[arg-type]
    assert baseline == [100 / 32 + 1.5, 200 / 32 + 1.5], "full precision, mean of seeds 1 and 2"
    assert mqat == [100 / 4 + 1, 200 / 4 + 1], "the lowest width of [4, 6, 8]"
    assert list(accuracy.get_lines()[1].get_ydata()) == [32.0, 32.0]  # type: ignore[arg-type]


def test_a_table_that_the_paper_does_not_have_shows_ours_alone(results: list[Result]) -> None:
    alone = result("paper/femnist-lenet5/baseline", 1, dict.fromkeys((32, 8, 6, 4, 3, 2), 80.0))
    with styled():
        plots = {plot.name: plot for plot in paper_plots(compare([*results, alone]))}
    said = {name: ([text.get_text() for text in plots[name].figure.legends[0].get_texts()], plots[name].title)
            for name in ("paper-femnist_lenet5_w", "paper-cifar10_lenet5_w")}
    assert said["paper-femnist_lenet5_w"] == (["ours"], "FEMNIST, LeNet-5, weights quantized: ours")
    assert said["paper-cifar10_lenet5_w"][0][:2] == ["ours", "paper"]


def test_overfitting_in_numbers(results: list[Result]) -> None:
    """A loss of 0.9, 0.5, 0.8 over two seeds that lie 0.2 apart, and an MQAT run whose loss falls."""
    def course(result: Result, losses: list[float], width: str) -> Result:
        points = [Point(100 * i, 1.0, {w: {"loss": v, "metric": 50.0} for w in ("FP32", width)}) for i, v in
                  enumerate(losses, 1)]
        return replace(result, curve=tuple(points))

    runs = [course(results[0], [1.0, 0.6, 0.9], "W2"), course(results[1], [0.8, 0.4, 0.7, 9.9], "W2"),
            course(results[3], [0.9, 0.8, 0.7], "W2")]
    (lines,) = courses(compare(runs).by_recipe).values()
    assert paper_text.overfitting_rows(lines) == [["Baseline", "FP32", "0.500", "200", "0.800", "0.300"],
                                                  ["MQAT-W (2…32)", "W2", "0.700", "300", "0.700", "0.000"]]
    assert courses(compare(runs[:2]).by_recipe) == {}


def test_report_paper_prints_draws_and_writes(results: list[Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    other = result("quickstart/mqat", 1, dict.fromkeys(BITS, 9.0))
    write_results([*results, other], Path("results/all.json"))
    command = ["report", "--paper", "results/all.json", "--out", "docs/img", "--markdown", "docs/reproduction.md"]
    assert run(command) == 0
    output = capsys.readouterr()
    assert "CIFAR-10, LeNet-5, weights quantized (Table 8)" in output.out
    assert "left out, because it is no column of the paper: mqat-seed1" in output.err
    page = Path("docs/reproduction.md").read_text()
    assert "| Baseline | 68.5 ± 2.1 · 69.0 · −0.5 |" in page
    assert "17.0 · 61.4? · **−44.4** |" in page
    assert "![CIFAR-10, LeNet-5, weights quantized](img/paper-cifar10_lenet5_w.png)" in page
    assert "[Behind the figures](reproduction-readings.md)" in page
    assert "- 4 runs (8.0 hours of training) in the tables\n" in page
    behind = Path("docs/reproduction-readings.md").read_text()
    assert "| Baseline, ours | 68.50 ± 2.12 |" in behind
    assert "| **−44.44** |" in behind
    assert "anybit sweep paper/cifar10-lenet5/baseline --seeds 1,2" in behind
    assert str(tmp_path) not in page + behind
    assert {p.name for p in Path("docs/img").iterdir()} >= {"paper-cifar10_lenet5_w.png", "paper-cifar10_lenet5_w.svg"}
    assert run(["report", "--paper", "results/all.json"]) == 0
    assert Path("report/paper-cifar10_lenet5_w.png").exists(), "here, and not beside the file"
    assert not Path("results/report").exists()
    first = {p: p.read_bytes() for p in Path("docs").rglob("*.*")}
    run(command)
    assert {p: p.read_bytes() for p in Path("docs").rglob("*.*")} == first, "the same results give the same bytes"
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["tables"]["cifar10_lenet5_w"]["columns"]["qat4"]["cells"]["2"]["reestimated"]["mean"] == 61.0
    assert shown["other_runs"] == ["mqat-seed1"]
