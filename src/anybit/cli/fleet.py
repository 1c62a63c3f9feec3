"""fleet: real devices over Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anybit.cli.console import Debug, Import, say
from anybit.cli.recipes import Overrides, Recipe

app = typer.Typer(no_args_is_help=True, help="Real devices over Flower: set up, watch, compare.")


@app.command("init")
def init(path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write.")], recipe: Recipe,
         overrides: Overrides = None,
         devices: Annotated[str, typer.Option(help="One width per device: 4 (bits), W4A8, or any (drawn).")] = "any,any",
         host: Annotated[str, typer.Option(help="The server's name or address, as devices reach it.")] = "localhost",
         port: Annotated[int, typer.Option(help="The server's port.")] = 9092,
         imports: Import = None, debug: Debug = False) -> None:
    """Write a project: a folder for the server and one for every device, with trial certificates and keys."""
    from anybit.fleet.project import Project, write_project

    widths = [width.strip() for width in devices.split(",") if width.strip()]
    write_project(path, Project(recipe, overrides or [], widths, host, port, imports or []))
    say(f"{path}: server/ and {len(widths)} devices, node-0/ …\n"
        f"server:  cd {path}/server && ./start.sh    then, in another terminal: ./register.sh\n"
        f"devices: copy node-N/ to device N, there: ./start.sh\n"
        f"train:   ./flwr.sh run app fleet           watch: anybit fleet status {path}/server")
