"""A training under way, its rounds and its callbacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anybit.config import Config
from anybit.errors import Interrupted
from anybit.federated.cohort import Cohort
from anybit.federated.metrics import ACCURACY, Meaning, meaning
from anybit.federated.server import Delivered
from anybit.federated.state import State, trained_table
from anybit.quant.ranges import StepTable
from anybit.training.computation import Computation
from anybit.training.divergence import check_finite, mean_loss, what_to_lower
from anybit.training.run_files import resume_with
from anybit.training.run_folder import RunFolder


@dataclass
class Progress:
    """A round that is over."""

    round: int
    rounds: int
    loss: float
    evaluation: dict[str, Any] | None = None
    """The server model at the variant's own widths, in the rounds in which it was evaluated."""
    seconds: float = 0.0
    bytes_down: int = 0
    """Sent to the clients of the round: what they train, in its own type, × clients; 0: not counted, as on a fleet."""
    bytes_up: int = 0
    metric: Meaning = ACCURACY
    epsilon: float | None = None
    """ε of the newest evaluation, where clients are promised privacy; their losses are then not known (nan)."""

    @property
    def training_line(self) -> str:
        """The training loss, or in its place what privacy has cost so far."""
        if not math.isnan(self.loss):
            return f"loss {self.loss:.3f}"
        return "ε not known yet" if self.epsilon is None else f"ε {self.epsilon:.3g}"

    @property
    def score_line(self) -> str:
        """The scores in a line; empty where it was not evaluated."""
        return self.metric.line(self.evaluation["scores"]) if self.evaluation else ""


class Callback:
    """An observer of a training. A user's logger is one, and overrides the methods it needs."""

    def on_begin(self, training: Training) -> None:
        """Hear that the training begins, or goes on after `training.round` rounds."""

    def after_round(self, training: Training, progress: Progress) -> None:
        """Hear of a round that is over, in the order in which the callbacks are listed."""

    def on_stop(self, training: Training) -> None:
        """Hear that the training ends after this round because it was asked to."""

    def on_end(self, training: Training) -> None:
        """Hear that nothing more comes: it is trained and evaluated, stopped or failed."""


@dataclass
class Watch:
    """The line between a run and the outside, which hears its messages and can stop it."""

    on_message: Callable[[str], None] = lambda text: None
    stop: bool = field(default=False)
    """Set to end the run after the current round, with a checkpoint."""


class RoundResult(NamedTuple):
    """The outcome of a round."""

    state: State
    losses: Tensor
    """(client, local step)."""
    cohort: Cohort
    bytes_sent: int = 0
    """To the clients, and as many from them."""


@dataclass
class Training:
    """A training under way."""

    computation: Computation
    round: int
    """The rounds behind it."""
    state: State
    table: StepTable
    folder: RunFolder | None = None
    watch: Watch = field(default_factory=Watch)
    callbacks: Sequence[Callback] = ()
    metrics: list[dict[str, Any]] = field(default_factory=list)
    release: Callable[[], None] = torch.cuda.empty_cache
    """Gives back the memory of whatever computes the rounds."""
    round_started: float = 0.0
    runs_together: int = 1
    """The runs that went through the last round together, and share its time."""
    ends_early: bool = False
    """Set by a callback to make the current round the last, with its checkpoint and the final evaluation."""

    @property
    def config(self) -> Config:
        return self.computation.config

    @property
    def ended(self) -> bool:
        return self.ends_early or self.round >= self.config.rounds

    def delivered(self, which: Delivered | None = None) -> tuple[dict[str, Tensor], StepTable]:
        """Return the weights that are evaluated and shipped (or the others), and the step sizes that belong to them."""
        average = (which or self.config.server.deliver) == "average"
        w = self.state.average if average else self.state.w
        return w, trained_table(self.table, w, self.state.log_steps.by_site())

    def advance(self, result: RoundResult) -> None:
        """Take the result of a round: check it, and tell whoever follows."""
        # The losses are the clients' own: with privacy nobody looks at them, and a delta that is not finite counts as 0.
        loss = math.nan if self.config.privacy.private else mean_loss(result.losses, result.cohort, self._advice)
        self.round, self.state = self.round + 1, result.state
        due = self.round % self.config.checkpoint_every == 0 or self.config.evaluation.due(self.round)
        if due or self.ended or self.watch.stop:
            check_finite(self.state, self.round, self._advice)
        progress = Progress(self.round, self.config.rounds, loss, bytes_down=result.bytes_sent, bytes_up=result.bytes_sent,
                            metric=meaning(self.computation.task.metric))
        for callback in self.callbacks:
            callback.after_round(self, progress)
        self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        agree = self.computation.engine.agree
        if agree(self.watch.stop, self.round) and not self.ended:
            for callback in self.callbacks:
                callback.on_stop(self)
            agree(True, self.round)
            raise Interrupted(self.stopped())

    def stopped(self) -> str:
        """Say where the training stopped, and how it goes on."""
        then = f"; continue with: {resume_with(self.folder.path)}" if self.folder else ""
        return f"stopped after round {self.round}{then}"

    def _advice(self) -> str:
        return f"{what_to_lower(self.config)}{self.last_good()}"

    def last_good(self) -> str:
        """Name the newest checkpoint, if there is one, to end an error message with."""
        checkpoints = self.folder.checkpoints() if self.folder else []
        return f"; the last good checkpoint is {checkpoints[-1]}" if checkpoints else ""
