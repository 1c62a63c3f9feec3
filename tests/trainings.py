"""Trainings without a recipe and without a run folder of their own, as tests want them."""

from __future__ import annotations

from collections.abc import Sequence

from anybit.config import Config
from anybit.training.computation import open_computation
from anybit.training.course import Callback, Training, Watch
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task, Trained


def begun(task: Task, config: Config, folder: RunFolder | None = None, resume: bool = False, watch: Watch | None = None,
          callbacks: Sequence[Callback] = ()) -> Training:
    """Begin a training, from round 0 or from the folder's newest checkpoint."""
    with computing(config):
        return begin(open_computation(task, config), folder, resume, watch, callbacks)


def to_end(training: Training) -> Trained:
    """Train what is left."""
    with computing(training.config):
        return train(training, Simulation(training))


def trained(task: Task, config: Config, folder: RunFolder | None = None, resume: bool = False, watch: Watch | None = None,
            callbacks: Sequence[Callback] = ()) -> Trained:
    """Begin and train to the end."""
    return to_end(begun(task, config, folder, resume, watch, callbacks))
