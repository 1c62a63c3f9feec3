"""The tutorial and the how-to pages run as they are printed, top to bottom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from notebook_page import notebook

import anybit

ROOT = Path(__file__).parents[1]
PAGES = sorted(page.relative_to(ROOT).as_posix() for folder in ("tutorials", "how-to")
               for page in (ROOT / "docs" / folder).glob("*.md"))
pytestmark = [pytest.mark.pages, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


NOTEBOOK = "docs/tutorials/own-model.ipynb"


def blocks(page: str) -> list[tuple[str, str]]:
    """Return (language, text) of the blocks of a page or the cells of a notebook."""
    text = (ROOT / page).read_text()
    if not page.endswith(".ipynb"):
        return re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return [("bash", cell[1:]) if cell.startswith("!") else ("python", cell) for cell in cells]


def played(page: str, folder: Path) -> dict[str, object]:
    """Execute a page from top to bottom, its Python in one session, its commands in one folder."""
    names: dict[str, object] = {}
    for language, block in blocks(page):
        assert language in ("python", "bash", "text"), f"{page} has a block of '{language}', which nobody runs"
        if language == "python":
            exec(compile(block, page, "exec"), names)
        elif language == "bash":
            command = f'set -eu\nanybit() {{ "{sys.executable}" -m anybit "$@"; }}\n{block}'
            sources = str(Path(anybit.__file__).parents[1])
            subprocess.run(["bash", "-c", command], cwd=folder, check=True, env={**os.environ, "PYTHONPATH": sources})
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if not page.endswith("own-model.md")])
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    played(page, tmp_path)
    if page.endswith("text.md"):
        assert len(capsys.readouterr().out.splitlines()[-1]) > 64, "the 4-bit file writes on"


def test_the_notebook_runs_and_its_artifact_is_the_evaluated_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = played(NOTEBOOK, tmp_path)
    robust = names["robust"]
    assert isinstance(robust, anybit.Fitted)
    assert names["accuracy"] == pytest.approx(robust.scores["W2"].metric, abs=0.3)
    assert robust.scores["W2"].metric > 85
    assert (tmp_path / "report/index.html").exists()


def test_the_notebook_is_the_page() -> None:
    assert (ROOT / NOTEBOOK).read_text() == notebook((ROOT / NOTEBOOK).with_suffix(".md").read_text()), \
        "run: python tools/manual/notebook_page.py"
