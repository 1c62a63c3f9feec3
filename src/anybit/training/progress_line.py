"""The progress of a training in Python: one line on stderr, written over and over, or plain lines where nobody watches."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence

from anybit.training.course import Callback, Progress, Training

PATIENCE = 10.0
"""Seconds from one plain line to the next, and before the first: a short training needs none."""


class ProgressLine(Callback):
    """Writes round, loss, time left and the newest scores, as much as the line has room for.

    live: one line, written over; else a new one now and then, and for each evaluation of a training that takes its time.
    """

    def __init__(self, live: bool = True) -> None:
        self.live, self.first, self.spoken = live, -1, False
        self.started = self.last = time.monotonic()
        self.scores, self.width = list[str](), 0

    @staticmethod
    def watched() -> bool:
        """Tell if somebody is watching: stderr is a terminal, or a notebook."""
        return sys.stderr.isatty() or "ipykernel" in sys.modules

    def after_round(self, training: Training, progress: Progress) -> None:
        now = time.monotonic()
        if self.first < 0:  # its time began before the first round, which is over now
            self.first = progress.round - 1
        if progress.evaluation:
            self.scores = [progress.metric.line({width: score}) for width, score in progress.evaluation["scores"].items()]
        left = (now - self.started) / (progress.round - self.first) * (progress.rounds - progress.round)
        head = f"round {progress.round}/{progress.rounds}  {progress.training_line}  {_time(left)} left"
        if self.live:
            text = fitting(head, self.scores, shutil.get_terminal_size().columns - 1)
            print("\r" + text.ljust(self.width), end="", file=sys.stderr, flush=True)
            self.width = len(text)
            if training.ended:
                self.close()
        elif now - self.last > PATIENCE or (self.spoken and (progress.evaluation or training.ended)):
            print("  ".join([head, *self.scores]), file=sys.stderr, flush=True)
            self.spoken, self.last = True, now

    def close(self) -> None:
        """End the line."""
        if self.width:
            print(file=sys.stderr, flush=True)
            self.width = 0


def fitting(head: str, scores: Sequence[str], columns: int) -> str:
    """Write the scores behind the head; where there is no room for all, the middle ones go, and the lowest width last."""
    shown = list(scores)
    for dropped in range(len(scores)):
        shown = [*scores[:1], "…", *scores[dropped + 1:]] if 0 < dropped < len(scores) - 1 else list(scores[dropped:])
        if len(f"{head}  {' '.join(shown)}") <= columns:
            break
    return f"{head}  {' '.join(shown)}".rstrip()[:columns]


def _time(seconds: float) -> str:
    minutes = round(seconds) // 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
