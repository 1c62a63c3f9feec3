"""The progress of a training in Python: one line on stderr, written over and over."""

from __future__ import annotations

import shutil
import sys
import time

from anybit.training.course import Callback, Progress, Training


class ProgressLine(Callback):
    """Writes round, loss, time left and the newest scores, as much as the line has room for."""

    def __init__(self) -> None:
        self.started, self.first = time.monotonic(), -1
        self.scores, self.width = "", 0

    @staticmethod
    def wanted() -> bool:
        """Tell if somebody is watching: stderr is a terminal, or a notebook."""
        return sys.stderr.isatty() or "ipykernel" in sys.modules

    def after_round(self, training: Training, progress: Progress) -> None:
        if self.first < 0:  # its time began before the first round, which is over now
            self.first = progress.round - 1
        if progress.evaluation:
            self.scores = f"  {progress.score_line}"
        left = (time.monotonic() - self.started) / (progress.round - self.first) * (progress.rounds - progress.round)
        text = f"round {progress.round}/{progress.rounds}  {progress.training_line}  {_time(left)} left{self.scores}"
        text = text[:shutil.get_terminal_size().columns - 1]
        print("\r" + text.ljust(self.width), end="", file=sys.stderr, flush=True)
        self.width = len(text)
        if training.ended:
            self.close()

    def close(self) -> None:
        """End the line."""
        if self.width:
            print(file=sys.stderr, flush=True)
            self.width = 0


def _time(seconds: float) -> str:
    minutes = round(seconds) // 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes} min" if minutes < 120 else f"{minutes / 60:.0f} h"
