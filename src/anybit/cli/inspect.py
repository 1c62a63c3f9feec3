"""eval, report, doctor: views of runs and of the machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anybit.cli.console import Debug, Import, Json, print_json, print_lines, print_result, print_table, say, step_rule
from anybit.cli.training import RunPath
from anybit.errors import ConfigError

if TYPE_CHECKING:
    from anybit.reproduction.compare import Comparison
    from anybit.training.run import Run


def evaluate(path: RunPath,
             width: Annotated[list[str] | None, typer.Option(help="W4, A4, WA4, W4A8, FP32; repeat for more.")] = None,
             steps: Annotated[str | None, typer.Option(help="Step sizes by table, rule, mse, minmax or cover.")] = None,
             mixed: Annotated[bool, typer.Option("--mixed", help="Every pair of bits for weights and activations, saved "
                                                                 "with the run for its report.")] = False,
             per_client: Annotated[bool, typer.Option("--per-client", help="Evaluate on each client's own training examples "
                                                                           "instead of the test set.")] = False,
             imports: Import = None, json: Json = False, debug: Debug = False) -> None:
    """Evaluate a trained run at any widths on the whole test set."""
    import numpy as np

    from anybit.quant.grid import Width
    from anybit.training.run import Run

    rule = step_rule(steps)
    run = Run.load(path, trusted=imports or [])
    bits, metric = run.config.evaluation.bits, run.metric
    if mixed:
        if width or steps:
            raise ConfigError("--mixed evaluates all widths at the run's own step sizes: leave out --width and --steps")
        run.mixed(lambda scores: print_result(
            json, {name: score._asdict() for name, score in scores.items()}, [metric.head, *(f"A{a}" for a in bits)],
            [[f"W{w}", *(metric.text(scores[str(Width(w, a))].metric) for a in bits)] for w in bits]))
        return
    widths = [Width.parse(text) for text in width] if width else [Width.of(run.evaluation["sites"], b) for b in bits]
    if per_client:
        if rule is not None:
            raise ConfigError("--per-client evaluates at the run's own step sizes: leave out --steps")
        found = {str(w): run.per_client(str(w)) for w in widths}
        print_result(json, {name: values.tolist() for name, values in found.items()},
                     ["width", "clients", f"mean {metric.head}", "10th percentile"],
                     [[name, str(len(values)), metric.text(values.mean()), metric.text(np.percentile(values, 10))]
                      for name, values in found.items()])
        return
    scores = run.evaluate([str(w) for w in widths], rule)
    print_result(json, {name: score._asdict() for name, score in scores.items()}, ["width", "loss", metric.head],
                 [[name, f"{score.loss:.4f}", metric.text(score.metric)] for name, score in scores.items()])
    warn_of_steps(run, rule, {name: score.metric for name, score in scores.items()})


def warn_of_steps(run: Run, rule: str | None, metrics: dict[str, float]) -> None:
    """Say what other step sizes than the run's own lose."""
    own, metric = run.evaluation["own"], run.metric
    if rule not in (None, own) and (lost := run.loss_to_own(metrics)):
        say(f"warning: --steps {rule} loses {metric.text(lost[1])} {metric.head} at {lost[0]} "
            f"against the run's own step sizes ('{own}')")


def report(paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
           out: Annotated[Path | None, typer.Option(help="Where to write; default: report/ in the first run, "
                                                     "for a results file report/ here.")] = None,
           paper: Annotated[bool, typer.Option("--paper", help="Compare with the paper's figures instead; RUN may also "
                                                               "be a sweep or a results file.")] = False,
           markdown: Annotated[Path | None, typer.Option(help="With --paper: also write the comparison here; the "
                                                                "details go to NAME-readings.md.")] = None,
           json: Json = False, debug: Debug = False) -> None:
    """Compare runs: a table here, and one HTML page with plots. Or compare them with the paper's figures."""
    from anybit.files.holding import own_folder
    from anybit.report import accuracy_table, read_runs, write_report
    from anybit.report.seeds import seeds_table

    if markdown is not None and not paper:
        raise ConfigError("--markdown belongs to --paper")
    folder = out or (own_folder(paths[0] / "report") if paths[0].is_dir() else Path("report"))
    if paper:
        _report_paper(paths, folder, markdown, json)
        return
    runs = read_runs(paths)
    table = accuracy_table(runs)
    seeds = seeds_table(runs, table)
    print_result(json, {**table.as_json(), **({"seeds": seeds.as_json()} if seeds else {})}, table.columns, table.cells(),
                 None if seeds else table.marks())
    if seeds and not json:
        print_lines("\nmean ± standard deviation over seeds (how many)")
        print_table(seeds.columns, seeds.cells(), seeds.marks())
    for record in runs:
        if not record.finished:
            say(f"{record.name} is not finished: round {record.rounds} of {record.config.get('rounds', '?')}")
    say(f"report: {write_report(paths, folder)}")


def _report_paper(paths: list[Path], out: Path, markdown: Path | None, json: bool) -> None:
    from anybit.reproduction import text as paper_text
    from anybit.reproduction.compare import compare
    from anybit.reproduction.page import write_comparison
    from anybit.sweeps.results import read_results

    collected = read_results(paths)
    comparison = compare(collected.results)
    if json:
        print_json(paper_text.as_json(comparison))
    else:
        _print_comparison(comparison)
    for name in collected.unfinished:
        say(f"left out, because it is not finished: {name}")
    for name in comparison.others:
        say(f"left out, because it is no column of the paper: {name}")
    for file in write_comparison(comparison, out, markdown):
        say(f"wrote {file}")


def _print_comparison(comparison: Comparison) -> None:
    from anybit.reproduction import text as paper_text
    from anybit.reproduction.agreement import agreement
    from anybit.reproduction.overfitting import courses

    for table in comparison.tables:
        print_lines(f"{table.title} ({table.number})")
        print_table(paper_text.head(table), paper_text.rows(table))
        print_lines("\n".join([*paper_text.notes(table), ""]))
        if readings := paper_text.reading_rows(table):
            print_table([*paper_text.head(table), paper_text.READING_HEAD], readings)
            print()
    for home, lines in courses(comparison.by_recipe).items():
        print_lines(f"Overfitting: {home}")
        print_table(paper_text.OVERFITTING_HEAD, paper_text.overfitting_rows(lines))
        print()
    print_table(paper_text.CLAIM_HEAD, paper_text.claim_rows(comparison.verdicts))
    print_lines(f"\n{agreement(comparison.tables)} Beyond that: !, doubted: ?")


def doctor(engines: Annotated[bool, typer.Option("--engines", help="Measure all engines on LeNet-5 and ResNet-20.")] = False,
           json: Json = False, debug: Debug = False) -> None:
    """Show this machine, the missing packages of each extra, and (with --engines) the speed of every engine."""
    from anybit.environment import EXTRAS, environment, version
    from anybit.files.writing import home

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
    """Measure the seconds per round of every candidate, and their ratio to the default."""
    from anybit.config import Config
    from anybit.models import lenet5, resnet20
    from anybit.training.engine_choice import example_task, measure

    rows: list[dict[str, Any]] = []
    for model in (lenet5, resnet20):
        table = list(measure(Config(), example_task(model()), budget=600.0))
        rows += [{"model": model.__name__, **asdict(m.candidate), "seconds": m.seconds,
                  "ratio": m.seconds / table[0].seconds} for m in table]
    return rows
