"""fleet init, fleet status, fleet classes: real devices over Flower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_lines, print_result, say
from anybit.cli.recipes import Overrides, Recipe
from anybit.cli.training import RunPath

app = typer.Typer(no_args_is_help=True, help="Real devices over Flower: set up, watch, compare.")


@app.command("init")
def init(path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write.")], recipe: Recipe,
         overrides: Overrides = None,
         devices: Annotated[str, typer.Option(help="One width per device: 4 (bits), W4A8, or any (drawn).")] = "any,any",
         host: Annotated[str, typer.Option(help="The server's name or address, as seen from the devices.")] = "localhost",
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
    """Show the true state of a run; exit code 0 if it is waiting, running or completed, 1 if it failed or is unknown."""
    from anybit.fleet.status import fleet_status

    status = fleet_status(server, run)
    if json:
        print_json(asdict(status))
    else:
        print_lines(f"{status.state}, round {status.round} of {status.rounds}, {status.devices} devices"
                    + (f": {status.reason}" if status.reason else ""))
        if last := status.last:
            print_lines(f"round {last['round']}: {last['answered']} of {len(last['asked'])} answered in "
                        f"{last['seconds']:.1f} s, {last['bytes_down']:,} bytes down, {last['bytes_up']:,} up")
            for client in last["missing"]:
                print_lines(f"client {client} did not answer")
            for client, reason in last["rejected"].items():
                print_lines(f"client {client} was rejected: {reason}")
    if status.state in ("failed", "unknown"):
        raise typer.Exit(1)


@app.command("classes")
def classes(path: RunPath, imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Show the accuracy of every class of devices (all of one width), the worst class, and the spread."""
    from anybit.fleet.classes import device_classes
    from anybit.training.run import Run

    run = Run.load(path, trusted=imports or [])
    result, metric = device_classes(run), run.metric
    worst = result.worst
    print_result(json, {**asdict(result), "worst": worst and worst.width, "spread": result.spread},
                 ["width", "devices", "test set", "own examples"],
                 [[c.width, str(c.devices), metric.text(c.metric), "" if c.on_devices is None else metric.text(c.on_devices)]
                  for c in result.classes])
    if not json:
        print_lines((f"worst class {worst.width}: {metric.text(worst.metric)}, " if worst else "")
                    + f"spread {metric.text(result.spread)}")
