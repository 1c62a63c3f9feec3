"""Output of the command line: tables, JSON, and the progress of a run. Options that several verbs share."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from anybit.errors import ConfigError, did_you_mean, printable

if TYPE_CHECKING:
    from anybit.training.course import Progress

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")]
Import = Annotated[list[str] | None, typer.Option(
    "--import", metavar="MODULE", help="Allow this module of yours, which the recipe names, to be imported.")]


def say(text: str) -> None:
    """Print lines for the person to stderr, so that stdout stays a table or JSON."""
    print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)


def print_lines(text: str) -> None:
    """Print lines of a result to stdout, without the control characters that names from files may hold."""
    print("\n".join(map(printable, text.split("\n"))))


def print_json(value: Any) -> None:
    """Print JSON, with characters that a terminal would obey or could not show as JSON escapes."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    print("".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[Sequence[bool]] | None = None) -> None:
    """Print a table, numbers to the right, cells marked in `bold` highlighted. A narrow terminal wraps; nothing is cut."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    columns, rows = list(map(printable, columns)), [list(map(printable, row)) for row in rows]
    for i, name in enumerate(columns):
        number = i and all(not row[i] or row[i][0] in "0123456789+-−–" for row in rows)
        table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
    for r, row in enumerate(rows):
        marks = bold[r] if bold else [False] * len(row)
        table.add_row(*[Text(cell, style="bold green" if mark else "")
                        for cell, mark in zip(row, marks, strict=True)])
    needed = sum(max(cell_len(cell) for cell in cells) + 2 for cells in zip(columns, *rows, strict=True))
    Console(width=max(Console().width, needed)).print(table)


def print_result(json: bool, value: Any, columns: Sequence[str], rows: Sequence[Sequence[str]],
                 bold: Sequence[Sequence[bool]] | None = None) -> None:
    """Print a result: `value` as JSON, or the same as a table."""
    if json:
        print_json(value)
    else:
        print_table(columns, rows, bold)


def choice(option: str, value: str, known: Sequence[str]) -> Any:
    """Return the value of an option if it is one of `known`; else raise with the nearest of them."""
    if value not in known:
        raise ConfigError(f"{option} {value}: {did_you_mean(value, known)}")
    return value


def step_rule(name: str | None) -> Any:
    """Return the value of --steps if it names a step rule; else raise."""
    from anybit.federated.variants import StepRule

    return name if name is None else choice("--steps", name, get_args(StepRule))


def own_scores(evaluation: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scores of a run's variant at its sites and by its step rule, by width."""
    scores = evaluation["grid"][evaluation["own"]]
    return {width: score for width, score in scores.items()
            if width == "FP32" or width.rstrip("0123456789") == evaluation["sites"]}


class _Speed(ProgressColumn):
    def render(self, task: Any) -> Text:
        return Text(f"{task.speed:.2f} rounds/s" if task.speed else "– rounds/s")


class _TwoLines(Bar):
    """The progress of rounds, and below it the newest scores, for which a narrow line has no room."""

    scores = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.scores:
            yield Text(self.scores, no_wrap=True, overflow="ellipsis")


class Reporter:
    """The progress of a run: a live line on a terminal, a plain line now and then without one."""

    def __init__(self, quiet: bool, first_round: int = 0) -> None:
        self.quiet, self.first_round = quiet, first_round
        self.live = sys.stderr.isatty()
        self.bar: _TwoLines | None = None
        self.started = self.last_line = time.monotonic()
        self.scores = ""

    def on_round(self, progress: Progress) -> None:
        if self.quiet:
            return
        if progress.evaluation:
            self.scores = progress.score_line
        if self.live:
            self._live(progress)
        elif progress.evaluation or progress.round == progress.rounds or time.monotonic() - self.last_line > 10:
            self._line(progress)

    def _live(self, progress: Progress) -> None:
        if self.bar is None:
            self.bar = _TwoLines(TextColumn("round"), MofNCompleteColumn(), BarColumn(16), _Speed(), TextColumn("ETA"),
                                 TimeRemainingColumn(compact=True), TextColumn("{task.fields[line]}"),
                                 console=Console(stderr=True), redirect_stdout=False, redirect_stderr=False)
            self.bar.start()
            self.bar.add_task("", total=progress.rounds, completed=progress.round - 1, line=progress.training_line)
        self.bar.scores = self.scores
        self.bar.update(self.bar.task_ids[0], completed=progress.round, line=progress.training_line)

    def _line(self, progress: Progress) -> None:
        self.last_line = time.monotonic()
        speed = (progress.round - self.first_round) / max(self.last_line - self.started, 1e-9)
        eta = (progress.rounds - progress.round) / speed
        say(f"round {progress.round}/{progress.rounds}  {progress.training_line}  {speed:.2f} rounds/s  ETA {eta:.0f} s"
            + (f"  {self.scores}" if progress.evaluation else ""))

    def message(self, text: str) -> None:
        self.close()
        if not self.quiet:
            say(text)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
