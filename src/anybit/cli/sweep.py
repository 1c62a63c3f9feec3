"""sweep and collect: many runs, and their results in one small file."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anybit.cli.console import Debug, Import, Json, Quiet, print_json, print_table, say
from anybit.cli.progress import SweepReporter
from anybit.cli.recipes import tell_not_kept
from anybit.training.stopping import stoppable

if TYPE_CHECKING:
    from anybit.sweeps.plan import PlannedRun, SweepFolder
    from anybit.sweeps.schedule import SweepWatch


def sweep(names: Annotated[list[str], typer.Argument(
              metavar="NAME... [KEY=VALUE]...", help="Recipes, folders of recipes, or one sweep's folder to continue; "
                                                     "then overrides, e.g. rounds=200.")],
          seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="Default: each recipe's own seed.")] = None,
          vary: Annotated[list[str] | None, typer.Option(
              metavar="KEY=A,B", help="Train with each of these values; several: every combination.")] = None,
          path: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
          time_limit: Annotated[float | None, typer.Option(
              metavar="SECONDS", help="Stop with a checkpoint when this time is over.")] = None,
          dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the runs, and stop.")] = False,
          imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Train many runs: recipes × varied settings × seeds. The same command again continues, and retries what failed."""
    from anybit.sweeps.plan import SweepFolder, is_sweep
    from anybit.sweeps.preflight import check_without_data
    from anybit.sweeps.schedule import SweepWatch, train_sweep

    started = time.monotonic()
    runs, folder = _resolve(names, vary or [], seeds, path)
    if dry_run:
        check_without_data((run.config for run in SweepFolder(folder, runs).unfinished()), imports or [])
    tell_not_kept(((run.recipe, run.overrides) for run in runs), quiet or is_sweep(Path(names[0])))
    if dry_run:
        _print_plan(runs, json)
        return
    held = SweepFolder.begin(folder, runs)
    reporter = SweepReporter(held, quiet)
    watch = SweepWatch(reporter.on_state, reporter.on_round, reporter.on_message,
                       None if time_limit is None else started + time_limit)
    with reporter, stoppable(watch, say):
        failed = train_sweep(held, watch, imports or [])
    if json:
        print_json(reporter.as_json())
    else:
        print_table(reporter.COLUMNS, reporter.rows())
    _conclude(held, failed, watch, imports or [])


def _resolve(names: list[str], vary: list[str], seeds: str | None, path: Path | None) -> tuple[list[PlannedRun], Path]:
    """(the runs, the folder) of a new definition, or of the sweep that a single name leads to."""
    from anybit.errors import ConfigError
    from anybit.sweeps.plan import SweepFolder, is_sweep, plan

    if is_sweep(Path(names[0])):
        if len(names) > 1 or vary or seeds or path:
            raise ConfigError(f"{names[0]} is a sweep: it continues as it was defined, without further arguments")
        held = SweepFolder.open(Path(names[0]))
        return held.runs, held.path
    wanted = [name for name in names if "=" not in name]
    runs = plan(wanted, [name for name in names if "=" in name], _seeds(seeds), vary)
    label = "-".join(Path(name).stem if Path(name).exists() else name.strip("/").replace("/", "-") for name in wanted)
    if len(label) > 80:
        label = f"{len(runs)}-runs"
    return runs, path or Path("runs/sweeps") / label


def _seeds(text: str | None) -> list[int] | None:
    from anybit.errors import ConfigError

    try:
        return None if text is None else [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text}: write whole numbers with commas, e.g. --seeds 1,2,3") from None


def _print_plan(runs: list[PlannedRun], json: bool) -> None:
    if json:
        print_json([{"name": run.name, "recipe": run.recipe, "overrides": list(run.overrides), "seed": run.seed,
                     "rounds": run.config.rounds} for run in runs])
    else:
        print_table(["run", "recipe", "seed", "rounds", "overrides"],
                    [[run.name, run.recipe, str(run.seed), str(run.config.rounds), " ".join(run.overrides) or "–"]
                     for run in runs])


def _conclude(sweep: SweepFolder, failed: dict[str, str], watch: SweepWatch, imports: list[str]) -> None:
    """The last line says what comes next."""
    from anybit.errors import Interrupted, RunsFailed

    again = shlex.join(["anybit", "sweep", str(sweep.path), *(word for i in imports for word in ("--import", i))])
    waiting = len([run for run in sweep.unfinished() if run.name not in failed])
    unfinished = f"{waiting} of {len(sweep.runs)} runs are not finished; continue with: {again}"
    if failed:
        if waiting:
            say(unfinished)
        raise RunsFailed(f"{len(failed)} of {len(sweep.runs)} runs failed: {', '.join(failed)}; retry with: {again}")
    if not waiting:
        say(f"sweep: {sweep.path}   results: anybit collect {sweep.path} --out results.json")
    elif watch.stop:
        raise Interrupted(unfinished)
    else:
        say(unfinished)


def collect(paths: Annotated[list[Path], typer.Argument(metavar="FOLDER...", help="Sweeps, runs or results files.")],
            out: Annotated[Path, typer.Option(help="FILE.json with everything, or FILE.csv with the scores and "
                                                  "the settings that differ.")],
            debug: Debug = False) -> None:
    """Gather the results of finished runs into one small file."""
    from anybit.errors import RunError
    from anybit.sweeps.results import read_results, write_results

    found = read_results(paths)
    if not found.results:
        raise RunError(f"no run in {', '.join(map(str, paths))} is finished: there is nothing to collect yet")
    write_results(found.results, out)
    for name in found.unfinished:
        say(f"left out, because it is not finished: {name}")
    say(f"{len(found.results)} run{'s' if len(found.results) > 1 else ''}: {out}")

