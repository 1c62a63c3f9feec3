"""Ours against the paper's, cell by cell, and whether the orderings hold that its text claims."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from anybit.errors import RunError
from anybit.quant.grid import FLOAT, SiteKinds, Width
from anybit.reproduction.facts import Cell, Claim, Facts, PaperTable, facts, recipe_of
from anybit.reproduction.settings import Settings
from anybit.sweeps.results import Result

TOLERANCE = 2.0
"""Points of accuracy within which two figures agree: the paper's come from one seed and 5,000 images."""

@dataclass(frozen=True)
class Measured:
    """Our figure: over seeds."""

    mean: float
    std: float | None
    """None with one seed."""

    @staticmethod
    def of(values: Sequence[float]) -> Measured | None:
        if not values:
            return None
        return Measured(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Compared:
    """One cell."""

    paper: float | None
    ours: Measured | None
    reestimated: Measured | None
    """With steps re-estimated by mse after training, where that is not the variant's own way."""
    suspect: str | None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper

    @property
    def within(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= TOLERANCE

    @property
    def depends_on_steps(self) -> bool:
        """Whether re-estimated steps give another figure."""
        return (self.ours is not None and self.reestimated is not None
                and abs(self.ours.mean - self.reestimated.mean) > TOLERANCE)


@dataclass(frozen=True)
class ComparedColumn:
    """One variant."""

    title: str
    recipe: str
    cells: Mapping[int, Compared]
    seeds: tuple[int, ...]
    deviations: tuple[str, ...]
    """Settings in which our runs differ from the recipe."""
    overrides: tuple[str, ...] = ()
    """What has to be said beside the recipe to train it again."""
    reading: tuple[str, ...] = ()
    """Those of the overrides that change what is trained."""

    @property
    def drops(self) -> dict[int, float]:
        """How much more ours lose from full precision than the paper's, by bits: robustness apart from accuracy."""
        full = self.cells[FLOAT].difference if FLOAT in self.cells else None
        return {} if full is None else {bits: cell.difference - full for bits, cell in self.cells.items()
                                        if bits != FLOAT and cell.difference is not None and not cell.suspect}

    @property
    def off(self) -> float | None:
        """How far ours lie from the paper's, doubted figures aside: the mean of |difference|."""
        found = [abs(cell.difference) for cell in self.cells.values() if cell.difference is not None and not cell.suspect]
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class ComparedTable:
    """One table, of which at least one column was measured."""

    key: str
    title: str
    number: str
    sites: SiteKinds
    columns: Mapping[str, ComparedColumn]
    readings: Mapping[str, tuple[ComparedColumn, ...]]
    """By column: the same under other readings of the paper than the recipe's."""

    @property
    def bits(self) -> list[int]:
        found = {bits for column in self.columns.values() for bits in column.cells}
        return sorted(found, reverse=True)


@dataclass(frozen=True)
class Verdict:
    """How many of a claim's comparisons were measured and hold, in our figures and in the paper's own."""

    claim: Claim
    pairs: int
    measured: int
    holding: int
    paper_measured: int
    paper_holding: int
    narrowest: float | None
    """How far the closest of our comparisons is from turning over; negative if it does not hold."""

    @property
    def ours(self) -> str:
        return _verdict(self.measured, self.holding)

    @property
    def paper(self) -> str:
        return _verdict(self.paper_measured, self.paper_holding)


def _verdict(measured: int, holding: int) -> str:
    return "not measured" if not measured else "holds" if holding == measured else "does not"


@dataclass(frozen=True)
class Comparison:
    """Everything ours and the paper's."""

    tables: tuple[ComparedTable, ...]
    verdicts: tuple[Verdict, ...]
    by_recipe: Mapping[str, Sequence[Result]]
    """The runs of the columns, without those of other readings."""
    tried: tuple[Result, ...]
    """The runs of other readings."""
    others: tuple[str, ...]
    """Runs that belong to no column of the paper."""

    @property
    def results(self) -> list[Result]:
        return [result for results in self.by_recipe.values() for result in results]


def compare(results: Sequence[Result]) -> Comparison:
    """Sort the runs into the paper's columns and compare."""
    known, by_recipe, others = facts(), dict[str, list[Result]](), list[str]()
    for result in results:
        recipe = recipe_of(result.settings)
        if recipe is None:
            others.append(result.name)
        elif not any(r.seed == result.seed and r.evaluation == result.evaluation for r in by_recipe.get(recipe, ())):
            by_recipe.setdefault(recipe, []).append(result)
    if not by_recipe:
        raise RunError("no finished run is a column of the paper: train some with 'anybit sweep paper/cifar10-lenet5'")
    tables = [_table(key, table, known, by_recipe) for key, table in known.tables.items()
              if any(column.recipe in by_recipe for column in table.columns.values())]
    ours = {Cell(table.key, name, bits): cell.ours.mean for table in tables for name, column in table.columns.items()
            for bits, cell in column.cells.items() if cell.ours is not None}
    judged = tuple(_judge(claim, ours, known) for claim in known.claims)
    readings = {recipe: Settings.of(recipe, "W").readings(runs) for recipe, runs in by_recipe.items()}
    tried = [result for runs in readings.values() for reading in runs[1:] for result in reading]
    return Comparison(tuple(tables), judged, {recipe: runs[0] for recipe, runs in readings.items()}, tuple(tried),
                      tuple(others))


def _table(key: str, table: PaperTable, known: Facts, by_recipe: Mapping[str, Sequence[Result]]) -> ComparedTable:
    bits_shown = _bits(table, by_recipe)
    sites: SiteKinds = "W" if bits_shown == [FLOAT] else table.sites  # in full precision no activation is rounded
    own, others = {}, {}
    for name, column in table.columns.items():
        settings = Settings.of(column.recipe, sites)
        compared = []
        for results in settings.readings(by_recipe.get(column.recipe, ())):
            cells = {bits: _cell(Cell(key, name, bits), str(Width.of(table.sites, bits)), results, known)
                     for bits in bits_shown}
            seeds = tuple(sorted(r.seed for r in results))
            said = (settings.deviations(results), settings.overrides(results[0]), settings.reading(results[0])) \
                if results else ((), (), ())
            compared.append(ComparedColumn(column.title, column.recipe, cells, seeds, *said))
        own[name], others[name] = compared[0], tuple(compared[1:])
    return ComparedTable(key, table.title, table.number, table.sites, own, others)


def _bits(table: PaperTable, by_recipe: Mapping[str, Sequence[Result]]) -> list[int]:
    """The rows that the paper prints; of a table without figures, those that we evaluated."""
    printed = {bits for column in table.columns.values() for bits in column.values}
    evaluated = {bits for column in table.columns.values() for result in by_recipe.get(column.recipe, ())
                 for bits in result.settings.evaluation.bits}
    return sorted(printed or evaluated, reverse=True)


def _cell(cell: Cell, width: str, results: Sequence[Result], known: Facts) -> Compared:
    def measured(steps: str | None) -> Measured | None:
        return Measured.of([value for r in results if (value := r.metric(width, steps)) is not None])

    reestimated = measured("mse") if any(r.own != "mse" for r in results) else None
    return Compared(known.value(cell), measured(None), reestimated, known.suspect.get(cell))


def _judge(claim: Claim, ours: Mapping[Cell, float], known: Facts) -> Verdict:
    def both(value: Callable[[Cell], float | None]) -> list[tuple[float, float]]:
        found = [(value(left), value(right)) for left, right in pairs]
        return [(left, right) for left, right in found if left is not None and right is not None]

    pairs = claim.pairs()
    mine, theirs = both(ours.get), both(known.value)
    return Verdict(claim, len(pairs), len(mine), sum(claim.holds(*pair) for pair in mine), len(theirs),
                   sum(claim.holds(*pair) for pair in theirs), min((claim.slack(*pair) for pair in mine), default=None))
