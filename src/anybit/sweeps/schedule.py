"""How the runs of a sweep are trained: group by group, each run from its own newest checkpoint."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from anybit.api import Run
from anybit.config import Config
from anybit.data.examples import Data
from anybit.engines.stacked import Stacked
from anybit.environment import environment
from anybit.errors import AnybitError, Interrupted
from anybit.files.schema import plain
from anybit.sweeps.lockstep import Outcome, program_key, train_side_by_side
from anybit.sweeps.plan import PlannedRun, SweepFolder, groups
from anybit.training.build import build_data, build_task, settled
from anybit.training.engine_choice import calibrated
from anybit.training.loop import Training
from anybit.training.machine import convolution, pick_device
from anybit.training.run_folder import RunFolder
from anybit.training.task import Progress, Trained, Watch

State = Literal["waiting", "running", "done", "failed"]


@dataclass
class SweepWatch:
    """How the outside follows and stops a sweep. The first argument of the callbacks is the run's name."""

    on_state: Callable[[str, State, str], None] = lambda name, state, reason: None
    on_round: Callable[[str, Progress], None] = lambda name, progress: None
    on_message: Callable[[str, str], None] = lambda name, text: None
    deadline: float | None = None
    """By time.monotonic: when to stop, with a checkpoint."""
    stop: bool = field(default=False)
    """Set to end the sweep after the current round, with a checkpoint."""

    @property
    def over(self) -> bool:
        return self.stop or (self.deadline is not None and time.monotonic() >= self.deadline)


def train_group(trainings: Sequence[Training]) -> Iterator[Outcome]:
    """Train runs of one group, each from its own newest checkpoint, and give each as it ends.

    With the stacked engine, runs of the same operations go side by side in one program. What kept a run from its end
    stands in the place of its result, so that the others go on.
    """
    programs: dict[str, list[Training]] = {}
    for number, training in enumerate(trainings):
        key = program_key(training.config) if isinstance(training.engine, Stacked) else str(number)
        programs.setdefault(key, []).append(training)
    for together in programs.values():
        if any(training.watch.stop for training in together):
            yield from ((training, Interrupted("not started")) for training in together)
        elif len(together) == 1:
            yield together[0], _alone(together[0])
        else:
            with convolution(together[0].config.compute.convolution):
                yield from _side_by_side(together)


def _alone(training: Training) -> Trained | Exception:
    try:
        return training.train(resume=True)
    except Exception as error:  # of whatever kind: one run must not take the others with it
        return error


def _side_by_side(trainings: Sequence[Training]) -> Iterator[Outcome]:
    """In one program; in two of half the size if they do not fit into the GPU's memory."""
    begun = []
    for training in trainings:
        try:
            training.begin(resume=True)
            begun.append(training)
        except Exception as error:
            yield training, error
    going = list(begun)
    try:
        for training, outcome in train_side_by_side(begun):
            going.remove(training)
            yield training, outcome
    except torch.OutOfMemoryError:
        begun[0].release()
        half = len(going) // 2
        for part in filter(None, (going[:half], going[half:])):
            yield from _side_by_side(part) if len(part) > 1 else [(part[0], _alone(part[0]))]


def train_sweep(sweep: SweepFolder, watch: SweepWatch, trusted: Collection[str] = ()) -> dict[str, str]:
    """Train every run that is not finished; {name: reason} of those that failed. Calling again retries them."""
    failed: dict[str, str] = {}
    with sweep.locked():
        sweep.tidy()
        for group in groups(sweep.unfinished()):
            if watch.over:
                break
            failed |= _Group(sweep, watch, trusted).train(group)
    return failed


class _Group:
    """The runs of one group while they are trained: one copy of the data, and one will to stop."""

    def __init__(self, sweep: SweepFolder, watch: SweepWatch, trusted: Collection[str]) -> None:
        self.sweep, self.watch, self.trusted = sweep, watch, trusted
        self.watches: list[Watch] = []
        self.data: Data | None = None
        self.failed: dict[str, str] = {}

    def train(self, runs: Sequence[PlannedRun]) -> dict[str, str]:
        with ExitStack() as held:
            names: dict[Training, str] = {}
            for run in runs:
                try:
                    names[self._training(run, held)] = run.name
                except Exception as error:
                    self._fail(run.name, error)
            for training, outcome in train_group(list(names)):
                name = names[training]
                if isinstance(outcome, Interrupted):
                    self.watch.on_state(name, "waiting", str(outcome))
                elif isinstance(outcome, Exception):
                    self._fail(name, outcome)
                else:
                    self.watch.on_state(name, "done", "")
        return self.failed

    def _training(self, run: PlannedRun, held: ExitStack) -> Training:
        """A run as it was left, or a new one; one that cannot start leaves no folder.

        An earlier process may have been killed between any two of these lines.
        """
        folder = RunFolder(self.sweep.run_path(run))
        begun = folder.file("config.json").exists()
        config = Run.load(folder.path).config if begun else run.config
        task = build_task(config, self.trusted, self._data(config))
        if begun:
            task = replace(task, split=folder.split())
        else:
            say = functools.partial(self.watch.on_message, run.name)
            config = settled(calibrated(config, task, say), self.trusted)
        training = Training(task, config, self._watch(run.name), folder)
        if not begun:
            RunFolder.create(folder.path, plain(config), environment(), task.split)
        held.enter_context(folder.locked())
        return training

    def _data(self, config: Config) -> Data:
        """The data of the whole group, read and brought to the device once."""
        if self.data is None:
            self.data = build_data(config, self.trusted).to(pick_device(config.device))
        return self.data

    def _watch(self, name: str) -> Watch:
        def on_round(progress: Progress) -> None:
            self.watch.on_round(name, progress)
            if self.watch.over:
                for each in self.watches:
                    each.stop = True

        self.watches.append(Watch(on_round=on_round, on_message=functools.partial(self.watch.on_message, name)))
        return self.watches[-1]

    def _fail(self, name: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, AnybitError) else f"{type(error).__name__}: {error}"
        self.failed[name] = reason.partition("\n")[0]
        self.watch.on_state(name, "failed", self.failed[name])
