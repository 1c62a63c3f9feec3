"""Two counts of figures that agree, by the recipes and by each column's best reading, and what is said of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from anybit.reproduction.agreement import Count, agreement, count, counts, departures
from anybit.reproduction.compare import ComparedTable, compare
from anybit.reproduction.markdown import details, details_of, summary
from anybit.sweeps.results import read_results
from tests.report.test_report_paper import BITS, LENET, papers, result

RESNET = "paper/cifar10-resnet20"
ROOT = Path(__file__).parents[2]


def test_a_column_counts_by_the_recipe_or_by_its_nearest_reading() -> None:
    base = papers(f"{LENET}/baseline", "baseline")
    runs = [result(f"{LENET}/baseline", 1, {b: v + 3 for b, v in base.items()}),
            result(f"{LENET}/baseline", 1, {b: v + 1 for b, v in base.items()}, overrides=("model.init=he",)),
            result(f"{LENET}/baseline", 1, base, overrides=("rounds=9",))]
    (table,) = compare(runs).tables
    assert count([table]) == Count(0, 6, 5, 5)
    assert count([table], ComparedTable.best) == Count(6, 6, 5, 5)
    assert table.best("baseline").reading == ("model.init=he",), "fewer rounds are no reading of the paper"
    assert agreement([table]).endswith("it is 6 of 6, under the one that most figures agree with 6: a choice among up to 2, "
                                       "which flatters.")


def test_most_figures_may_agree_with_another_reading_than_the_nearest() -> None:
    base = papers(f"{LENET}/baseline", "baseline")
    runs = [result(f"{LENET}/baseline", 1, {b: v + 9 for b, v in base.items()}),
            result(f"{LENET}/baseline", 1, {b: v + 2.5 for b, v in base.items()}, overrides=("model.init=he",)),
            result(f"{LENET}/baseline", 1, {b: v + (1 if b > 2 else 20) for b, v in base.items()},
                   overrides=("model.init=xavier",))]
    (table,) = compare(runs).tables
    assert table.best("baseline").reading == ("model.init=he",)
    assert table.fullest("baseline").reading == ("model.init=xavier",)
    assert agreement([table]).endswith("it is 0 of 6, under the one that most figures agree with 5: a choice among up to 3, "
                                       "which flatters.")


@pytest.mark.parametrize(("shifts", "chance"), [((1.0, 2.5, 4.0), True), ((2.4, 2.5, 2.6), False)])
def test_a_difference_within_two_deviations_is_chance(shifts: tuple[float, ...], chance: bool) -> None:
    """At p = 0.7 the paper's 5,000 images have σ = 0.65: seeds ± 1.5 allow 2·√(1.5²·4/3 + 0.65²) = 3.7, ± 0.1 only 1.3."""
    base = papers(f"{RESNET}/baseline", "baseline")
    (table, *_) = compare([result(f"{RESNET}/baseline", seed, {b: v + shift for b, v in base.items()})
                           for seed, shift in enumerate(shifts, 1)]).tables
    assert set(table.columns["baseline"].beyond) == set(BITS)
    assert table.columns["baseline"].chance is chance
    (found, *_) = departures([table])
    assert found.explanation == ("chance: within two standard deviations" if chance else "none")


def test_one_seed_has_the_baselines_deviation_unless_it_rounds_in_training() -> None:
    base = papers(f"{RESNET}/baseline", "baseline")
    runs = [result(f"{RESNET}/baseline", seed, {b: v + shift for b, v in base.items()}) for seed, shift in ((1, -2), (2, 2))]
    runs += [result(f"{RESNET}/{name}", 1, papers(f"{RESNET}/{name}", name, 3.0)) for name in ("kure", "qat4")]
    (table, *_) = compare(runs).tables
    assert table.columns["kure"].chance
    assert not table.columns["qat4"].chance
    assert [d.name for d in departures([table])] == ["kure", "qat4"]


def test_the_nearest_reading_stands_beside_the_recipes_and_all_behind_the_figures() -> None:
    qat = papers(f"{LENET}/qat4", "qat4")
    runs = [result(f"{LENET}/qat4", 1, {b: v + 4 for b, v in qat.items()}),
            result(f"{LENET}/qat4", 1, {b: v + 9 for b, v in qat.items()}, overrides=("model.init=he",)),
            result(f"{LENET}/qat4", 1, {b: v + 1 for b, v in qat.items()}, overrides=("model.init=xavier",))]
    page = summary(compare(runs), Path("img"), Path("page.md"))
    assert "| 32, 8, 6, 4, 3 | 4.00 | `model.init=xavier` | none | 1.00 | the paper lies between" in page
    assert "model.init=he" not in page
    behind = details(compare(runs), Path("page.md"))
    assert "### Other readings of Table 8\n" in behind
    assert "|   model.init=he | " in behind


def test_figures_are_counted_table_by_table_those_in_several_once() -> None:
    runs = [result(f"{RESNET}/{name}", 1, papers(f"{RESNET}/{name}", name)) for name in ("baseline", "kure")]
    tables = [table for table in compare(runs).tables if table.key in ("cifar10_resnet20_w", "fixed_bits")]
    assert counts(tables) == [Count(12, 12, 10, 10), Count(0, 0, 0, 0)], "the baseline stands in both"
    assert counts(tables[::-1]) == [Count(6, 6, 5, 5), Count(6, 6, 5, 5)]
    assert count(tables) == Count(12, 12, 10, 10)
    page = summary(compare(runs), Path("img"), Path("page.md"))
    assert "| CIFAR-10, ResNet-20, weights quantized (Table 5) | 12 | 12 | 12 |" in page
    assert "| CIFAR-10, ResNet-20: one bit-width" not in page.partition("\n## ")[0], "a table without figures of its own"


def test_a_step_rule_of_the_evaluation_alone_is_a_reading_where_it_is_nearer() -> None:
    qat = papers(f"{LENET}/qat4", "qat4")
    runs = [result(f"{LENET}/qat4", 1, {b: v + 4 for b, v in qat.items()}, again={b: v + shift for b, v in qat.items()},
                   overrides=overrides) for shift, overrides in ((1, ()), (5, ("model.init=he",)))]
    (table,) = compare(runs).tables
    assert [column.reading for column in table.readings["qat4"]] == [("ranges.evaluate=mse",), ("model.init=he",)]
    best = table.best("qat4")
    assert best.reading == ("ranges.evaluate=mse",)
    assert best.off == pytest.approx(1.0)
    assert count([table]).within == 0
    assert count([table], ComparedTable.best).within == count([table]).figures == 5, "2 bits are doubted"


def test_how_activations_are_rounded_is_no_reading_of_a_table_of_weights() -> None:
    runs = [result(f"{RESNET}/baseline", seed, papers(f"{RESNET}/baseline", "baseline"), overrides=overrides)
            for seed, overrides in ((1, ()), (2, ("model.round_shortcuts=true", "ranges.activations=mse")))]
    tables = {table.sites: table for table in compare(runs).tables if table.bits != [32]}
    assert tables["W"].columns["baseline"].seeds == (1, 2)
    (other,) = tables["A"].readings["baseline"]
    assert set(other.reading) == {"model.round_shortcuts=true", "ranges.activations=mse"}


def test_runs_of_a_like_column_are_a_reading_of_one_that_was_trained() -> None:
    figures = papers(f"{RESNET}/apqn4-a", "apqn4")
    noisy = result(f"{RESNET}/apqn4-a", 1, {b: v + 4 for b, v in figures.items()})
    like = result(f"{RESNET}/apqn4", 1, figures)
    tables = {table.sites: table for table in compare([noisy, like]).tables}
    assert tables["A"].columns["apqn4"].off == pytest.approx(4.0)
    assert tables["A"].best("apqn4").reading == ("variant.sites=W",)
    assert tables["W"].readings["apqn4"] == (), "and not the other way round"
    plain = result(f"{RESNET}/baseline", 1, papers(f"{RESNET}/baseline", "baseline"))
    (alone,) = [table for table in compare([plain, like]).tables if table.sites == "A" and table.bits != [32]]
    assert alone.columns["apqn4"].cells[4].ours is None


def test_a_column_with_fewer_rounds_is_shown_and_judged_and_not_counted() -> None:
    tiny = "paper/tinyimagenet-resnet18"
    runs = [result(f"{tiny}/{name}", 1, {b: max(v, 0.0) for b, v in papers(f"{tiny}/{name}", name, -9.0).items()},
                   overrides=("rounds=1000",)) for name in ("baseline", "mqat")]
    comparison = compare([*runs, result(f"{LENET}/baseline", 1, papers(f"{LENET}/baseline", "baseline"))])
    assert count(comparison.tables) == Count(6, 6, 5, 5)
    assert departures(comparison.tables) == []
    page = summary(comparison, Path("img"), Path("page.md"))
    assert "Trained for 1,000 of 4,500 rounds.\n\n| " in page
    assert "| MQAT-W | 28.9 · 37.9 · **−9.0** |" in page
    assert "6 of 6 figures" in page
    assert "columns trained for fewer rounds, too," in page
    assert "| MQAT beats the baseline at 3 and 2 bits | Table 7 | holds | +19.20 |" in page


def test_a_column_with_all_rounds_stands_before_a_shorter_one() -> None:
    base = papers(f"{LENET}/baseline", "baseline")
    runs = [result(f"{LENET}/baseline", 1, {b: v + shift for b, v in base.items()}, overrides=overrides)
            for shift, overrides in ((0, ("rounds=9",)), (1, ("model.init=he", "split.alpha=0.1")))]
    (table,) = compare(runs).tables
    assert [column.short for column in (table.columns["baseline"], *table.readings["baseline"])] == [False, True]


def test_the_committed_pages_are_those_of_the_committed_results() -> None:
    comparison = compare(read_results(sorted((ROOT / "results/reproduction").glob("*.json"))).results)
    page = ROOT / "docs/reproduction.md"
    assert page.read_text() == summary(comparison, ROOT / "docs/img/reproduction", page)
    assert details_of(page).read_text() == details(comparison, page)
    assert len(page.read_text().split()) < 6000, "a page to read"
