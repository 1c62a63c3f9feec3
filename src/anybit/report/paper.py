"""Ours against the paper's, cell by cell, and whether the orderings hold that its text claims."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anybit.build import written_out
from anybit.config import from_recipe
from anybit.errors import RunError
from anybit.paper import Cell, Claim, Facts, PaperTable, facts, recipe_of
from anybit.quant.grid import Width
from anybit.recipes import toml_value
from anybit.report.tables import flatten
from anybit.results import Result
from anybit.schema import plain

TOLERANCE = 2.0
"""Points of accuracy within which two figures agree: the paper's come from one seed and 5,000 images."""

_HOW = ("seed", "device", "engine", "threads", "checkpoint_every", "evaluation.")
"""Settings that do not change what is trained."""
_COMPUTED = "compute."
"""Settings of how it is computed: said below a table, and no other reading of the paper."""
_CHOSEN = ("seed", "device", "engine", "threads", "compute.convolution", "compute.workers")
"""Settings that a machine chooses, or that are said otherwise."""


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

    @property
    def reading(self) -> tuple[str, ...]:
        """Those of the overrides that change what is trained."""
        return tuple(said for said in self.overrides if not said.startswith((*_HOW, _COMPUTED)))

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
    readings = {recipe: _by_reading(recipe, runs) for recipe, runs in by_recipe.items()}
    tables = [_table(key, table, known, readings) for key, table in known.tables.items()
              if any(column.recipe in by_recipe for column in table.columns.values())]
    ours = {Cell(table.key, name, bits): cell.ours.mean for table in tables for name, column in table.columns.items()
            for bits, cell in column.cells.items() if cell.ours is not None}
    judged = tuple(_judge(claim, ours, known) for claim in known.claims)
    return Comparison(tuple(tables), judged, {recipe: runs[0] for recipe, runs in readings.items()}, tuple(others))


def _table(key: str, table: PaperTable, known: Facts, readings: Mapping[str, Sequence[Sequence[Result]]]) -> ComparedTable:
    bits_shown = _bits(table, {recipe: runs[0] for recipe, runs in readings.items()})

    def compared(name: str, results: Sequence[Result]) -> ComparedColumn:
        title, recipe = table.columns[name].title, table.columns[name].recipe
        cells = {bits: _cell(Cell(key, name, bits), str(Width.of(table.sites, bits)), results, known)
                 for bits in bits_shown}
        if not results:
            return ComparedColumn(title, recipe, cells, (), ())
        return ComparedColumn(title, recipe, cells, tuple(sorted(r.seed for r in results)), _deviations(recipe, results),
                              _overrides(recipe, results[0]))

    every = {name: readings.get(column.recipe, [()]) for name, column in table.columns.items()}
    return ComparedTable(key, table.title, table.number, {name: compared(name, runs[0]) for name, runs in every.items()},
                         {name: tuple(compared(name, each) for each in runs[1:]) for name, runs in every.items()})


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
    def count(values: list[tuple[float | None, float | None]]) -> tuple[int, int]:
        found = [(left, right) for left, right in values if left is not None and right is not None]
        return len(found), sum(claim.holds(left, right) for left, right in found)

    pairs = claim.pairs()
    return Verdict(claim, len(pairs), *count([(ours.get(left), ours.get(right)) for left, right in pairs]),
                   *count([(known.value(left), known.value(right)) for left, right in pairs]))


def _by_reading(recipe: str, results: Sequence[Result]) -> list[list[Result]]:
    """The runs of a column, those that train what the recipe says first; the others by what they do otherwise."""
    wanted, found = _training(plain(written_out(from_recipe(recipe)))), dict[str, list[Result]]()
    for result in results:
        otherwise = {key: value for key, value in _training(result.config).items()
                     if value != wanted.get(key) and not key.startswith(_COMPUTED)}
        found.setdefault(repr(sorted(otherwise.items())), []).append(result)
    return [runs for _, runs in sorted(found.items(), key=lambda reading: reading[0] != "[]")]


def _deviations(recipe: str, results: Sequence[Result]) -> tuple[str, ...]:
    """What our runs do otherwise than the recipe; runs that are computed in different ways are not averaged."""
    wanted = _training(plain(written_out(from_recipe(recipe))))
    every = [_training(result.config) for result in results]
    for key in {**wanted, **every[0]}:
        found = {repr(each.get(key)): result.name for each, result in zip(every, results, strict=True)}
        if len(found) > 1:
            raise RunError(f"{' and '.join(found.values())} differ in {key} ({', '.join(found)}): compare them with the "
                           "paper one at a time")
    return tuple(f"{key} = {value} instead of {wanted.get(key)}" for key, value in every[0].items()
                 if value != wanted.get(key))


def _overrides(recipe: str, result: Result) -> tuple[str, ...]:
    """As the command line takes them."""
    wanted, ours = (flatten(config) for config in (plain(written_out(from_recipe(recipe))), result.config))
    said = {key: value if isinstance(value, str) else toml_value(value)
            for key, value in ours.items() if value != wanted.get(key) and key not in _CHOSEN}
    return tuple(shlex.quote(f"{key}={value}") for key, value in said.items())


def _training(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(config).items() if not key.startswith(_HOW)}
