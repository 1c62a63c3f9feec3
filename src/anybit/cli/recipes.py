"""ls, show, cp: the recipes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from anybit import recipes
from anybit.cli.console import Debug, Import, Json, print_json, print_lines, print_table, say
from anybit.errors import ConfigError
from anybit.files.writing import write_bytes, writing

Recipe = Annotated[str, typer.Argument(help="A recipe's name ('anybit ls'), or a path to a .toml file.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, e.g. rounds=200.")]


def ls(prefix: Annotated[str, typer.Argument(help="Only recipes whose names start with this.")] = "", json: Json = False,
       debug: Debug = False) -> None:
    """List the recipes."""
    texts = {name: recipes.load(name).get("description", "") for name in recipes.names() if name.startswith(prefix)}
    if json:
        print_json([{"name": name, "description": text} for name, text in texts.items()])
    elif sys.stdout.isatty():
        print_table(["recipe", "description"], [[name, text] for name, text in texts.items()])
    else:
        print_lines("\n".join(texts))


def show(recipe: Recipe, overrides: Overrides = None, imports: Import = None, debug: Debug = False) -> None:
    """Print the resolved config of a recipe as JSON, defaults included."""
    from anybit.config import from_recipe
    from anybit.schema import plain
    from anybit.training.build import settled

    config = settled(from_recipe(recipe, overrides or []), imports or [])
    tell_not_kept([(recipe, overrides or [])])
    print_json(plain(config))


def label_of(recipe: str) -> str:
    """Return a recipe's name as part of a file name."""
    return Path(recipe).stem if recipe.endswith(".toml") else recipe.replace("/", "-")


def tell_not_kept(chosen: Iterable[tuple[str, Sequence[str]]], quiet: bool = False) -> None:
    """Print once each setting that the overrides of these recipes do not keep."""
    lines = [] if quiet else [line for recipe, overrides in chosen for line in recipes.not_kept(recipe, overrides)]
    for line in dict.fromkeys(lines):
        say(f"note: {line}")


def cp(recipe: Recipe, target: Annotated[Path, typer.Argument(help="The new .toml file.")], debug: Debug = False) -> None:
    """Copy a recipe to a file of your own, merged with the recipes that it extends."""
    if target.suffix != ".toml":
        raise ConfigError(f"'{target}': a recipe's file ends in .toml")
    if target.exists():
        raise ConfigError(f"'{target}' exists: choose another name")
    text = f"# From {recipe}. Run it with: anybit run {target}\n" + recipes.as_toml(recipes.load(recipe))
    with writing(target, "choose another place"):
        write_bytes(target, text.encode())
    say(f"wrote {target}; run it with: anybit run {target}")
