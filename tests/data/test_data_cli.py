"""data prepare, show and ls, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anybit.errors import AnybitError

# typer 0.20 uses names that click 8.5 deprecates
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")

RECIPE = """
cohort = 3
[data]
name = "images"
set = "shapes"
source = "owner/shapes"
columns = {image = "picture", label = "kind", coarse = "family"}
[split]
name = "dirichlet"
clients = 6
alpha = 0.5
[client]
batch_size = 4
"""


def run(*arguments: object) -> str:
    """What a command prints to stdout."""
    from typer.testing import CliRunner

    from anybit.cli.data import app

    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False).stdout


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.toml"
    path.write_text(RECIPE)
    return path


def test_a_recipe_names_what_is_prepared_shown_and_listed(recipe: Path, hub: Path, tmp_path: Path) -> None:
    with pytest.raises(AnybitError, match="is not prepared: run 'anybit data prepare owner/shapes --name shapes'"):
        run("show", recipe)
    prepared = json.loads(run("prepare", recipe, "--data-dir", hub, "--json"))
    assert prepared[0]["train"] == 60
    picture = tmp_path / "clients.png"
    shown = json.loads(run("show", recipe, "--out", picture, "--json"))
    assert shown["clients"] == 6
    assert shown["smallest"] == shown["largest"] == 10
    assert 0 <= shown["padding"] <= shown["padded_to_largest"] < 1
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "owner/shapes" in run("ls")
    assert "padded to largest" in run("show", recipe, "--out", tmp_path / "clients.svg")


def test_by_writer(hub: Path, tmp_path: Path) -> None:
    run("prepare", "femnist", "--data-dir", hub)
    recipe = tmp_path / "femnist.toml"
    recipe.write_text('cohort = 2\n[data]\nname = "femnist"\nwriters = 0\n[split]\nname = "by_id"\n')
    shown = json.loads(run("show", recipe, "--out", tmp_path / "a.png", "--json"))
    assert (shown["clients"], shown["smallest"], shown["largest"]) == (6, 4, 36)
    shown = json.loads(run("show", recipe, "split.clients=4", "--out", tmp_path / "a.png", "--json"))
    assert shown["clients"] == 4


def test_columns_on_the_command_line(hub: Path) -> None:
    said = run("prepare", "owner/shapes", "--data-dir", hub, "--image", "picture", "--label", "family", "--size", 4,
               "--json")
    assert json.loads(said)[0]["shape"] == [3, 4, 4]
    assert json.loads(said)[0]["classes"] == 2


@pytest.mark.parametrize(("arguments", "words"), [
    (["prepare", "cifar"], "did you mean 'cifar10'"),
    (["prepare", "quickstart/mqat"], "needs no preparing"),
    (["prepare", "cifar10", "--label", "x"], "known data set"),
    (["show", "nothing"], "unknown recipe"),
])
def test_what_is_wrong_is_said(arguments: list[str], words: str) -> None:
    with pytest.raises(AnybitError, match=words):
        run(*arguments)


def test_a_picture_that_cannot_be_written(hub: Path, recipe: Path, tmp_path: Path) -> None:
    run("prepare", recipe, "--data-dir", hub)
    for name in ("missing/a.png", "a.nonsense"):
        with pytest.raises(AnybitError, match="cannot be written"):
            run("show", recipe, "--out", tmp_path / name)
