"""The paper's figures: complete, readable, and tied to the recipes that train them."""

from __future__ import annotations

import pytest

from anybit import recipes
from anybit.config import from_recipe
from anybit.quant.grid import Width
from anybit.reproduction.facts import Cell, facts, recipe_of
from anybit.training.build import Components, settled

BITS = (32, 8, 6, 4, 3, 2)
WEIGHTS = {"baseline", "kure", "apqn4", "apqn2", "qat4", "qat2", "mqat"}


@pytest.mark.parametrize(("cell", "accuracy"), [
    (("cifar10_lenet5_w", "mqat", 2), 59.32), (("cifar10_resnet20_w", "qat2", 8), 11.68),
    (("cifar10_resnet20_a", "mqat", 3), 74.68), (("cifar10_resnet20_wa", "baseline_dropout", 2), 14.5),
    (("fixed_bits", "mqat_fixed", 6), 68.24), (("cifar10_resnet20_regularization", "weight_decay_1e-2", 32), 44.94),
    (("cifar100_resnet20_w", "apqn4", 8), 50.86), (("cifar100_resnet20_a", "qat4", 2), 1.24),
    (("tinyimagenet_resnet18_w", "kure", 4), 33.29)])
def test_figures_as_printed(cell: tuple[str, str, int], accuracy: float) -> None:
    assert facts().value(Cell(*cell)) == accuracy


def test_every_table_is_complete() -> None:
    tables = facts().tables
    assert sorted(t.number for t in tables.values()) == sorted([*(f"Table {n}" for n in range(3, 12)), "no table"])
    printed = {key: {name for name, c in t.columns.items() if c.values} for key, t in tables.items()}
    for key in ("cifar10_lenet5_w", "cifar10_resnet20_w", "cifar100_resnet20_w", "tinyimagenet_resnet18_w",
                "cifar10_resnet20_a", "cifar100_resnet20_a"):
        assert printed[key] == WEIGHTS, key
    assert printed["femnist_lenet5_w"] == set()
    for key, table in tables.items():
        rows = (32,) if table.number == "Table 4" else BITS
        assert all(tuple(column.values) == rows for column in table.columns.values() if column.values), key
    assert str(facts().citation).startswith("Kartik Gupta, ")


def tables_of(recipe: str) -> list[str]:
    """The tables that a recipe's run fills: the baseline stands in many."""
    return [key for key, table in facts().tables.items() for column in table.columns.values() if column.recipe == recipe]


def test_every_paper_recipe_knows_its_columns() -> None:
    for name in (name for name in recipes.names() if name.startswith("paper/")):
        assert tables_of(name), f"{name} stands in no table"
        assert recipe_of(settled(from_recipe(name, ["seed=9", "rounds=3"]))) == name
        assert recipe_of(from_recipe(name)) == name, "also with its defaults left open"
        _, network, column = name.split("/")
        ranges = from_recipe(name).ranges  # what the paper's figures show (docs/readings.md)
        assert ranges.activations == ("mse" if (network, column) == ("cifar10-resnet20", "mqat-a") else "minmax"), name
        assert not ranges.learned, f"{name}: the paper fixes the ranges of QAT at the start"
    assert tables_of("paper/cifar10-resnet20/baseline") == [
        "cifar10_resnet20_w", "cifar10_resnet20_a", "cifar10_resnet20_wa", "fixed_bits",
        "cifar10_resnet20_regularization"]
    assert recipe_of(settled(from_recipe("quickstart/mqat"))) is None
    assert recipe_of(settled(from_recipe("paper/cifar10-lenet5/mqat", ["variant.bits=[2,8]"]))) is None
    assert recipe_of(from_recipe("paper/cifar10-lenet5/mqat", ["model.name=mine:net"])) is None


def test_a_columns_recipe_trains_what_its_title_says() -> None:
    for table in facts().tables.values():
        for name, column in table.columns.items():
            variant = Components(from_recipe(column.recipe)).build_variant()
            if name.startswith(("qat", "apqn")):
                assert (variant.name, variant.bits) == (name[:-1], (int(name[-1]),)), column
                assert variant.sites == table.sites, column
            elif name.startswith("mqat"):
                assert variant.name == ("mqat*" if "*" in column.title else "mqat"), column
                assert column.title.split("-")[1].split()[0] == variant.sites, column
            else:
                assert variant.name == ("kure" if name == "kure" else "baseline"), column


def test_claims_point_at_cells_that_exist() -> None:
    tables = facts().tables
    assert len(facts().claims) > 30
    for claim in facts().claims:
        assert claim.pairs(), claim.says
        for cell in (cell for pair in claim.pairs() for cell in pair):
            assert cell.column in tables[cell.table].columns, claim.says
            assert cell.bits in BITS
        assert not all(left == right for left, right in claim.pairs()), claim.says
    for cell in facts().suspect:
        assert facts().value(cell) is not None


def test_which_claims_the_papers_own_figures_do_not_bear_out() -> None:
    """Three sentences are broader than the tables; all others hold there, so a claim that fails is read wrongly."""
    failing = set()
    for claim in facts().claims:
        values = [(facts().value(left), facts().value(right)) for left, right in claim.pairs()]
        if any(left is not None and right is not None and not claim.holds(left, right) for left, right in values):
            failing.add((claim.says, claim.table))
    assert failing == {
        ("KURE and APQN are slightly better than the baseline at low bit-widths", "cifar10_resnet20_w"),
        ("MQAT beats every other variant at every bit-width", "cifar10_resnet20_w"),
        ("MQAT beats QAT(4) at 4 bits", "cifar100_resnet20_a")}


def test_a_claim_compares_bit_by_bit_or_against_other_bits() -> None:
    by_says = {(claim.says, claim.table): claim for claim in facts().claims}
    own = by_says["QAT(4) is best at its own width", "cifar10_lenet5_w"]
    assert own.pairs() == [(Cell("cifar10_lenet5_w", "qat4", 4), Cell("cifar10_lenet5_w", "qat4", b))
                           for b in (32, 8, 6, 3, 2)]
    every = by_says["A bit-width that is kept per client costs accuracy", "fixed_bits"]
    assert [(left.bits, right.bits) for left, right in every.pairs()] == [(b, b) for b in BITS]
    flat = by_says["MQAT is flat down to 3 bits", "cifar10_resnet20_w"]
    assert flat.holds(70, 72)
    assert not flat.holds(70, 72.1)
    assert not every.holds(70, 70)


def test_the_lowest_width_of_tinyimagenets_set_has_no_32() -> None:
    variant = Components(from_recipe("paper/tinyimagenet-resnet18/mqat")).build_variant()
    assert variant.bits == (2, 3, 4, 6, 8)
    assert str(Width.of(variant.sites, min(variant.bits))) == "W2"
