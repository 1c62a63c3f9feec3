"""Our figures against the paper's, cell by cell, and the verdicts on the orderings that its text claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anybit.config import from_recipe
from anybit.errors import RunError
from anybit.quant.grid import FLOAT, SiteKinds, Width
from anybit.reproduction.facts import Cell, Claim, Facts, PaperTable, facts, recipe_of
from anybit.reproduction.settings import Settings, short
from anybit.sweeps.results import Result

TOLERANCE = 2.0
"""Points of accuracy within which two figures agree: the paper's come from one seed, and CIFAR-10's from 5,000 images."""


NEARER = 0.1
"""Points of the mean distance by which another step rule of the evaluation must be nearer to be a reading of its own."""


@dataclass(frozen=True)
class Measured:
    """Our figure over seeds."""

    mean: float
    std: float | None
    """None with one seed."""


@dataclass(frozen=True)
class Compared:
    """One cell of a table: our figure and the paper's."""

    paper: float | None
    ours: Measured | None
    reestimated: Measured | None
    """Our figure with step sizes re-estimated by mse after training, where mse is not the variant's own rule."""
    suspect: str | None
    """The reason to doubt the paper's figure."""

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours.mean - self.paper

    @property
    def within(self) -> bool | None:
        return None if self.difference is None else abs(self.difference) <= TOLERANCE

    @property
    def depends_on_steps(self) -> bool:
        """True if re-estimated step sizes give another figure."""
        return (self.ours is not None and self.reestimated is not None
                and abs(self.ours.mean - self.reestimated.mean) > TOLERANCE)


@dataclass(frozen=True)
class ComparedColumn:
    """The column of one variant."""

    title: str
    recipe: str
    cells: Mapping[int, Compared]
    seeds: tuple[int, ...]
    deviations: tuple[str, ...]
    """Settings in which our runs differ from the recipe."""
    overrides: tuple[str, ...] = ()
    """Settings beside the recipe that train it again."""
    reading: tuple[str, ...] = ()
    """The overrides that change what is trained."""
    images: int = PaperTable.images
    """The images behind the paper's figures."""
    scatter: Mapping[int, float] = field(default_factory=dict)
    """Standard deviations over seeds by bits; the baseline's for one seed with step sizes found after training."""

    @property
    def short(self) -> bool:
        """True if it was trained for other rounds than the paper's: such figures are shown and judged, and not counted."""
        return short(self.reading)

    @property
    def rounds(self) -> str:
        """Its rounds and the paper's, where they differ."""
        trained = [int(setting.partition("=")[2]) for setting in self.reading if short([setting])]
        return "".join(f"{rounds:,} of {from_recipe(self.recipe).rounds:,} rounds" for rounds in trained)

    @property
    def differences(self) -> dict[int, float]:
        """Ours − the paper's by bits, doubted figures aside."""
        return {bits: cell.difference for bits, cell in self.cells.items()
                if cell.difference is not None and not cell.suspect}

    @property
    def drops(self) -> dict[int, float]:
        """The loss from full precision beyond the paper's, by bits: robustness apart from accuracy."""
        full = self.cells[FLOAT].difference if FLOAT in self.cells else None
        return {} if full is None else {bits: points - full for bits, points in self.differences.items() if bits != FLOAT}

    @property
    def off(self) -> float | None:
        """The mean distance of ours from the paper's."""
        return statistics.fmean(map(abs, self.differences.values())) if self.differences else None

    @property
    def beyond(self) -> dict[int, float]:
        """The differences that exceed the tolerance."""
        return {bits: points for bits, points in self.differences.items() if abs(points) > TOLERANCE}

    @property
    def chance(self) -> bool:
        """True if every difference beyond the tolerance lies within two standard deviations of a difference.

        Ours is a mean over n seeds, the paper's one seed on m images: σ² = s²·(1 + 1/n) + p·(1 − p)/m.
        """
        def allowed(bits: int) -> float:
            p = (self.cells[bits].paper or 0.0) / 100
            return 2 * math.hypot(self.scatter[bits] * math.sqrt(1 + 1 / len(self.seeds)),
                                  100 * math.sqrt(p * (1 - p) / self.images))

        return all(bits in self.scatter and abs(points) <= allowed(bits) for bits, points in self.beyond.items())


@dataclass(frozen=True)
class ComparedTable:
    """One table with at least one measured column."""

    key: str
    title: str
    number: str
    sites: SiteKinds
    columns: Mapping[str, ComparedColumn]
    readings: Mapping[str, tuple[ComparedColumn, ...]]
    """By column: the same under readings of the paper other than the recipe's, which may differ in the training or, where
    that is nearer, in the step rule of the evaluation alone (ranges.evaluate)."""

    def best(self, name: str) -> ComparedColumn:
        """Return a column under the reading of least mean distance from the paper's figures."""
        return min(self.whole(name), key=lambda column: column.off or 0.0)

    def fullest(self, name: str) -> ComparedColumn:
        """Return a column under the reading with most figures within the tolerance, the nearest of equals."""
        return min(self.whole(name), key=lambda column: (len(column.beyond), column.off or 0.0))

    def whole(self, name: str) -> list[ComparedColumn]:
        """List a column under the recipe's reading and the others trained for all of the paper's rounds."""
        own = self.columns[name]
        return [own] if own.off is None else \
            [own, *(column for column in self.readings[name] if column.off is not None and not column.short)]

    @property
    def bits(self) -> list[int]:
        return sorted({bits for column in self.columns.values() for bits in column.cells}, reverse=True)


@dataclass(frozen=True)
class Verdict:
    """The numbers of a claim's comparisons that were measured and that hold, in our figures and in the paper's."""

    claim: Claim
    pairs: int
    measured: int
    holding: int
    paper_measured: int
    paper_holding: int
    narrowest: float | None
    """The margin by which the closest of our comparisons holds; negative if it does not hold."""

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
    """All our figures and the paper's."""

    tables: tuple[ComparedTable, ...]
    verdicts: tuple[Verdict, ...]
    by_recipe: Mapping[str, Sequence[Result]]
    """The runs of the columns, without those of other readings."""
    tried: tuple[Result, ...]
    """The runs of other readings."""
    others: tuple[str, ...]
    """Runs that belong to no column of the paper."""


def compare(results: Sequence[Result]) -> Comparison:
    """Sort the runs into the paper's columns and compare them."""
    known, by_recipe, unmatched = facts(), dict[str, list[Result]](), list[str]()
    for result in results:
        recipe = recipe_of(result.settings)
        if recipe is not None:
            _check_percent(result)
        if recipe is None:
            unmatched.append(result.name)
        elif not any(r.seed == result.seed and r.evaluation == result.evaluation for r in by_recipe.get(recipe, ())):
            by_recipe.setdefault(recipe, []).append(result)
    if not by_recipe:
        raise RunError("no finished run is a column of the paper: train some with 'anybit sweep paper/cifar10-lenet5'")
    tables = [_table(key, table, known, by_recipe) for key, table in known.tables.items()
              if any(column.recipe in by_recipe for column in table.columns.values())]
    ours = {Cell(table.key, name, bits): cell.ours.mean for table in tables for name, column in table.columns.items()
            for bits, cell in column.cells.items() if cell.ours is not None}
    verdicts = tuple(_judge(claim, ours, known) for claim in known.claims)
    readings = {recipe: Settings.of(recipe, "W").readings(runs) for recipe, runs in by_recipe.items()}
    tried = [result for runs in readings.values() for reading in runs[1:] for result in reading]
    return Comparison(tuple(tables), verdicts, {recipe: runs[0] for recipe, runs in readings.items()}, tuple(tried),
                      tuple(unmatched))


def _check_percent(result: Result) -> None:
    """Raise unless the scores are accuracies, as the paper's figures are."""
    for rule, scores in result.evaluation["grid"].items():
        for width, score in scores.items():
            if not 0 <= score["metric"] <= 100:  # nan is not
                raise RunError(f"{result.name} has {score['metric']} at {width} (steps {rule}), which is no accuracy in "
                               "percent: collect it again")


def _table(key: str, table: PaperTable, known: Facts, by_recipe: Mapping[str, Sequence[Result]]) -> ComparedTable:
    printed = {bits for column in table.columns.values() for bits in column.values}
    evaluated = {bits for column in table.columns.values() for result in by_recipe.get(column.recipe, ())
                 for bits in result.settings.evaluation.bits}
    bits_shown = sorted(printed or evaluated, reverse=True)  # the paper prints no figures of FEMNIST
    sites: SiteKinds = "W" if bits_shown == [FLOAT] else table.sites  # in full precision no activation is rounded
    columns, readings = {}, {}
    for name, column in table.columns.items():
        settings = Settings.of(column.recipe, sites)
        compared = list[ComparedColumn]()
        runs = by_recipe.get(column.recipe, ())
        alike = by_recipe.get(column.like, ()) if column.like and runs else ()
        for results in settings.readings([*runs, *alike]):
            by_rule = {steps: {bits: _cell(Cell(key, name, bits), str(Width.of(table.sites, bits)), results, known, steps)
                               for bits in bits_shown} for steps in (None, *_other_rules(results))}
            differing = (settings.deviations(results), settings.overrides(results[0]), settings.reading(results[0])) \
                if results else ((), (), ())
            own = ComparedColumn(column.title, column.recipe, by_rule.pop(None), tuple(sorted(r.seed for r in results)),
                                 *differing)
            compared += [own, *_nearer(own, by_rule)]
        columns[name], readings[name] = compared[0], tuple(compared[1:])
        after = all(result.own == "mse" for result in runs)
        scatter = _scatter(columns[name]) or (_scatter(columns["baseline"]) if after and "baseline" in columns else {})
        columns[name] = replace(columns[name], images=table.images, scatter=scatter)
    return ComparedTable(key, table.title, table.number, table.sites, columns, readings)


def _nearer(own: ComparedColumn, by_rule: Mapping[str | None, Mapping[int, Compared]]) -> list[ComparedColumn]:
    """Return the column by those other step rules of the evaluation that bring it nearer to the paper's."""
    others = [replace(own, cells=cells, overrides=(*own.overrides, f"ranges.evaluate={steps}"),
                      reading=(*own.reading, f"ranges.evaluate={steps}")) for steps, cells in by_rule.items()]
    return [other for other in others if own.off is not None and other.off is not None and other.off < own.off - NEARER]


def _other_rules(results: Sequence[Result]) -> list[str]:
    """List the step rules by which all of these runs were evaluated in the end, beside their own."""
    graded = [set(result.evaluation["grid"]) - {result.own} for result in results]
    return sorted(set.intersection(*graded)) if graded else []


def _scatter(column: ComparedColumn) -> dict[int, float]:
    return {bits: cell.ours.std for bits, cell in column.cells.items() if cell.ours and cell.ours.std is not None}


def _cell(cell: Cell, width: str, results: Sequence[Result], known: Facts, steps: str | None) -> Compared:
    def measured(rule: str | None) -> Measured | None:
        values = [value for r in results if (value := r.metric(width, rule)) is not None]
        std = statistics.stdev(values) if len(values) > 1 else None
        return Measured(statistics.fmean(values), std) if values else None

    reestimated = measured("mse") if steps is None and any(r.own != "mse" for r in results) else None
    return Compared(known.value(cell), measured(steps), reestimated, known.suspect.get(cell))


def _judge(claim: Claim, ours: Mapping[Cell, float], known: Facts) -> Verdict:
    def known_pairs(value: Callable[[Cell], float | None]) -> list[tuple[float, float]]:
        values = [(value(left), value(right)) for left, right in pairs]
        return [(left, right) for left, right in values if left is not None and right is not None]

    pairs = claim.pairs()
    measured, printed = known_pairs(ours.get), known_pairs(known.value)
    return Verdict(claim, len(pairs), len(measured), sum(claim.holds(*pair) for pair in measured), len(printed),
                   sum(claim.holds(*pair) for pair in printed), min((claim.slack(*pair) for pair in measured), default=None))
