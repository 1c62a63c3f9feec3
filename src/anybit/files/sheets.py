"""Tables as CSV, which spreadsheets open."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def as_csv(lines: Iterable[Iterable[object]]) -> str:
    """Write lines of cells."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def _inert(cell: object) -> object:
    """Put a quote before text that a spreadsheet would take for a formula: names come from files of strangers."""
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\r", " ")  # which the csv module does not quote, and which would begin a new row
    return f"'{text}" if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) and not _NUMBER.fullmatch(cell) else text
