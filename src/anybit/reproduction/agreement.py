"""How many figures agree with the paper's under which readings, and what may be behind those that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from anybit.quant.grid import Width
from anybit.reproduction.compare import TOLERANCE, ComparedColumn, ComparedTable
from anybit.reproduction.facts import facts

Choice = Callable[[ComparedTable, str], ComparedColumn]
"""The reading of a column that counts."""


def by_recipe(table: ComparedTable, name: str) -> ComparedColumn:
    return table.columns[name]


@dataclass(frozen=True)
class Count:
    """Figures within the tolerance, and losses from full precision; doubted ones aside, repeated ones once."""

    within: int
    figures: int
    drops_within: int
    drops: int

    def __str__(self) -> str:
        return f"{self.within} of {self.figures}"

    def __add__(self, other: Count) -> Count:
        return Count(self.within + other.within, self.figures + other.figures, self.drops_within + other.drops_within,
                     self.drops + other.drops)


def count(tables: Iterable[ComparedTable], choice: Choice = by_recipe) -> Count:
    """Count the figures that agree if every column is read as `choice` says."""
    return sum(counts(tables, choice), Count(0, 0, 0, 0))


def counts(tables: Iterable[ComparedTable], choice: Choice = by_recipe) -> list[Count]:
    """Count the figures of every table that agree; those in several tables belong to the first."""
    found, seen = [], set[tuple[str, Width]]()
    for table in tables:
        figures, drops = list[float](), list[float]()
        for column in (choice(table, name) for name in table.columns):
            new = set() if column.short else {b for b in column.differences
                                              if (column.recipe, Width.of(table.sites, b)) not in seen}
            figures += [points for bits, points in column.differences.items() if bits in new]
            drops += [points for bits, points in column.drops.items() if bits in new]
            seen |= {(column.recipe, Width.of(table.sites, bits)) for bits in new}
        found.append(Count(_within(figures), len(figures), _within(drops), len(drops)))
    return found


def _within(differences: Iterable[float]) -> int:
    return sum(abs(points) <= TOLERANCE for points in differences)


def agreement(tables: Iterable[ComparedTable]) -> str:
    """Say how many figures agree: by the recipes, and by other readings of each column."""
    tables = list(tables)
    recipes = count(tables)
    short = any(column.short and column.differences for table in tables for column in table.columns.values())
    without = "doubted ones aside, columns trained for fewer rounds, too," if short else "doubted ones aside"
    return (f"{recipes} figures lie within {TOLERANCE:g} points of the paper's under the recipes' reading of it, {without} "
            f"and those in several tables counted once; of what quantization takes from full precision, "
            f"{recipes.drops_within} of {recipes.drops}. Under each column's nearest reading (of least mean distance; the "
            f"step rule of the evaluation is a part of it) it is {count(tables, ComparedTable.best)}{_chosen(tables)}.")


def _chosen(tables: Sequence[ComparedTable]) -> str:
    """Say how many agree if readings are chosen for that, and among how many they are chosen."""
    tried = max((len(table.whole(name)) for table in tables for name in table.columns), default=1)
    most = count(tables, ComparedTable.fullest).within
    return "" if tried == 1 else (f", under the one that most figures agree with {most}: a choice among up to {tried}, "
                                  "which flatters")


@dataclass(frozen=True)
class Departure:
    """A column with figures beyond the tolerance, and what may be behind it."""

    table: ComparedTable
    name: str

    @property
    def column(self) -> ComparedColumn:
        return self.table.columns[self.name]

    @property
    def best(self) -> ComparedColumn:
        """The column under the nearest reading, which may be the recipe's."""
        return self.table.best(self.name)

    @property
    def explanation(self) -> str:
        if self.column.chance:
            return "chance: within two standard deviations"
        return facts().explanations.get(self.column.recipe, "none")


def departures(tables: Iterable[ComparedTable]) -> list[Departure]:
    """List the columns with figures beyond the tolerance, those in several tables once."""
    found, seen = [], set[tuple[str, Width]]()
    for table in tables:
        for name, column in table.columns.items():
            if column.short:
                continue
            cells = {(column.recipe, Width.of(table.sites, bits)) for bits in column.beyond}
            if cells - seen:
                found.append(Departure(table, name))
            seen |= cells
    return found
