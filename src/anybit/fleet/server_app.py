"""The ServerApp: it trains a recipe with the connected devices, and writes an ordinary run folder."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from anybit.config import Config, chosen, from_recipe
from anybit.errors import AnybitError, RunError, printable
from anybit.fleet.devices import Devices
from anybit.fleet.flower import Context, Grid, ServerApp
from anybit.fleet.registry import Keys, Registry
from anybit.fleet.training import fleet_computation, train_fleet
from anybit.training.build import Components, build_task, settled
from anybit.training.callbacks import EachRound
from anybit.training.course import Progress, Watch
from anybit.training.opening import open_run
from anybit.training.run_folder import RunFolder

logger = logging.getLogger("flwr")


def server_app(recipe: str | Path) -> ServerApp:
    """Return a ServerApp that trains `recipe`.

    Its run config: run (the folder of a new run, or of one to continue) · overrides ("rounds=3 server.lr=0.1") · imports
    (modules of yours that the recipe names) · devices (the file that says which key is which client).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        trusted = str(settings.get("imports", "")).split()
        config = from_recipe(str(recipe), shlex.split(str(settings.get("overrides", ""))))
        serve(grid, config, Path(str(settings.get("run", "run"))), trusted, context.run_id,
              _registry(grid, str(settings.get("devices", ""))))

    return app


def _registry(grid: Grid, path: str) -> Callable[[], Registry] | None:
    """Return the registry in a file; Flower's simulation has no keys, and apps of earlier versions name no file."""
    from flwr.superlink.grid import InMemoryGrid  # slow to import, and devices need it not

    if isinstance(grid, InMemoryGrid):
        return None
    if not path:
        _say("warning: the run config names no devices.toml: every registered key may claim any client number and width")
        return None
    return Keys(Path(path), _say)


def serve(grid: Grid, config: Config, path: Path, trusted: list[str], run_id: int = 0,
          registry: Callable[[], Registry] | None = None) -> None:
    """Train to the end, or log why not. A run in the folder is continued, if it has this config.

    registry: the client, width and role of every key; none: what devices say of themselves is believed.
    """
    folder = RunFolder(path)
    if folder.finished:
        raise RunError(f"{path} is finished: choose another folder for the next run, -c 'run=\"…\"'")
    variant = Components(config, trusted).build_variant()
    config = settled(chosen(config, variant.endless or variant.choices), trusted)
    if config.privacy.private and config.privacy.secret is None:
        config = replace(config, privacy=replace(config.privacy, secret=True))
    devices = Devices(grid, config, variant.sites, _say, registry)
    opened = open_run(path, config, lambda config: build_task(config, trusted), resume=True, trusted=trusted,
                      compute=lambda task, config: fleet_computation(task, config, devices))
    with opened.held():
        folder.append("fleet", {"event": "run", "id": str(run_id), "resumed": opened.resumed})
        try:
            train_fleet(opened, devices, Watch(_say), [EachRound(_say_round)])
        except AnybitError as error:
            folder.append("fleet", {"event": "failed", "id": str(run_id), "reason": printable(str(error))})
            _say(f"anybit: {error}")
            raise


def _say(text: str) -> None:
    for line in text.splitlines():
        logger.info("%s", printable(line))


def _say_round(progress: Progress) -> None:
    _say(f"round {progress.round}/{progress.rounds}  {progress.training_line}  {progress.seconds:.1f} s"
         + (f"  {progress.score_line}" if progress.evaluation else ""))
