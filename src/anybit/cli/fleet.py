"""fleet: real devices over Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_table, say
from anybit.cli.recipes import Overrides, Recipe
from anybit.cli.training import RunPath

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


@app.command("status")
def status(server: Annotated[Path, typer.Argument(metavar="SERVER", help="The project's server folder.")] = Path(),
           run: Annotated[str, typer.Option(help="The run's folder in it.")] = "run", json: Json = False,
           debug: Debug = False) -> None:
    """What a run is really doing: exit code 0 if it is waiting, running or completed, 1 if it failed or nobody knows."""
    from dataclasses import asdict

    from anybit.fleet.status import fleet_status

    found = fleet_status(server, run)
    if json:
        print_json(asdict(found))
    else:
        print(f"{found.state}, round {found.round} of {found.rounds}, {found.devices} devices"
              + (f": {found.reason}" if found.reason else ""))
        if last := found.last:
            print(f"round {last['round']}: {last['answered']} of {len(last['asked'])} answered in {last['seconds']:.1f} s, "
                  f"{last['bytes_down']:,} bytes down, {last['bytes_up']:,} up")
            for client in last["missing"]:
                print(f"client {client} did not answer")
            for client, reason in last["rejected"].items():
                print(f"client {client} was rejected: {reason}")
    if found.state in ("failed", "unknown"):
        raise typer.Exit(1)


@app.command("classes")
def classes(path: RunPath, imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """How every class of devices (all of one width) fares, the worst class, and the spread."""
    from dataclasses import asdict

    from anybit.fleet.classes import device_classes
    from anybit.training.run import Run

    found = device_classes(Run.load(path, trusted=imports or []))
    if json:
        print_json({**asdict(found), "worst": found.worst.width, "spread": found.spread})
        return
    rows = [[one.width, str(one.devices), f"{one.metric:.2f}", "" if one.on_devices is None else f"{one.on_devices:.2f}"]
            for one in found.classes]
    print_table(["width", "devices", "test set", "own examples"], rows)
    print(f"worst class {found.worst.width}: {found.worst.metric:.2f}, spread {found.spread:.2f}")
