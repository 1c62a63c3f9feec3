"""How many figures agree with the paper's under which readings, and what was tried where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def count(tables: Iterable[ComparedTable], choice: Choice = by_recipe) -> Count:
    """Count the figures that agree if every column is read as `choice` says."""
    figures: dict[tuple[str, Width], float] = {}
    drops: dict[tuple[str, Width], float] = {}
    for table in tables:
        for name in table.columns:
            column = choice(table, name)
            if column.short:
                continue
            for found, points in ((figures, column.differences), (drops, column.drops)):
                for bits, difference in points.items():
                    found.setdefault((column.recipe, Width.of(table.sites, bits)), difference)
    return Count(*(number for found in (figures, drops)
                   for number in (sum(abs(points) <= TOLERANCE for points in found.values()), len(found))))


def agreement(tables: Iterable[ComparedTable]) -> str:
    """Say how many figures agree: by the recipes, and by each column's best reading."""
    tables = list(tables)
    recipes = count(tables)
    short = any(column.short and column.differences for table in tables for column in table.columns.values())
    without = "doubted ones aside, columns trained for fewer rounds, too," if short else "doubted ones aside"
    return (f"{recipes} figures lie within {TOLERANCE:g} points of the paper's under the recipes' reading of it, {without} "
            f"and those in several tables counted once; of what quantization takes from full precision, "
            f"{recipes.drops_within} of {recipes.drops}. Under the reading that fits each column best, "
            f"of which the step rule of the evaluation is a part, it is {count(tables, ComparedTable.best)}.")


@dataclass(frozen=True)
class Departure:
    """A column with figures beyond the tolerance, what else was tried, and what may be behind it."""

    table: ComparedTable
    name: str

    @property
    def column(self) -> ComparedColumn:
        return self.table.columns[self.name]

    @property
    def tried(self) -> list[ComparedColumn]:
        """The other readings, nearest first."""
        return sorted((c for c in self.table.readings[self.name] if c.off is not None), key=lambda column: column.off or 0.0)

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
