"""The comparison with the paper as rows to print and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from anybit.config import Config, from_recipe
from anybit.report.tables import MISSING
from anybit.reproduction.compare import Compared, ComparedColumn, ComparedTable, Comparison, Measured, Verdict
from anybit.reproduction.facts import PaperTable, facts
from anybit.reproduction.overfitting import Course
from anybit.sweeps.results import Result

Rows = list[list[str]]

BEYOND = " !"
"""The mark of a difference beyond the tolerance."""

def head(table: ComparedTable) -> list[str]:
    return ["", *(str(bits) for bits in table.bits)]


def rows(table: ComparedTable) -> Rows:
    """List ours, the paper's, the difference and, if step sizes matter, the re-estimated figures of measured columns."""
    lines: Rows = []
    for column in measured(table):
        cells = [column.cells[bits] for bits in table.bits]
        lines.append([f"{column.title}, ours", *(_mean(cell.ours) for cell in cells)])
        if any(cell.depends_on_steps for cell in cells):
            lines.append(["  re-estimated", *(_mean(cell.reestimated) for cell in cells)])
        if any(cell.paper is not None for cell in cells):
            lines.append(["  paper", *(_paper(cell) for cell in cells)])
            lines.append(["  difference", *(_difference(cell) for cell in cells)])
    return lines


READING_HEAD = "off by"


def reading_rows(table: ComparedTable) -> Rows:
    """List the paper's figures and ours under every reading, with their distance, of columns with several readings."""
    lines: Rows = []
    for name, readings in table.readings.items():
        if readings:
            shown = table.columns[name]
            lines.append([f"{shown.title}, paper", *(_paper(shown.cells[bits]) for bits in table.bits), ""])
            for column in (shown, *readings):
                means = (_mean(column.cells[bits].ours) for bits in table.bits)
                lines.append([f"  {' '.join(column.reading) or 'as in the recipe'}", *means,
                              MISSING if column.off is None else f"{column.off:.2f}"])
    return lines


def measured(table: ComparedTable) -> list[ComparedColumn]:
    return [column for column in table.columns.values() if column.seeds]


def _mean(value: Measured | None) -> str:
    if value is None:
        return MISSING
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def _paper(cell: Compared) -> str:
    return MISSING if cell.paper is None else f"{cell.paper:.2f}{' ?' if cell.suspect else ''}"


def _difference(cell: Compared) -> str:
    if cell.difference is None:
        return MISSING
    return f"{signed(cell.difference)}{'' if cell.within else BEYOND}"


def signed(points: float, decimals: int = 2) -> str:
    return f"{points:+.{decimals}f}".replace("-", "−")


def notes(table: ComparedTable) -> list[str]:
    """List the notes on a table: seeds, split, step sizes, settings of ours that differ, and doubted figures."""
    lines = []
    configs = {column.title: from_recipe(column.recipe) for column in measured(table)}
    for seeds in dict.fromkeys(column.seeds for column in measured(table)):
        names = [column.title for column in measured(table) if column.seeds == seeds]
        lines.append(f"Seeds {', '.join(map(str, seeds))}: {', '.join(names)}.")
    for split in dict.fromkeys(_split(config) for config in configs.values()):
        lines.append(f"Clients: {split}.")
    rules = list(dict.fromkeys(config.ranges.activations for config in configs.values()))
    for rule in rules if len(rules) > 1 else ():
        names = [title for title, config in configs.items() if config.ranges.activations == rule]
        lines.append(f"Activation steps ({', '.join(names)}): ranges.activations = {rule}.")
    for clip in dict.fromkeys(config.client.clip for config in configs.values() if config.client.clip):
        names = [title for title, config in configs.items() if config.client.clip == clip]
        lines.append(f"Not in the paper ({', '.join(names)}): client.clip = {clip:g}, the longest gradient of a local step.")
    for deviations in dict.fromkeys(column.deviations for column in measured(table) if column.deviations):
        names = [column.title for column in measured(table) if column.deviations == deviations]
        lines.append(f"Not the recipe's setting ({', '.join(names)}): {'; '.join(deviations)}.")
    suspect = {cell: why for cell, why in facts().suspect.items()
               if cell.table == table.key and table.columns[cell.column].seeds}
    for why in dict.fromkeys(suspect.values()):
        cells = [cell for cell, reason in suspect.items() if reason == why]
        bits = "all bits" if len(cells) == len(table.bits) > 1 else f"{', '.join(str(c.bits) for c in cells)} bits"
        lines.append(f"? {table.columns[cells[0].column].title} at {bits}: {why}.")
    return lines


def short_notes(table: ComparedTable) -> list[str]:
    """Name the columns that were not trained for all rounds of the paper."""
    columns = measured(table)
    notes = []
    for rounds in dict.fromkeys(column.rounds for column in columns if column.short):
        names = [column.title for column in columns if column.rounds == rounds]
        notes.append(f"Trained for {rounds}" + ("." if len(names) == len(columns) else f": {', '.join(names)}."))
    return notes


def _split(config: Config) -> str:
    settings = [f"split.{name} = {value}" for name, value in config.split.arguments.items()]
    return ", ".join([f"split.name = {config.split.name}", *settings])


def commands(table: ComparedTable) -> list[str]:
    """List the commands that train the columns of a table again."""
    together: dict[tuple[tuple[int, ...], tuple[str, ...]], list[str]] = {}
    for column in measured(table):
        together.setdefault((column.seeds, column.overrides), []).append(column.recipe)
    return [" ".join(["anybit sweep", *recipes, f"--seeds {','.join(map(str, seeds))}", *overrides])
            for (seeds, overrides), recipes in together.items()]


CLAIM_HEAD = ["claim", "table", "ours", "by", "paper's figures", "where"]


def claim_rows(verdicts: Sequence[Verdict]) -> Rows:
    """List the verdicts on all claims, with the measured part of a claim."""
    tables = facts().tables
    return [[v.claim.says, label(tables[v.claim.table]), _verdict(v.ours, v.holding, v.measured, v.pairs),
             MISSING if v.narrowest is None else signed(v.narrowest),
             _verdict(v.paper, v.paper_holding, v.paper_measured, v.pairs), v.claim.place] for v in verdicts]


def label(table: PaperTable | ComparedTable) -> str:
    """Name a table in few words: by its number, or by its data where the paper has no such table."""
    return table.number if table.number.startswith("Table") else table.title.partition(",")[0]


def _verdict(word: str, holding: int, measured: int, pairs: int) -> str:
    if not measured or (measured == pairs == 1) or (holding == measured == pairs):
        return word
    return f"{word} ({holding} of {measured}" + (f", {pairs - measured} not measured)" if measured < pairs else ")")


OVERFITTING_HEAD = ["test loss", "at width", "least", "in round", "in the end", "risen by"]


def overfitting_rows(lines: Sequence[Course]) -> Rows:
    """List the least and the last test loss of each variant."""
    return [[c.title, c.width, f"{c.loss.mean.min():.3f}", str(c.loss.best_round), f"{c.loss.mean[-1]:.3f}",
             f"{c.loss.risen:.3f}"] for c in lines]


def conditions(comparison: Comparison) -> list[str]:
    """List the conditions under which the figures were made."""
    results = [result for results in comparison.by_recipe.values() for result in results]
    values = {"test images": {f"{r.settings.data.name} {r.evaluation['test_examples']:,}" for r in results},
              "device": {str(r.environment.get("gpu") or r.environment.get("cpu", "?")) for r in results},
              "torch": {str(r.environment.get("torch", "?")) for r in results},
              "anybit": {str(r.environment.get("anybit", "?")) for r in results}}
    tried = f", {_took(comparison.tried)} of other readings" if comparison.tried else ""
    return [f"{_took(results)} in the tables{tried}",
            *(f"{condition}: {', '.join(sorted(texts))}" for condition, texts in values.items())]


def _took(results: Sequence[Result]) -> str:
    return f"{len(results)} runs ({sum(r.seconds for r in results) / 3600:.1f} hours of training)"


def as_json(comparison: Comparison) -> dict[str, Any]:
    tables = {table.key: {"title": table.title, "number": table.number, "columns": {
        name: {**_column_json(column), "readings": [{"overrides": list(reading.reading), **_column_json(reading)}
                                                    for reading in table.readings[name]]}
        for name, column in table.columns.items() if column.seeds}} for table in comparison.tables}
    claims = [{"says": v.claim.says, "table": v.claim.table, "place": v.claim.place, "quote": v.claim.quote,
               "ours": v.ours, "paper": v.paper, "pairs": v.pairs, "measured": v.measured, "holding": v.holding,
               "by": v.narrowest}
              for v in comparison.verdicts]
    return {"tables": tables, "claims": claims, "other_runs": list(comparison.others)}


def _column_json(column: ComparedColumn) -> dict[str, Any]:
    return {"recipe": column.recipe, "seeds": list(column.seeds), "deviations": list(column.deviations),
            "cells": {str(bits): _cell_json(cell) for bits, cell in column.cells.items()}}


def _cell_json(cell: Compared) -> dict[str, Any]:
    ours, reestimated = (None if m is None else {"mean": m.mean, "std": m.std} for m in (cell.ours, cell.reestimated))
    return {"ours": ours, "reestimated": reestimated, "paper": cell.paper, "difference": cell.difference,
            "within": cell.within, "suspect": cell.suspect}
