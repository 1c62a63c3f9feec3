"""sweep and collect: many runs, and their results in one small file."""

from __future__ import annotations

import shlex
import time
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anybit.cli.console import Debug, Import, Json, Quiet, print_result, say
from anybit.cli.progress import SweepReporter
from anybit.cli.recipes import tell_not_kept
from anybit.errors import ConfigError, Interrupted, RunError, RunsFailed
from anybit.training.stopping import stoppable

if TYPE_CHECKING:
    from anybit.sweeps.plan import PlannedRun, SweepFolder
    from anybit.sweeps.schedule import SweepWatch


def sweep(names: Annotated[list[str], typer.Argument(
              metavar="NAME... [KEY=VALUE]...", help="Recipes, folders of recipes, or the folder of a sweep to continue; "
                                                     "then overrides, e.g. rounds=200.")],
          seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="Seeds; default: each recipe's own.")] = None,
          vary: Annotated[list[str] | None, typer.Option(
              metavar="KEY=A,B", help="Train with each of these values; repeat for all combinations.")] = None,
          path: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/sweeps/NAME.")] = None,
          time_limit: Annotated[float | None, typer.Option(
              metavar="SECONDS", help="Stop with a checkpoint after this time.")] = None,
          dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the runs, then exit.")] = False,
          imports: Import = None, quiet: Quiet = False, json: Json = False, debug: Debug = False) -> None:
    """Train many runs: recipes × varied settings × seeds. Repeat the command to continue and to retry what failed, or with
    more seeds, or more values of the same --vary, to add them; with more recipes give the sweep's --path."""
    from anybit.sweeps.plan import SweepFolder, is_sweep
    from anybit.sweeps.preflight import check_without_data
    from anybit.sweeps.schedule import SweepWatch, train_sweep

    started = time.monotonic()
    runs, folder = _resolve(names, vary or [], seeds, path)
    if dry_run:
        check_without_data((run.config for run in SweepFolder(folder, runs).unfinished()), imports or [])
    tell_not_kept(((run.recipe, run.overrides) for run in runs), quiet or is_sweep(Path(names[0])))
    if dry_run:
        print_result(json, [{"name": run.name, "recipe": run.recipe, "overrides": list(run.overrides), "seed": run.seed,
                             "rounds": run.config.rounds} for run in runs],
                     ["run", "recipe", "seed", "rounds", "overrides"],
                     [[run.name, run.recipe, str(run.seed), str(run.config.rounds), " ".join(run.overrides) or "–"]
                      for run in runs])
        return
    before = len(SweepFolder.open(folder).runs) if is_sweep(folder) else len(runs)
    begun = SweepFolder.begin(folder, runs)
    if len(runs) > before:
        say(f"{folder}: {len(runs) - before} new beside the {before} it had")
    reporter = SweepReporter(begun, quiet)
    watch = SweepWatch(reporter.on_state, reporter.on_round, reporter.on_message,
                       None if time_limit is None else started + time_limit)
    with reporter.live or nullcontext(), stoppable(watch, say):
        failed = train_sweep(begun, watch, imports or [])
    print_result(json, reporter.as_json(), reporter.COLUMNS, reporter.rows())
    _conclude(begun, failed, watch, imports or [])


def _resolve(names: list[str], vary: list[str], seeds: str | None, path: Path | None) -> tuple[list[PlannedRun], Path]:
    """Return (runs, folder) of a new sweep, or of the sweep whose folder is the only name."""
    from anybit.sweeps.plan import SweepFolder, is_sweep, plan

    if is_sweep(Path(names[0])):
        if len(names) > 1 or vary or seeds or path:
            raise ConfigError(f"{names[0]} is a sweep: it continues as it was defined, without further arguments")
        begun = SweepFolder.open(Path(names[0]))
        return begun.runs, begun.path
    try:
        numbers = None if seeds is None else [int(seed) for seed in seeds.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {seeds}: write whole numbers with commas, e.g. --seeds 1,2,3") from None
    chosen = [name for name in names if "=" not in name]
    runs = plan(chosen, [name for name in names if "=" in name], numbers, vary)
    return runs, path or Path("runs/sweeps") / _label(chosen)


def _label(names: list[str]) -> str:
    """Name a sweep after its recipes; many by the first and a hash of all, so that more seeds and values find the sweep."""
    labels = [Path(name).stem if Path(name).exists() else name.strip("/").replace("/", "-") for name in names]
    whole = "-".join(labels)
    if len(whole) <= 80:
        return whole
    more = f"-and-{len(labels) - 1}-more" if len(labels) > 1 else ""
    return f"{labels[0][:40]}{more}-{sha256(whole.encode()).hexdigest()[:8]}"


def _conclude(sweep: SweepFolder, failed: dict[str, str], watch: SweepWatch, imports: list[str]) -> None:
    """End with the command that comes next: collect, continue or retry."""
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
    from anybit.sweeps.results import read_results, write_results

    collected = read_results(paths)
    if not collected.results:
        raise RunError(f"no run in {', '.join(map(str, paths))} is finished: there is nothing to collect yet")
    write_results(collected.results, out)
    for name in collected.unfinished:
        say(f"left out, because it is not finished: {name}")
    say(f"{len(collected.results)} run{'s' if len(collected.results) > 1 else ''}: {out}")
