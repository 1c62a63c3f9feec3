"""fleet init, add, gate, status, classes: real devices over Flower."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_lines, print_result, say
from anybit.cli.recipes import Overrides, Recipe
from anybit.cli.training import RunPath
from anybit.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Real devices over Flower: set up, watch, compare.")


@app.command("init")
def init(path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write.")], recipe: Recipe,
         overrides: Overrides = None,
         devices: Annotated[str, typer.Option(help="One width per device: 4 (bits), W4A8, or any (drawn).")] = "any,any",
         host: Annotated[str, typer.Option(help="The server's name or address, as seen from the devices.")] = "localhost",
         port: Annotated[int, typer.Option(help="The server's port for devices.")] = 9092,
         control_port: Annotated[int | None, typer.Option(
             help="The port that only the server itself can reach; default: the next one.")] = None,
         imports: Import = None, debug: Debug = False) -> None:
    """Write a project: a folder for the server and one for every device, with trial certificates and keys."""
    from anybit.fleet.project import Project, write_project

    widths = [width.strip() for width in devices.split(",") if width.strip()]
    write_project(path, Project(recipe, overrides or [], widths, host, port, imports or [], control_port))
    say(f"{path}: server/ and {len(widths)} devices, node-0/ …\n"
        f"server:  cd {path}/server && ./start.sh    then, in another terminal: ./register.sh\n"
        f"devices: copy node-N/ to device N, there: ./start.sh\n"
        f"train:   ./flwr.sh run app fleet           watch: anybit fleet status {path}/server")


@app.command("add")
def add(server: Annotated[Path, typer.Argument(metavar="SERVER", help="The project's server folder.")],
        key: Annotated[Path, typer.Argument(metavar="KEY.pub", help="The device's public key, as ssh-keygen writes it.")],
        client: Annotated[int, typer.Option(help="The client's number: partition-id in its node-config.")],
        width: Annotated[str | None, typer.Option(help="Its width: 4 (bits), W4A8, or any (drawn).")] = None,
        role: Annotated[str | None, typer.Option(help="train or inference.")] = None, debug: Debug = False) -> None:
    """Assign a device's key to a client, replacing any earlier key; then let it in: ./register.sh keys/NAME.pub."""
    from anybit.fleet.registry import FILE, add_device

    name = add_device(server, key, client, "" if width == "any" else width, role)
    say(f"{server / FILE}: {name} is client {client}; let it in: ./register.sh keys/{name}.pub")


@app.command("gate")
def gate(server: Annotated[Path, typer.Argument(metavar="SERVER", help="The project's server folder.")],
         command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="What starts the SuperLink.")],
         host: Annotated[str, typer.Option(help="Where devices reach the gate; 0.0.0.0: every address.")] = "127.0.0.1",
         port: Annotated[int, typer.Option(help="The port for devices.")] = 9092,
         control_port: Annotated[int, typer.Option(help="The SuperLink's port on this machine.")] = 9093,
         answer_mb: Annotated[int, typer.Option(help="Largest answer of a device, in MB.")] = 64,
         debug: Debug = False) -> None:
    """Start the SuperLink, reachable from this machine only, and a gate that lets through only what devices ask."""
    from anybit.fleet.link import Door, keep_gate

    if answer_mb < 1:
        raise ConfigError(f"answer-mb = {answer_mb}: must be at least 1")
    raise typer.Exit(keep_gate(server, Door(host, port, control_port, answer_mb << 20), command, say))


@app.command("status")
def status(server: Annotated[Path, typer.Argument(metavar="SERVER", help="The project's server folder.")] = Path(),
           run: Annotated[str, typer.Option(help="The run's folder in it.")] = "run", json: Json = False,
           debug: Debug = False) -> None:
    """Show the state of a run; exit code 0 if it is waiting, running or completed, 1 if it failed or is unknown."""
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
