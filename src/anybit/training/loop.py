"""The round loop: rounds from anywhere, told to whoever follows them, and the evaluation at the end."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from anybit.engines.base import Program
from anybit.errors import EngineError, Interrupted
from anybit.federated.metrics import meaning
from anybit.federated.state import State
from anybit.quant.ranges import StepTable
from anybit.quant.sites import all_parameters
from anybit.training.callbacks import Books, Checkpoints, Evaluations, Metrics, Times
from anybit.training.chance import warn_of_chance
from anybit.training.computation import Computation
from anybit.training.course import Callback, RoundResult, Training, Watch
from anybit.training.run_folder import RunFolder
from anybit.training.task import Trained


class Rounds(Protocol):
    """A source of rounds: an engine here, or a fleet of devices."""

    def __call__(self, state: State, round: int) -> RoundResult:
        """Run the round that follows `round` earlier ones."""

    def release(self) -> None:
        """Give back whatever memory the rounds hold on to; the next one takes it again."""


def begin(computation: Computation, folder: RunFolder | None = None, resume: bool = False, watch: Watch | None = None,
          callbacks: Sequence[Callback] = ()) -> Training:
    """Begin at round 0, or with `resume` where the newest checkpoint of the folder left off.

    callbacks: of the user's; they hear of a round after it is logged and before its checkpoint.
    """
    if folder:
        folder.tidy()
    all_callbacks = (Evaluations(), Books(), Metrics(), Times(), *callbacks, Checkpoints())
    if folder and resume and (checkpoint := folder.newest_checkpoint(computation.device)):
        folder.rewind_logs(checkpoint)
        state, table = checkpoint.restored(*computation.like())
        return Training(computation, checkpoint.round, state, table, folder, watch or Watch(), all_callbacks,
                        folder.lines("metrics"))
    if folder and resume:
        folder.clear_logs()
    return Training(computation, 0, *computation.start(), folder, watch or Watch(), all_callbacks)


def train(training: Training, rounds: Rounds) -> Trained:
    """Run the rounds that are left, t, …, T − 1, then evaluate the full grid."""
    training.release = rounds.release
    try:
        for callback in training.callbacks:
            callback.on_begin(training)
        while not training.ended:
            training.round_started = time.perf_counter()
            training.advance(rounds(training.state, training.round))
        rounds.release()
        return finish(training)
    except EngineError as error:
        raise EngineError(f"{error}{training.last_good()}") from error
    finally:
        for callback in training.callbacks:
            callback.on_end(training)
        training.computation.engine.close()


class Simulation:
    """Rounds that this process's engine computes."""

    def __init__(self, training: Training) -> None:
        self.computation, self.say = training.computation, training.watch.on_message
        if self.computation.engine.slow_start:
            self.say(self.computation.engine.slow_start)
        self.given = self.computation.given(training.table)
        round_program = self.computation.round_program(self.computation.client_step(training.table))
        self.program = Program(functools.partial(self.computation.engine.prepare, round_program))
        self.upcoming = self.computation.inputs(self.given, training.round)
        self.client_bytes = sum(value.nbytes for value in training.state.trainable.named().values())

    def __call__(self, state: State, round: int) -> RoundResult:
        """Run a round, with fewer clients at once where they do not fit into memory."""
        computation, inputs = self.computation, self.upcoming
        while True:
            try:
                state, losses = self.program(state, inputs)
                break
            except torch.OutOfMemoryError:
                self.say(computation.engine.shrink(len(inputs.cohort.clients)))
                self.release()
        # Laid out while the device is still busy with this round.
        self.upcoming = computation.inputs(self.given, round + 1)
        return RoundResult(state, losses, inputs.cohort, self.client_bytes * len(inputs.cohort.clients))

    def release(self) -> None:
        self.program.release()


def finish(training: Training) -> Trained:
    """Evaluate the full grid, and write down the model, the step sizes it is meant to be quantized with, and the scores."""
    engine, (w, trained) = training.computation.engine, training.delivered()
    try:
        return _finished(training, w, trained) if engine.leads else Trained(w, trained, {}, training.metrics)
    finally:
        engine.agree(False, training.round)


def _finished(training: Training, w: dict[str, Tensor], trained: StepTable) -> Trained:
    training.watch.on_message("evaluating at all widths")
    evaluator, task = training.computation.evaluator, training.computation.task
    finder = evaluator.finder(w, trained)
    own_table = finder.table(evaluator.own_steps)
    evaluation = {**meaning(task.metric).recorded(), "variant": task.variant.name,
                  "own": evaluator.own_steps, "sites": task.variant.sites, "test_examples": len(task.data.test),
                  "grid": evaluator.grid(finder, _evaluating(training, time.perf_counter()))}
    if books := training.computation.accountant:
        evaluation["privacy"] = books.statement(training.round)
    if training.config.evaluation.mixed:
        evaluation["mixed"] = evaluator.mixed(w, own_table)
    if training.folder:
        training.folder.save_result(all_parameters(task.model, w), own_table, evaluation)
    warn_of_chance(training, evaluation["grid"][evaluator.own_steps])
    return Trained(w, own_table, evaluation, training.metrics)


def _evaluating(training: Training, started: float) -> Callable[[int, int], None]:
    """Say how far the full grid is while it takes its time; it can be stopped, as its checkpoint is written."""
    def done(parts: int, of: int) -> None:
        if parts == of:
            return
        if training.watch.stop and training.folder:
            raise Interrupted(training.stopped())
        if (seconds := time.perf_counter() - started) > 10:
            training.watch.on_message(f"evaluated {parts} of {of} step rules in {seconds:.0f} s")
    return done
