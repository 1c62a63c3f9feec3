"""Means and standard deviations over runs that differ in their seed alone."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anybit.config.compare import flatten
from anybit.federated.metrics import Meaning
from anybit.report.tables import MISSING, Table, best_of
from anybit.training.reading import RunRecord

_OWN = ("seed", "engine", "device", "threads", "checkpoint_every", "compute.convolution", "compute.workers")
"""Settings in which runs of one column may differ: the seed, and what a machine chooses."""
_NAMED = re.compile(r"-seed\d+$")
_DIGEST = re.compile(r", sha256 \w+")


@dataclass(frozen=True)
class SeedsTable:
    """The scores of a table by group of runs: {width: (mean, standard deviation; none of a single value)}."""

    score: Meaning
    digits: int
    groups: Mapping[str, tuple[int, ...]]
    """{name without the seed: its seeds}."""
    scores: Mapping[str, Mapping[str, tuple[float, float | None]]]
    """{group: {width: …}}."""

    @property
    def columns(self) -> list[str]:
        return ["width", *(f"{name} ({len(seeds)})" for name, seeds in self.groups.items())]

    @property
    def widths(self) -> list[str]:
        return list(dict.fromkeys(width for scores in self.scores.values() for width in scores))

    def cells(self) -> list[list[str]]:
        """Return the rows as text: mean ± standard deviation."""
        return [[width, *(self._text(self.scores[name].get(width)) for name in self.groups)] for width in self.widths]

    def marks(self) -> list[list[bool]]:
        """Mark the best mean of `cells` in each row."""
        means = [[self.scores[name].get(width, (None, None))[0] for name in self.groups] for width in self.widths]
        return [[False, *best_of(row, self.score, self.digits)] for row in means]

    def _text(self, score: tuple[float, float | None] | None) -> str:
        if score is None:
            return MISSING
        mean, std = score
        return f"{mean:.{self.digits}f}" + ("" if std is None else f" ± {std:.{self.digits}f}")

    def as_json(self) -> list[dict[str, Any]]:
        return [{"name": name, "seeds": list(seeds), "scores": {width: {"mean": mean, "std": std}
                                                               for width, (mean, std) in self.scores[name].items()}}
                for name, seeds in self.groups.items()]


def seeds_table(runs: Sequence[RunRecord], table: Table) -> SeedsTable | None:
    """Average the columns of a table over seeds; none where no finished run has another seed beside it."""
    by_seed: dict[str, list[dict[int, int]]] = {}
    for i, run in enumerate(runs):
        if run.finished:
            seed, columns = int(run.config.get("seed", 0)), by_seed.setdefault(_alike(run), [])
            column = next((column for column in columns if seed not in column), None)  # the same again is no other seed
            if column is None:
                columns.append(column := {})
            column[seed] = i
    alike = sorted(list(column.values()) for columns in by_seed.values() for column in columns)
    if not any(len(places) > 1 for places in alike):
        return None
    groups, scores = dict[str, tuple[int, ...]](), dict[str, dict[str, tuple[float, float | None]]]()
    for places in alike:
        name = _NAMED.sub("", runs[places[0]].name)
        name = name if name not in groups else runs[places[0]].name
        groups[name] = tuple(int(runs[i].config.get("seed", 0)) for i in places)
        scores[name] = {}
        for row in table.rows:
            if values := [value for i in places if (value := row.values[i]) is not None]:
                scores[name][row.width] = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    return SeedsTable(table.score, table.digits, groups, scores)


def _alike(run: RunRecord) -> str:
    """Return what runs of one column have in common: settings, model, data, loss and metric.

    Runs that are named NAME-seed1, NAME-seed2 say so themselves: their seeds may have drawn clients of their own.
    """
    settings = {key: value for key, value in flatten(run.config).items() if key not in _OWN}
    stem, named = _NAMED.subn("", run.name)
    task = json.dumps(run.task, sort_keys=True)
    return json.dumps([settings, _DIGEST.sub("", task) if named else task, stem if named else ""], sort_keys=True)
