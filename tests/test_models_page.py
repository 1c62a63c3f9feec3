"""docs/models.md says what the table of models says, and making it imports no library of models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
sys.path.insert(0, "tools")
import models_page
heavy = {"timm", "torchvision", "transformers"} & set(sys.modules)
made = models_page.page(models_page.PAGE.read_text())
assert not heavy, heavy
assert made == models_page.PAGE.read_text(), "docs/models.md is not what tests/models/cases.py gives: run 'make models-page'"
"""


def test_the_page_is_made_from_the_table() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_most_pairs_are_proven() -> None:
    from tests.models.cases import CASES, CHECKS

    assert len(CASES) * len(CHECKS) >= 72
    assert sum(len(case.refusals) for case in CASES) <= 6
