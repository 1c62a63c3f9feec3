"""data prepare, data show, data ls: data sets and their spread over clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_result, print_table, say
from anybit.cli.recipes import Overrides, Recipe, label_of
from anybit.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from anybit.data.cache import Manifest
    from anybit.data.known import Source

app = typer.Typer(no_args_is_help=True, help="Data sets: prepare them, and see how they spread over clients.")

Name = Annotated[str, typer.Argument(help="cifar10, cifar100, femnist, tinyimagenet, a recipe, a hub id or a folder.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder with the hub's files (DIR/HUB-ID/…): no download.")]


@app.command("prepare")
def prepare(name: Name, data_dir: DataDir = None,
            seed: Annotated[int, typer.Option(help="Draws the held-out test set, if the set has none.")] = 0,
            called: Annotated[str, typer.Option("--name", help="The name to prepare it under.")] = "",
            image: Annotated[str, typer.Option(help="Column of the images.")] = "",
            label: Annotated[str, typer.Option(help="Column of the labels.")] = "",
            coarse: Annotated[str, typer.Option(help="Column of coarse labels.")] = "",
            id: Annotated[str, typer.Option(help="Column of the client that an example belongs to.")] = "",
            train: Annotated[str, typer.Option(help="Name of the training split.")] = "train",
            test: Annotated[str, typer.Option(help="Name of the test split; '' holds out 10 % instead.")] = "test",
            folder: Annotated[str, typer.Option(help="Subfolder of the set with its files.")] = "",
            size: Annotated[int, typer.Option(help="Resize images to SIZE×SIZE.")] = 0,
            revision: Annotated[str | None, typer.Option(help="The hub's branch, tag or commit.")] = None,
            force: Annotated[bool, typer.Option("--force", help="Prepare again, even if it is intact.")] = False,
            json: Json = False, debug: Debug = False) -> None:
    """Read, check and store a data set, so that training needs only torch and numpy."""
    from anybit.data import hub

    columns = {"image": image, "label": label, "coarse": coarse, "id": id}
    given = {role: column for role, column in columns.items() if column}
    known_as, source = _source(name, given, {"train": train, "test": test, "folder": folder, "size": size})
    _print_sets([hub.prepare(called or known_as, source, data_dir, seed, revision, force, say)], json)


@app.command("show")
def show(recipe: Recipe, overrides: Overrides = None,
         out: Annotated[Path | None, typer.Option(help="The picture; default: RECIPE-clients.png here.")] = None,
         imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Plot how labels and sizes spread over the clients of a recipe."""
    from anybit.config import from_recipe
    from anybit.federated.sampling import check_cohort
    from anybit.report.spread import draw, padding, spread
    from anybit.training.build import Components

    _check_recipe(recipe)
    config = from_recipe(recipe, overrides or [])
    components = Components(config, imports or [])
    data = components.build_data()
    split = components.build_split(data)
    cohort = config.places(len(split))
    check_cohort(cohort, len(split))
    label_spread = spread(data.train.y.numpy(), split, data.class_names)
    numbers = {**label_spread.numbers(), **padding(split, cohort, config.client, config.seed)}
    out = out or Path(f"{label_of(recipe)}-clients.png")
    settings = ", ".join(f"{key} {value}" for key, value in config.split.arguments.items() if key != "clients")
    draw(label_spread, out, f"{config.data.name}, {f'{config.split.name} {settings}'.strip()}: {len(split)} clients")
    if json:
        print_json({**numbers, "picture": str(out)})
    else:
        print_table(["clients", ""], [[key.replace("_", " "), _number(key, value)] for key, value in numbers.items()])
        say(f"picture: {out}")


@app.command("ls")
def ls(json: Json = False, debug: Debug = False) -> None:
    """List the prepared data sets."""
    from anybit.data import cache

    _print_sets(cache.ls(), json)


def _check_recipe(name: str) -> None:
    """Raise for the name of a data set, which has no clients yet, with recipes that spread it."""
    from anybit import recipes
    from anybit.data.sources import SOURCES

    if name in SOURCES and name not in recipes.names():
        using = [recipe for recipe in recipes.names() if recipes.load(recipe).get("data", {}).get("name") == name]
        raise ConfigError(f"'{name}' is a data set, and a recipe spreads it over clients: "
                          + (f"use one of {', '.join(using[:3])}, …" if using else "no recipe uses it; write one"))


def _source(name: str, columns: dict[str, str], fields: dict[str, Any]) -> tuple[str, Source]:
    """Return (name in the cache, source) of a known set, a recipe's data, a hub id or a folder."""
    from anybit import recipes
    from anybit.config import from_recipe
    from anybit.data.known import KNOWN, Columns, source
    from anybit.schema import read

    known_as = ""
    if name.endswith(".toml") or name in recipes.names():
        data = from_recipe(name).data
        given = data.arguments
        if data.name in KNOWN:
            name = data.name
        elif data.name == "images" and all(isinstance(given.get(key), str) for key in ("set", "source")):
            name, known_as = given["source"], given["set"]
            columns = {**vars(read(Columns, given.get("columns", {}), "data.columns")), **columns}
        else:
            raise ConfigError(f"{name}: its data '{data.name}' needs no preparing; 'images' does, with data.set and "
                              "data.source")
    if name not in KNOWN and "/" not in name and not Path(name).is_dir():
        raise ConfigError(f"unknown data set '{name}': {did_you_mean(name, KNOWN)}, or give a hub id 'owner/name' or a "
                          "folder")
    known_as = known_as or (name if name in KNOWN else Path(name).resolve().name)
    return known_as, source(name, read(Columns, columns, "columns"), **fields)


def _print_sets(manifests: list[Manifest], json: bool) -> None:
    print_result(json, [{"name": m.name, "source": m.source, "revision": m.revision, "train": m.counts["train"],
                         "test": m.counts["test"], "shape": list(m.shape), "classes": len(m.class_names),
                         "ids": len(m.id_names), "mean": list(m.mean), "std": list(m.std), "note": m.note}
                        for m in manifests],
                 ["set", "train", "test", "image", "classes", "ids", "mean", "source", "note"],
                 [[m.name, f"{m.counts['train']:,}", f"{m.counts['test']:,}", "×".join(map(str, m.shape)),
                   str(len(m.class_names)), str(len(m.id_names) or "–"), "/".join(f"{v:.4f}" for v in m.mean), m.source,
                   m.note] for m in manifests])


def _number(key: str, value: float) -> str:
    if key.startswith("pad"):
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
