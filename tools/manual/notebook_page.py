"""Make the tutorial a notebook, docs/tutorials/own-model.ipynb: python tools/manual/notebook_page.py"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/tutorials/own-model.md"


def cells(page: str) -> list[tuple[str, str]]:
    """Return (kind, text) of every cell: Python as it stands, commands behind an exclamation mark, prose between them."""
    found = list[tuple[str, str]]()
    for prose, language, block in re.findall(r"(.*?)(?:```(\w+)\n(.*?)```\n|\Z)", page, re.DOTALL):
        if language == "text":
            prose = f"{prose}```text\n{block}```"
        if prose.strip():
            found.append(("markdown", prose.strip()))
        if language in ("python", "bash"):
            mark = "!" if language == "bash" else ""
            found.append(("code", "\n".join(f"{mark if line else ''}{line}" for line in block.strip().splitlines())))
    return found


def notebook(page: str) -> str:
    """Return the page as a notebook of format 4.5, without outputs."""
    made = list[dict[str, Any]]()
    for number, (kind, text) in enumerate(cells(page)):
        cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {},
                                "source": text.splitlines(keepends=True)}
        if kind == "code":
            cell |= {"execution_count": None, "outputs": []}
        made.append(cell)
    whole = {"cells": made, "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                                         "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(notebook(PAGE.read_text()))
