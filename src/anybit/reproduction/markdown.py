"""The comparison with the paper as two Markdown pages: a summary, and every figure, setting and reading behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from anybit.report.tables import MISSING
from anybit.reproduction import text
from anybit.reproduction.agreement import Departure, agreement, counts, departures
from anybit.reproduction.compare import TOLERANCE, Compared, ComparedColumn, ComparedTable, Comparison, Verdict
from anybit.reproduction.facts import facts
from anybit.reproduction.overfitting import courses

_SUMMARY = ("Accuracy in percent on the whole test set. Cells: ours, with the standard deviation over seeds where there are "
            f"several · the paper's · the difference, **bold** beyond {TOLERANCE:g} points; a figure of the paper marked ? "
            "is doubted. The figures show the same: lines with markers ours, dashed the paper's, dotted ours under the "
            "reading of the paper that comes nearest. {details}: two decimals, seeds, settings, doubts, other readings, and "
            "the commands that train every column again. `anybit collect` keeps their results, and `anybit report --paper "
            "RESULTS --out IMAGES --markdown PAGE` makes these pages.")
_DETAILS = ("Accuracy in percent, mean ± standard deviation over seeds, on the whole test set. *Difference*: ours − paper, "
            f"**bold** beyond {TOLERANCE:g} points. *Re-estimated*: with steps found again after training (weights by least "
            "squared error, activations by the run's own rule) instead of the variant's own, where that changes a figure by "
            f"more than {TOLERANCE:g} points. A figure of the paper marked ? is doubted below its table. The command above "
            "a table trains its columns.")
_READINGS = ("What the paper leaves open, tried otherwise than in the recipe: each line names the settings to add to the "
             "command. *Off by*: the mean distance from the paper's figures, doubted ones aside. A step rule of the "
             "evaluation alone (`ranges.evaluate`; `mse`: found again after training) is listed where it is nearer than the "
             "variant's own.")
_COUNTS = "Table by table, those in several tables with the first:"
_DEPARTURES = (f"Every column with a figure that is off by more than {TOLERANCE:g} points: at which bits and by how much on "
               "average, as in the recipe and under the reading of the paper that comes nearest; all readings that were "
               "tried are [behind the figures]({details}). "
               "*Chance*: ours and the paper's, which is one seed (CIFAR-10: on 5,000 images), differ by less than two "
               "standard deviations of such a difference (those of the baseline for one seed of a variant that does not "
               "round in training).")
_CLAIMS = ("Every ordering that the paper's text claims and that was measured. Where a claim compares several figures, how "
           "many of the comparisons hold. *By*: how far the narrowest of them is from turning over, in points; less than "
           "the deviation over seeds is no evidence either way.")
_COURSES = ("Left: test loss, of MQAT after quantization at the lowest width it trains at, else in full precision. Right: "
            "test accuracy in full precision. Mean over seeds, with their extremes shaded.")
_SUFFIX = "-readings"


def details_of(page: Path) -> Path:
    """Return the place of the second page, beside the first."""
    return page.with_name(f"{page.stem}{_SUFFIX}{page.suffix}")


def summary(comparison: Comparison, images: Path, page: Path) -> str:
    """Write the page of all tables and claims, with the plots in the folder `images`."""
    beside = Path(os.path.relpath(str(images), str(page.parent)))
    said = _SUMMARY.format(details=f"[Behind the figures]({details_of(page).name})")
    lines = ["# Ours and the paper's\n", f"The paper: {facts().citation}.\n", f"{said}\n",
             f"{agreement(comparison.tables)} {_COUNTS}\n", _table(_COUNTS_HEAD, _counts(comparison.tables)), ""]
    for table in comparison.tables:
        lines += [f"## {_title(table)}\n", *(f"{note}\n" for note in text.short_notes(table)), _compact(table), "",
                  _image(table.title, beside / f"paper-{table.key}.png")]
    if found := departures(comparison.tables):
        lines += [f"## Beyond {TOLERANCE:g} points\n", f"{_DEPARTURES.format(details=details_of(page).name)}\n",
                  _table(_DEPARTURE_HEAD, [_departure(d) for d in found]), ""]
    if homes := courses(comparison.by_recipe):
        lines += ["## Overfitting\n", f"{_COURSES}\n"]
        lines += [_image(home, beside / f"overfitting-{home}.png") for home in homes]
    verdicts = [verdict for verdict in comparison.verdicts if verdict.measured]
    lines += ["## Claims\n", f"{_CLAIMS} {_not_measured(comparison.verdicts)}\n",
              _table(text.CLAIM_HEAD, text.claim_rows(verdicts))]
    return "\n".join([*lines, "\n## Runs\n", *(f"- {line}" for line in text.conditions(comparison))]) + "\n"


def details(comparison: Comparison, page: Path) -> str:
    """Write the page of everything behind the summary `page`."""
    lines = ["# Behind the figures\n", f"All of [ours and the paper's]({page.name}). {_DETAILS}\n"]
    for table in comparison.tables:
        lines += [f"## {_title(table)}\n", "```", *text.commands(table), "```\n",
                  _table(text.head(table), _bold(text.rows(table))), "", *(f"- {note}" for note in text.notes(table)), ""]
        if readings := text.reading_rows(table):
            lines += [f"### Other readings of {text.label(table)}\n", f"{_READINGS}\n",
                      _table([*text.head(table), text.READING_HEAD], readings), ""]
    for home, courses_of in courses(comparison.by_recipe).items():
        lines += [f"## Overfitting: {home}\n", _table(text.OVERFITTING_HEAD, text.overfitting_rows(courses_of)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _title(table: ComparedTable) -> str:
    return f"{table.title} ({table.number if table.number.startswith('Table') else 'not in the paper'})"


def _image(title: str, path: Path) -> str:
    return f"![{title}]({path.as_posix()})\n"


def _compact(table: ComparedTable) -> str:
    """Make one line per variant, of one decimal; a table of one width lists its three figures in columns."""
    columns = text.measured(table)
    if len(table.bits) == 1:
        (bits,) = table.bits
        return _table(["", "ours", "paper", "difference"], [[c.title, *_figures(c.cells[bits])] for c in columns])
    return _table(text.head(table), [[c.title, *(" · ".join(figure for figure in _figures(c.cells[bits]) if figure)
                                                 for bits in table.bits)] for c in columns])


def _figures(cell: Compared) -> list[str]:
    """Return ours, the paper's and the difference; nothing in place of the last two where the paper has no figure."""
    if cell.ours is None:
        return [MISSING, "", ""]
    ours = f"{cell.ours.mean:.1f}" + ("" if cell.ours.std is None else f" ± {cell.ours.std:.1f}")
    if cell.paper is None or cell.difference is None:
        return [ours, "", ""]
    points = text.signed(cell.difference, 1)
    return [ours, f"{cell.paper:.1f}{'?' if cell.suspect else ''}", points if cell.within else f"**{points}**"]


_COUNTS_HEAD = ["", "figures", "within, recipes", "within, nearest readings"]


def _counts(tables: Sequence[ComparedTable]) -> text.Rows:
    """List how many figures of each table agree, by the recipes and by the nearest readings."""
    best = counts(tables, ComparedTable.best)
    return [[_title(table), str(recipe.figures), str(recipe.within), str(reading.within)]
            for table, recipe, reading in zip(tables, counts(tables), best, strict=True) if recipe.figures]


_DEPARTURE_HEAD = ["", "at bits", "off by", "nearest reading", "at bits", "off by", "what may be behind it"]


def _departure(found: Departure) -> list[str]:
    column, best = found.column, found.best
    nearest = [MISSING] * 3 if best is column else [f"`{' '.join(best.reading)}`", *_beyond(best)]
    return [f"{column.title}, {found.table.number}", *_beyond(column), *nearest, found.explanation]


def _beyond(column: ComparedColumn) -> list[str]:
    return [", ".join(map(str, column.beyond)) or "none", f"{column.off:.2f}"]


def _not_measured(verdicts: Sequence[Verdict]) -> str:
    missing = [facts().tables[verdict.claim.table].number for verdict in verdicts if not verdict.measured]
    return f"Not measured: {len(missing)} more, of {', '.join(dict.fromkeys(missing))}." if missing else ""


def _bold(lines: text.Rows) -> text.Rows:
    return [[f"**{cell.removesuffix(text.BEYOND)}**" if cell.endswith(text.BEYOND) else cell for cell in line]
            for line in lines]


def _table(columns: Sequence[str], lines: text.Rows) -> str:
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)])
