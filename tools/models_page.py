"""Write docs/models.md from the table of models that the tests prove: python tools/models_page.py"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/models.md"
START = "<!-- From tests/models/cases.py by 'make models-page' -->"


def table() -> str:
    """Return what is proven and what is refused, as Markdown; no library of models is imported for it."""
    sys.path.insert(0, str(ROOT))
    cases = importlib.import_module("tests.models.cases")
    sys.path.remove(str(ROOT))
    lines = [f"| model | what is in it | {' | '.join(cases.CHECKS.values())} |", f"|---|---|{'---|' * len(cases.CHECKS)}"]
    notes: list[str] = []
    for case in cases.CASES:
        notes += [error for error in case.refusals.values() if error not in notes]
        marks = [f"refused ({notes.index(case.refusals[check]) + 1})" if check in case.refusals else "✓"
                 for check in cases.CHECKS]
        kept = f"; in float: {', '.join(f'`{name}`' for name in case.in_float)}" if case.in_float else ""
        lines.append(f"| {case.name} | {case.about}{kept} | {' | '.join(marks)} |")
    lines += ["", *(f"({number}) {error}." for number, error in enumerate(notes, 1))]
    lines += ["", "## What is refused", "", "Each is an error of one line before the first round, and is tested.", "",
              "| model with | error says | what to do |", "|---|---|---|"]
    lines += [f"| {case.name} | {case.error} | {case.fix} |" for case in cases.REFUSALS]
    return "\n".join(lines) + "\n"


def page(current: str) -> str:
    """Return the page with its table made anew; what stands before it is written by hand."""
    return f"{current.partition(START)[0]}{START}\n\n{table()}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
