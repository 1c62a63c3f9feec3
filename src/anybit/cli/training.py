"""run and resume: training, watched and stoppable."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anybit.cli.console import Debug, Import, Json, Quiet, Reporter, print_json, print_table, say
from anybit.cli.recipes import Overrides, Recipe, tell_not_kept
from anybit.training.stopping import stoppable

if TYPE_CHECKING:
    from anybit.config import Config
    from anybit.training.loop import Training
    from anybit.training.run_folder import RunFolder
    from anybit.training.task import Task

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]


def run(recipe: Recipe, overrides: Overrides = None,
        path: Annotated[Path | None, typer.Option(help="The run's folder; default: runs/RECIPE-TIME.")] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the config and the cost, and stop.")] = False,
        imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Train a recipe."""
    from anybit.config import from_recipe
    from anybit.engines.ranks import rank
    from anybit.environment import environment
    from anybit.files.schema import plain
    from anybit.training.build import build_task, settled
    from anybit.training.engine_choice import calibrated
    from anybit.training.follower import Follower
    from anybit.training.loop import Training
    from anybit.training.run_folder import RunFolder
    from anybit.training.task import Watch

    config = from_recipe(recipe, overrides or [])
    task = build_task(config, imports or [])
    if dry_run:
        config = settled(config, imports or [])
        Training(task, config).engine.close()  # whatever can be known to be wrong is said now
        tell_not_kept([(recipe, overrides or [])], quiet)
        print_json({"config": plain(config), "cost": _cost(config, task)})
        return
    reporter = Reporter(quiet or rank() > 0)
    config = settled(calibrated(config, task, reporter.message), imports or [])
    path = path or Path("runs") / f"{Path(recipe).stem if recipe.endswith('.toml') else recipe.replace('/', '-')}-" \
                                  f"{time.strftime('%Y%m%d-%H%M%S')}"
    training = Training(task, config, Watch(on_round=reporter.on_round, on_message=reporter.message))
    folder = RunFolder.create(path, plain(config), environment(), task.split) if training.engine.leads else Follower(path)
    tell_not_kept([(recipe, overrides or [])], quiet or rank() > 0)
    _train(training, folder, reporter, json)


def resume(path: RunPath, imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Continue an interrupted run from its last checkpoint."""
    from anybit.api import Run
    from anybit.engines.ranks import rank
    from anybit.errors import RunError
    from anybit.sweeps.plan import is_sweep
    from anybit.training.follower import Follower
    from anybit.training.loop import Training
    from anybit.training.task import Watch

    if is_sweep(path):
        raise RunError(f"{path} is a sweep: continue it with 'anybit sweep {path}'")
    run = Run.load(path, trusted=imports or [])
    if run.folder.whole:
        raise RunError(f"{path} is finished: see it with 'anybit report {path}'")
    reporter = Reporter(quiet or rank() > 0, first_round=max(map(run.folder.round_of, run.folder.checkpoints()), default=0))
    watch = Watch(on_round=reporter.on_round, on_message=reporter.message)
    training = Training(run.task(), run.config, watch)
    _train(training, run.folder if training.engine.leads else Follower(path), reporter, json, resume=True)


def _train(training: Training, folder: RunFolder, reporter: Reporter, json: bool, resume: bool = False) -> None:
    task, config = training.task, training.config
    try:
        with folder.locked(), stoppable(training.watch, say):
            reporter.message(f"{folder.path}: {task.variant.name} on {config.data.name}, {len(task.split)} clients, "
                             f"{config.cohort} a round, {config.engine} engine on {config.device}"
                             + (f", from round {reporter.first_round}" if resume else ""))
            trained = training.train(folder, resume)
    finally:
        reporter.close()
    if not training.engine.leads:
        return
    if json:
        print_json({"path": str(folder.path), **trained.evaluation})
    else:
        _print_scores(trained.evaluation)
    say(f"run: {folder.path}   report: anybit report {folder.path}")


def _print_scores(evaluation: dict[str, Any]) -> None:
    """The variant's own scores: its sites, its steps."""
    own, sites = evaluation["grid"][evaluation["own"]], evaluation["sites"]
    names = [name for name in own if name == "FP32" or name.rstrip("0123456789") == sites]
    print_table([evaluation["metric"], *names], [[evaluation["variant"], *[f"{own[n]['metric']:.2f}" for n in names]]])


def _cost(config: Config, task: Task) -> dict[str, Any]:
    """What the run computes, counted in images through the model."""
    mean = sum(len(index) for index in task.split) / len(task.split)
    evaluations = config.rounds // config.evaluation.every + 1
    return {"parameters": sum(p.numel() for p in task.model.parameters()), "clients": len(task.split),
            "training_images": round(config.rounds * config.cohort * config.client.epochs * mean),
            "evaluation_images": evaluations * len(config.evaluation.bits) * len(task.data.test),
            "local_steps": round(config.rounds * config.cohort * config.client.epochs
                                 * -(-mean // config.client.batch_size))}
