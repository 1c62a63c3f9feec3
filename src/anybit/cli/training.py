"""run and resume: training with progress, stopped by Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anybit.cli.console import Debug, Import, Json, Quiet, Reporter, own_scores, print_json, print_lines, print_result, say
from anybit.cli.recipes import Overrides, Recipe, label_of, tell_not_kept
from anybit.errors import RunError
from anybit.training.stopping import stoppable

if TYPE_CHECKING:
    from anybit.training.course import Callback
    from anybit.training.opening import OpenRun

Log = Annotated[list[str] | None, typer.Option(
    help="Log every round to csv:FILE, tensorboard:FOLDER or wandb:PROJECT; repeat for more.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")]


def run(recipe: Recipe, overrides: Overrides = None,
        path: Annotated[Path | None, typer.Option(help="The run's folder; default: runs/RECIPE-TIME.")] = None,
        dry_run: Annotated[bool, typer.Option(
            "--dry-run", help="Print expected time, memory, traffic and work (--json: also the config), and exit.")] = False,
        log: Log = None, imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Train a recipe."""
    from anybit.config import from_recipe
    from anybit.engines.ranks import rank
    from anybit.schema import plain
    from anybit.training.build import build_task
    from anybit.training.estimate import estimate
    from anybit.training.loggers import logger
    from anybit.training.opening import open_run

    config, trusted, reporter = from_recipe(recipe, overrides or []), imports or [], Reporter(quiet or rank() > 0)
    path = None if dry_run else path or Path("runs") / f"{label_of(recipe)}-{time.strftime('%Y%m%d-%H%M%S')}"
    loggers = [logger(text) for text in log or [] if not dry_run]
    opened = open_run(path, config, lambda config: build_task(config, trusted), trusted=trusted, say=reporter.message)
    if dry_run:
        opened.computation.engine.close()
        known = estimate(opened.computation)
        if json:
            print_json({"config": plain(opened.config), "cost": known.as_json()})
        else:
            print_lines("\n".join(known.lines()))
        tell_not_kept([(recipe, overrides or [])], quiet)
        return
    tell_not_kept([(recipe, overrides or [])], quiet or rank() > 0)
    _train(opened, reporter, json, loggers)


def resume(path: RunPath,
           rounds: Annotated[int | None, typer.Option(help="New total of rounds; a finished run goes on, too.")] = None,
           log: Log = None, imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Continue an interrupted run from its last checkpoint, or give a run more rounds."""
    from anybit.engines.ranks import rank
    from anybit.sweeps.plan import is_sweep
    from anybit.training.loggers import logger
    from anybit.training.opening import open_run
    from anybit.training.run import Run, check_named

    if is_sweep(path):
        raise RunError(f"{path} is a sweep: continue it with 'anybit sweep {path}'")
    run = Run.load(path, trusted=imports or [])
    check_named(run.folder, run.config)
    if run.folder.whole and rounds in (None, run.config.rounds):
        run.folder.model()  # says it if that is damaged
        raise RunError(f"{path} is finished: see it with 'anybit report {path}', or give it more rounds with --rounds")
    reporter, loggers = Reporter(quiet or rank() > 0), [logger(text) for text in log or []]
    opened = open_run(path, None, lambda config: run.task(), resume=True, rounds=rounds, say=reporter.message)
    reporter.first_round = max(map(run.folder.round_of, run.folder.checkpoints()), default=0)
    _train(opened, reporter, json, loggers)


def _train(opened: OpenRun, reporter: Reporter, json: bool, loggers: Sequence[Callback]) -> None:
    from anybit.federated.metrics import meaning_in
    from anybit.training.callbacks import EachRound
    from anybit.training.course import Watch
    from anybit.training.loop import Simulation, begin, train

    task, config, folder = opened.computation.task, opened.config, opened.folder
    assert folder is not None
    watch = Watch(reporter.message)
    try:
        with opened.held(), stoppable(watch, say):
            reporter.message(f"{folder.path}: {task.variant.name} on {config.data.name}, {len(task.split)} clients, "
                             f"{config.cohort} a round, {config.engine} engine on {config.device}"
                             + (f", from round {reporter.first_round}" if opened.resumed else ""))
            training = begin(opened.computation, folder, opened.resumed, watch, [*loggers, EachRound(reporter.on_round)])
            trained = train(training, Simulation(training))
    finally:
        reporter.close()
    if not opened.computation.engine.leads:
        return
    evaluation, scores, metric = trained.evaluation, own_scores(trained.evaluation), meaning_in(trained.evaluation)
    print_result(json, {"path": str(folder.path), **evaluation}, [metric.head, *scores],
                 [[evaluation["variant"], *(metric.text(score["metric"]) for score in scores.values())]])
    say(f"run: {folder.path}   report: anybit report {folder.path}")
