"""The tutorial and the how-to pages run as they are printed, top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import anybit

ROOT = Path(__file__).parents[1]
PAGES = sorted(page.relative_to(ROOT).as_posix() for folder in ("tutorials", "how-to")
               for page in (ROOT / "docs" / folder).glob("*.md"))
pytestmark = [pytest.mark.pages, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")]


def played(page: str, folder: Path) -> dict[str, object]:
    """Execute the blocks of a page in order, those of Python in one session, those of bash in one folder."""
    names: dict[str, object] = {}
    for language, block in re.findall(r"```(\w*)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        assert language in ("python", "bash", "text"), f"{page} has a block of '{language}', which nobody runs"
        if language == "python":
            exec(compile(block, page, "exec"), names)
        elif language == "bash":
            command = f'set -eu\nanybit() {{ "{sys.executable}" -m anybit "$@"; }}\n{block}'
            sources = str(Path(anybit.__file__).parents[1])
            subprocess.run(["bash", "-c", command], cwd=folder, check=True, env={**os.environ, "PYTHONPATH": sources})
    return names


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = played(page, tmp_path)
    if page.endswith("own-model.md"):
        robust = names["robust"]
        assert isinstance(robust, anybit.Fitted)
        assert names["accuracy"] == pytest.approx(robust.scores["W2"].metric, abs=0.3), "the artifact is the evaluated model"
        assert robust.scores["W2"].metric > 85
        assert (tmp_path / "report/index.html").exists()
