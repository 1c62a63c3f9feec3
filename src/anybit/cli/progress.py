"""The progress of a sweep: a live table on a terminal, a plain line now and then without one."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anybit.cli.console import own_scores, say
from anybit.errors import printable

if TYPE_CHECKING:
    from anybit.sweeps.plan import SweepFolder
    from anybit.sweeps.schedule import State
    from anybit.training.course import Progress

_COLOURS = {"waiting": "dim", "running": "", "done": "green", "failed": "red"}


@dataclass
class _Line:
    """One run of the sweep."""

    rounds: int
    state: State
    round: int = 0
    scores: dict[str, dict[str, float]] | None = None
    score_line: str = ""
    reason: str = ""
    since: tuple[float, int] | None = None
    """(time, round) when its first round of this process ended."""

    @property
    def speed(self) -> float | None:
        if self.since is None or self.round == self.since[1]:
            return None
        return (self.round - self.since[1]) / max(time.monotonic() - self.since[0], 1e-9)

    def cells(self) -> list[str]:
        speed = f"{self.speed:.2f}" if self.state == "running" and self.speed else "–"
        state = f"{self.state}: {self.reason}" if self.state == "failed" else self.state
        return [f"{self.round}/{self.rounds}", speed, self.score_line or "–", state]


class SweepReporter:
    """The progress of a sweep."""

    COLUMNS = ("run", "round", "rounds/s", "own scores", "state")

    def __init__(self, sweep: SweepFolder, quiet: bool) -> None:
        from anybit.federated.metrics import meaning_in
        from anybit.training.run_folder import RunFolder

        self.lines: dict[str, _Line] = {}
        for run in sweep.runs:
            folder = RunFolder(sweep.run_path(run))
            line = _Line(run.config.rounds, "waiting", max(map(folder.round_of, folder.checkpoints()), default=0))
            if sweep.finished(run):
                evaluation = folder.evaluation()
                line.state, line.round, line.scores = "done", line.rounds, own_scores(evaluation)
                line.score_line = meaning_in(evaluation).line(line.scores)
            self.lines[run.name] = line
        self.quiet, self.last_line = quiet, 0.0
        self.live: Live | None = None
        if sys.stderr.isatty() and not quiet:
            self.live = Live(console=Console(stderr=True), get_renderable=self._table, refresh_per_second=2,
                             transient=True)

    def on_round(self, name: str, progress: Progress) -> None:
        line = self.lines[name]
        line.state, line.round = "running", progress.round
        line.since = line.since or (time.monotonic(), progress.round)
        if progress.evaluation:
            line.scores, line.score_line = progress.evaluation["scores"], progress.score_line
        if progress.evaluation or progress.round == progress.rounds or time.monotonic() - self.last_line > 10:
            self._say(name)

    def on_state(self, name: str, state: State, reason: str) -> None:
        self.lines[name].state, self.lines[name].reason = state, reason
        self._say(name)

    def on_message(self, name: str, text: str) -> None:
        if self.live:
            self.live.console.print(Text(printable(f"{name}: {text}")))
        elif not self.quiet:
            say(f"{name}: {text}")

    def _say(self, name: str) -> None:
        if self.live or self.quiet:
            return
        self.last_line = time.monotonic()
        round, speed, scores, state = self.lines[name].cells()
        say(f"{name}  round {round}  {speed} rounds/s  {scores}  {state}")

    def rows(self) -> list[list[str]]:
        return [[name, *line.cells()] for name, line in self.lines.items()]

    def as_json(self) -> list[dict[str, Any]]:
        return [{"run": name, "round": line.round, "rounds": line.rounds, "state": line.state, "reason": line.reason,
                 "scores": line.scores} for name, line in self.lines.items()]

    def _table(self) -> Table:
        """Draw as many runs as the terminal has lines for: a live table longer than the screen flickers."""
        room = max(3, Console(stderr=True).height - 3)
        lines = list(self.lines.items())
        first = next((i for i, (_, line) in enumerate(lines) if line.state == "running"), 0)
        start = max(0, min(first - room // 3, len(lines) - room))
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for i, column in enumerate(self.COLUMNS):
            table.add_column(column, justify="right" if i in (1, 2) else "left", no_wrap=i < 3)
        for name, line in lines[start:start + room]:
            table.add_row(*[Text(printable(cell), style=_COLOURS[line.state]) for cell in (name, *line.cells())])
        return table
