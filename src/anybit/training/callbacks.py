"""The callbacks of every training: evaluations on the way, logs, checkpoints, and a function of the user's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from anybit.errors import RunError
from anybit.federated.accountant import finite
from anybit.federated.server import Delivered
from anybit.training.course import Callback, Progress, Training


@dataclass(frozen=True)
class EachRound(Callback):
    """Calls a function after every round."""

    function: Callable[[Progress], None]

    def after_round(self, training: Training, progress: Progress) -> None:
        self.function(progress)


class Evaluations(Callback):
    """Evaluates the server model every so many rounds, and after the last."""

    def after_round(self, training: Training, progress: Progress) -> None:
        due = training.ended or training.config.evaluation.due(training.round)
        if training.computation.engine.leads and due:
            progress.evaluation = self._evaluated(training)

    def _evaluated(self, training: Training) -> dict[str, Any]:
        """Evaluate; in place of the cohort where that fills the device to the brim."""
        try:
            return self._scored(training)
        except torch.OutOfMemoryError:
            pass  # and out of this block, which holds on to what was allocated before the error
        training.release()
        return self._scored(training)

    def _scored(self, training: Training) -> dict[str, Any]:
        """Evaluate the weights that are shipped; where an average is kept, also score the others, by their name."""
        evaluator, shipped = training.computation.evaluator, training.config.server.deliver
        evaluation = evaluator.own(*training.delivered())
        if not training.state.average:
            return evaluation
        other: Delivered = "last" if shipped == "average" else "average"
        return {**evaluation, other: evaluator.own_scores(*training.delivered(other))}


class Books(Callback):
    """Keeps ε: computed where the model is evaluated, and known from then on."""

    def __init__(self) -> None:
        self.newest: float | None = None

    def on_begin(self, training: Training) -> None:
        if (books := training.computation.accountant) and training.computation.engine.leads:
            end, rounds = books.epsilon(training.config.rounds), training.config.rounds
            training.watch.on_message(f"privacy: ε = {end:.3g} at δ = {books.delta:.2g} after {rounds} rounds "
                                      f"({books.model.neighbours})")
            self.newest = books.epsilon(training.round) if training.round else None

    def after_round(self, training: Training, progress: Progress) -> None:
        if (books := training.computation.accountant) and progress.evaluation:
            self.newest = books.epsilon(training.round)
        progress.epsilon = self.newest


class Metrics(Callback):
    """Keeps one entry per round: {round, loss[, evaluation][, epsilon]}; without the loss where that is private."""

    def after_round(self, training: Training, progress: Progress) -> None:
        known = {} if training.config.privacy.private else {"loss": progress.loss}
        entry = {"round": progress.round, **known,
                 **({"evaluation": progress.evaluation} if progress.evaluation else {}),
                 **({"epsilon": finite(progress.epsilon)} if progress.evaluation and progress.epsilon is not None else {})}
        training.metrics.append(entry)
        if training.folder:
            training.folder.append("metrics", entry)


class Times(Callback):
    """Keeps the seconds of every round, in a file of its own: they are no part of the result."""

    def __init__(self) -> None:
        self.kept = True

    def after_round(self, training: Training, progress: Progress) -> None:
        progress.seconds = (time.perf_counter() - training.round_started) / training.runs_together
        if training.folder and self.kept:
            try:
                sent = {"bytes_down": progress.bytes_down, "bytes_up": progress.bytes_up} if progress.bytes_down else {}
                training.folder.append("timing", {"round": progress.round, "seconds": progress.seconds, **sent})
            except RunError as error:
                self.kept = False
                training.watch.on_message(f"warning: no more times are kept ({error})")


class Checkpoints(Callback):
    """Writes the state every so many rounds, after the last, and when the training is stopped."""

    def __init__(self) -> None:
        self.newest = 0

    def after_round(self, training: Training, progress: Progress) -> None:
        if training.ended or training.round % training.config.checkpoint_every == 0:
            self._write(training)

    def on_stop(self, training: Training) -> None:
        if self.newest != training.round:
            self._write(training)

    def _write(self, training: Training) -> None:
        if training.folder:
            training.folder.save_checkpoint(training.round, training.state, training.table)
        self.newest = training.round
