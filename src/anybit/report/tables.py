"""Tables as plain data, for the command line, the page, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anybit.config.compare import compared
from anybit.federated.metrics import ACCURACY, Meaning, metric_column, named
from anybit.files.sheets import as_csv
from anybit.quant.grid import FLOAT, Width
from anybit.training.reading import RunRecord

Score = Literal["metric", "loss"]

MISSING = "–"
LOSS = Meaning("loss", "lower", "")
_GROUPS = ("full precision", "weights", "activations", "weights and activations", "mixed")


@dataclass(frozen=True)
class Row:
    """The row of one width."""

    width: str
    group: str
    """The quantized tensors: none, weights, activations, both, or both at different bits."""
    values: tuple[float | None, ...]
    best: tuple[bool, ...]


@dataclass(frozen=True)
class Table:
    """A score at widths (rows) × runs or step rules (the columns after the first)."""

    score: Meaning
    digits: int
    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def cells(self) -> list[list[str]]:
        """Return the rows as text."""
        return [[row.width, *(MISSING if v is None else f"{v:.{self.digits}f}" for v in row.values)] for row in self.rows]

    def marks(self) -> list[list[bool]]:
        """Mark the best of `cells` in each row: all of a tie, and none without a comparison."""
        return [[False, *row.best] for row in self.rows]

    def as_json(self) -> dict[str, Any]:
        names = self.columns[1:]
        return {"score": self.score.name, "better": self.score.better,
                "rows": [{"width": row.width, "values": dict(zip(names, row.values, strict=True)),
                          "best": [n for n, best in zip(names, row.best, strict=True) if best]} for row in self.rows]}

    def as_csv(self) -> str:
        """Write the table with all digits; a missing value is an empty cell."""
        return as_csv([self.columns, *([row.width, *row.values] for row in self.rows)])


def shared_metric(runs: Sequence[RunRecord]) -> Meaning | None:
    """Return the metric by which the runs are compared; None if they have different ones.

    An unfinished run goes with the others; where none is finished, the names in their configs tell.
    """
    known = {run.metric for run in runs if run.metric is not None} or {
        named(str(run.config.get("metric", ACCURACY.name))) for run in runs}
    return known.pop() if len(known) == 1 else None


def accuracy_table(runs: Sequence[RunRecord]) -> Table:
    """Compare runs at their own step rules, one column per run; by loss if their metrics differ.

    No run is the best among others of another task: of other data, or another loss.
    """
    metric = shared_metric(runs)
    key: Score = "metric" if metric else "loss"
    tasks = {(str(run.config.get("data", {}).get("name")), str(run.config.get("loss"))) for run in runs}
    score = metric or LOSS
    return _table(score if len(tasks) == 1 else score._replace(better=None), key, [run.name for run in runs],
                  [run.scores for run in runs])


def grid_table(run: RunRecord, key: Score = "metric") -> Table:
    """Compare all step rules of one run."""
    score = (shared_metric([run]) or LOSS) if key == "metric" else LOSS
    return _table(score, key, list(run.grid), list(run.grid.values()))


def grid_csv(runs: Sequence[RunRecord]) -> str:
    """Write all evaluations, one line per run, step rule and width."""
    metric = metric_column(run.metric for run in runs)
    lines: list[Sequence[object]] = [("run", "variant", "steps", "width", "loss", metric)]
    for run in runs:
        for rule, scores in run.grid.items():
            lines += [(run.name, run.variant, rule, width, scores[width].get("loss"), scores[width].get("metric"))
                      for width in sorted_widths(scores)]
    return as_csv(lines)


def _table(score: Meaning, key: Score, names: Sequence[str], columns: Sequence[Mapping[str, Mapping[str, float]]]) -> Table:
    widths = sorted_widths({width for column in columns for width in column})
    values = [tuple(column.get(width, {}).get(key) for column in columns) for width in widths]
    largest = max((abs(v) for row in values for v in row if v is not None), default=0)
    digits = 2 if score.unit == "%" or largest >= 10 else 4
    rows = [Row(width, _GROUPS[_group(Width.parse(width))], row, best_of(row, score, digits))
            for width, row in zip(widths, values, strict=True)]
    return Table(score, digits, ("width", *names), tuple(rows))


def best_of(values: Sequence[float | None], score: Meaning, digits: int) -> tuple[bool, ...]:
    """Mark the best of some values: all of a tie, and none without a comparison."""
    # Values that read the same are the same: nobody should see 67.50 win over 67.50.
    shown = [None if v is None else round(v, digits) for v in values]
    known = [v for v in shown if v is not None]
    if len(known) < 2 or score.better is None:
        return (False,) * len(values)
    best = min(known) if score.better == "lower" else max(known)
    return tuple(v == best for v in shown)


def _group(width: Width) -> int:
    if width.activations == FLOAT:
        return 0 if width.weights == FLOAT else 1
    return 2 if width.weights == FLOAT else 3 if width.weights == width.activations else 4


def sorted_widths(names: Iterable[str]) -> list[str]:
    """Sort widths: FP32 first, then weights, activations, both, mixed; most bits first."""
    widths = {name: Width.parse(name) for name in names}
    return sorted(widths, key=lambda name: (_group(widths[name]), -widths[name].weights, -widths[name].activations))


def config_differences(runs: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """List (dotted key, its value in each run) for keys that differ."""
    return [(key, values) for key, values in _compared([run.config for run in runs]) if len(set(values)) > 1]


def environment_rows(runs: Sequence[RunRecord]) -> list[tuple[str, list[str]]]:
    """List (fact, [its value]), with its value in each run where they differ."""
    return [(key, values if len(set(values)) > 1 else values[:1])
            for key, values in _compared([run.environment for run in runs])]


def _compared(tables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    return [(key, list(map(_text, values))) for key, values in compared(tables, MISSING).items()]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return str(value)
