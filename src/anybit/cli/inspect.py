"""eval, report, doctor: looking at runs and at the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_table, say
from anybit.cli.training import RunPath


def evaluate(path: RunPath,
             width: Annotated[list[str] | None, typer.Option(help="W4, A4, WA4, W4A8, FP32; repeat for more.")] = None,
             steps: Annotated[str | None, typer.Option(help="table, rule, mse, minmax or cover.")] = None,
             imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Evaluate a trained run at any widths on the whole test set."""
    from typing import get_args

    from anybit.api import Run
    from anybit.errors import ConfigError, did_you_mean
    from anybit.quant.grid import Width
    from anybit.variants import Steps

    if steps is not None and steps not in get_args(Steps):
        raise ConfigError(f"--steps {steps}: {did_you_mean(steps, get_args(Steps))}")
    run = Run.load(path, trusted=imports or [])
    sites = run.evaluation["sites"]
    widths = [str(Width.parse(w)) for w in width] if width else [str(Width.of(sites, b)) for b in run.config.evaluation.bits]
    scores = run.evaluate(widths, steps)  # type: ignore[arg-type]
    if json:
        print_json({name: score._asdict() for name, score in scores.items()})
    else:
        print_table(["width", "loss", run.evaluation["metric"]],
                    [[name, f"{s.loss:.4f}", f"{s.metric:.2f}"] for name, s in scores.items()])


def report(paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
           out: Annotated[Path | None, typer.Option(help="Where to write; default: report/ in the first run.")] = None,
           json: Json = False, debug: Debug = False) -> None:
    """Compare runs: a table here, and one HTML page with plots."""
    from anybit.report import accuracy_table, read_runs, write_report

    runs = read_runs(paths)
    table = accuracy_table(runs)
    if json:
        print_json(table.as_json())
    else:
        print_table(table.columns, table.cells(), table.marks())
    page = write_report(paths, out or paths[0] / "report")
    say(f"report: {page}")


def doctor(engines: Annotated[bool, typer.Option("--engines", help="Measure every engine on LeNet-5 and ResNet-20.")
                              ] = False,
           json: Json = False, debug: Debug = False) -> None:
    """Say what this machine has, what is missing for what, and (with --engines) which engine is fast here."""
    from anybit.data.cache import home
    from anybit.environment import EXTRAS, environment, version

    facts = {**environment(), "cache": str(home())}
    extras = {extra: {package: version(package) for package in packages} for extra, packages in EXTRAS.items()}
    if not json:
        print_table(["environment", ""], [[name, str(value)] for name, value in facts.items()])
        print_table(["extra", "packages"],
                    [[extra, ", ".join(f"{p} {v}" if v else f"{p} missing: pip install 'anybit[{extra}]'"
                                       for p, v in packages.items())] for extra, packages in extras.items()])
    table = _engines() if engines else []
    if json:
        print_json({"environment": facts, "extras": extras, **({"engines": table} if engines else {})})
    elif engines:
        print_table(["a round of 10 clients × 500 images", "engine", "threads", "convolutions", "seconds", "ratio"],
                    [[row["model"], row["engine"], str(row["threads"]), row["convolution"], f"{row['seconds']:.3f}",
                      f"{row['ratio']:.2f}"] for row in table])


def _engines() -> list[dict[str, Any]]:
    """Seconds per round of every candidate, and their ratio to the default."""
    from dataclasses import asdict

    from anybit.calibration import example_task, measure
    from anybit.config import Config
    from anybit.models import lenet5, resnet20

    rows: list[dict[str, Any]] = []
    for model in (lenet5, resnet20):
        table = list(measure(Config(), example_task(model()), budget=600.0))
        rows += [{"model": model.__name__, **asdict(m.candidate), "seconds": m.seconds,
                  "ratio": m.seconds / table[0].seconds} for m in table]
    return rows
