"""The examples of docs/data.md run as they are written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")


def block(language: str, number: int = 1) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == number
    return "\n".join(found)


def test_own_arrays(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block("python", 2), str(PAGE), "exec"), {})
    assert "W4" in capsys.readouterr().out


def test_hub_id_and_columns(tmp_path: Path, write_parquet: Callable[..., Path]) -> None:
    from typer.testing import CliRunner

    from anybit.cli.data import app
    from anybit.config import from_recipe
    from anybit.training.build import build_task
    from tests.trainings import trained

    recipe, draw = tmp_path / "flowers.toml", np.random.default_rng(0)
    recipe.write_text(block("toml"))
    for split, count in (("train", 48), ("test", 12)):
        write_parquet(tmp_path / "hub/owner/flowers/data" / f"{split}-00000-of-00001.parquet", "picture",
                      draw.integers(256, size=(count, 16, 16, 3), dtype=np.uint8), {},
                      species=[("aster", "iris", "rose")[i % 3] for i in range(count)],
                      photographer=[f"p{i % 5}" for i in range(count)])
    CliRunner().invoke(app, ["prepare", str(recipe), "--data-dir", str(tmp_path / "hub")], catch_exceptions=False)
    config = from_recipe(str(recipe))
    task = build_task(config)
    assert [len(part) for part in task.split] == [10, 10, 10, 9, 9]
    assert len(trained(task, config).metrics) == 5


def test_every_picture_is_there() -> None:
    pictures = re.findall(r"\]\((img/.*?)\)", PAGE.read_text())
    assert len(pictures) == 3
    assert all((PAGE.parent / picture).is_file() for picture in pictures)
