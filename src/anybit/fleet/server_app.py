"""The ServerApp: a recipe, trained by whoever is connected. It writes an ordinary run folder."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path
from typing import Any

from anybit.config import Config, from_recipe
from anybit.environment import environment
from anybit.errors import AnybitError, RunError
from anybit.files.schema import plain
from anybit.fleet.flower import Context, Grid, ServerApp
from anybit.fleet.training import FleetTraining
from anybit.training.build import build_task, settled
from anybit.training.run_folder import RunFolder
from anybit.training.task import Progress, Watch

logger = logging.getLogger("flwr")


def server_app(recipe: str | Path) -> ServerApp:
    """A ServerApp that trains `recipe`.

    Its run config: run (the run's folder; one that is there already is continued) · overrides ("rounds=3 server.lr=0.1")
    · imports (modules of yours that the recipe names).
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        trusted = str(settings.get("imports", "")).split()
        config = settled(from_recipe(str(recipe), shlex.split(str(settings.get("overrides", "")))), trusted)
        serve(grid, config, Path(str(settings.get("run", "run"))), trusted, context.run_id)

    return app


def serve(grid: Grid, config: Config, path: Path, trusted: list[str], run_id: int = 0) -> None:
    """Train to the end, or say in the run's log why not."""
    task = build_task(config, trusted)
    training = FleetTraining(task, config, grid, Watch(on_round=_say_round, on_message=_say))
    folder, resume = _folder(path, plain(config))
    with folder.locked():
        if not resume:
            folder.save_split(task.split)
        folder.append("fleet", {"event": "run", "id": str(run_id), "resumed": resume})
        try:
            training.train(folder, resume)
        except AnybitError as error:
            folder.append("fleet", {"event": "failed", "id": str(run_id), "reason": str(error)})
            _say(f"anybit: {error}")
            raise


def _folder(path: Path, config: dict[str, Any]) -> tuple[RunFolder, bool]:
    """The run's folder, and whether it is continued."""
    if not (path / "config.json").exists():
        return RunFolder.create(path, config, environment()), False
    folder = RunFolder.open(path)
    if folder.finished:
        raise RunError(f"{path} is finished: choose another folder for the next run, -c 'run=\"…\"'")
    if folder.config() != config:
        raise RunError(f"{path} holds a run with another config: choose another folder, -c 'run=\"…\"'")
    return folder, True


def _say(text: str) -> None:
    for line in text.splitlines():
        logger.info("%s", line)


def _say_round(progress: Progress) -> None:
    scores = progress.evaluation["scores"] if progress.evaluation else {}
    _say(f"round {progress.round}/{progress.rounds}  loss {progress.loss:.3f}  {progress.seconds:.1f} s"
         + "".join(f"  {width} {score['metric']:.1f}" for width, score in scores.items()))
