"""Training the runs of a sweep: group by group, each run from its own newest checkpoint."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal

import torch

from anybit.config import Config
from anybit.data.examples import Data
from anybit.engines.stacked import Stacked
from anybit.errors import AnybitError, Interrupted
from anybit.sweeps.lockstep import program_key, train_side_by_side
from anybit.sweeps.plan import PlannedRun, SweepFolder, groups
from anybit.training.build import Components, build_task
from anybit.training.callbacks import EachRound
from anybit.training.course import Callback, Progress, Training, Watch
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing, pick_device
from anybit.training.opening import OpenRun, open_run
from anybit.training.task import Task, Trained

State = Literal["waiting", "running", "done", "failed"]


@dataclass
class SweepWatch:
    """The line between a sweep and the outside. The first argument of the callbacks is the run's name."""

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


@dataclass(frozen=True)
class GroupRun:
    """A run of a group: opened, with the line to the outside."""

    name: str
    opened: OpenRun
    watch: Watch
    callbacks: tuple[Callback, ...] = ()

    def begin(self) -> Training:
        """Begin from the newest checkpoint."""
        return begin(self.opened.computation, self.opened.folder, True, self.watch, self.callbacks)


Outcome = tuple[str, Trained | Exception]
"""(a run's name, its result, or what kept it from its end)."""


def train_group(runs: Sequence[GroupRun]) -> Iterator[Outcome]:
    """Train runs of one group, each from its own newest checkpoint, and give each as it ends.

    With the stacked engine, runs of the same operations go side by side in one program. An error that kept a run
    from its end stands in the place of its result, so that the others go on.
    """
    programs: dict[str, list[GroupRun]] = {}
    for run in runs:
        stacked = isinstance(run.opened.computation.engine, Stacked)
        programs.setdefault(program_key(run.opened.config) if stacked else run.name, []).append(run)
    for together in programs.values():
        if any(run.watch.stop for run in together):
            yield from ((run.name, Interrupted("not started")) for run in together)
        elif len(together) == 1:
            yield _alone(together[0])
        else:
            with computing(together[0].opened.config):
                yield from _side_by_side(together)


def _alone(run: GroupRun) -> Outcome:
    try:
        with computing(run.opened.config):
            training = run.begin()
            return run.name, train(training, Simulation(training))
    except Exception as error:  # of whatever kind: one run must not take the others with it
        return run.name, error


def _side_by_side(runs: Sequence[GroupRun]) -> Iterator[Outcome]:
    """Train runs in one program; in two of half the size if they do not fit into the GPU's memory."""
    begun: dict[str, Training] = {}
    for run in runs:
        try:
            begun[run.name] = run.begin()
        except Exception as error:
            yield run.name, error
    ended = set[str]()
    try:
        for name, outcome in train_side_by_side(begun):
            ended.add(name)
            yield name, outcome
    except torch.OutOfMemoryError:
        next(iter(begun.values())).release()
        going = [run for run in runs if run.name in begun and run.name not in ended]
        half = len(going) // 2
        for part in filter(None, (going[:half], going[half:])):
            yield from _side_by_side(part) if len(part) > 1 else [_alone(part[0])]


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
    """The runs of one group while they are trained: one copy of the data, and one wish to stop."""

    def __init__(self, sweep: SweepFolder, watch: SweepWatch, trusted: Collection[str]) -> None:
        self.sweep, self.watch, self.trusted = sweep, watch, trusted
        self.watches: list[Watch] = []
        self.data: Data | None = None
        self.failed: dict[str, str] = {}

    def train(self, runs: Sequence[PlannedRun]) -> dict[str, str]:
        with ExitStack() as held:
            ready = []
            for run in runs:
                try:
                    ready.append(self._opened(run, held))
                except Exception as error:
                    self._fail(run.name, error)
            for name, outcome in train_group(ready):
                if isinstance(outcome, Interrupted):
                    self.watch.on_state(name, "waiting", str(outcome))
                elif isinstance(outcome, Exception):
                    self._fail(name, outcome)
                else:
                    self.watch.on_state(name, "done", "")
        return self.failed

    def _opened(self, planned: PlannedRun, held: ExitStack) -> GroupRun:
        """Open a run as it was left, or a new one.

        An earlier process may have been killed between any two of these lines.
        """
        opened = open_run(self.sweep.run_path(planned), planned.config, self._task, resume=True, same=False,
                          trusted=self.trusted, say=functools.partial(self.watch.on_message, planned.name))
        assert opened.folder is not None
        held.enter_context(opened.folder.locked())
        watch = Watch(functools.partial(self.watch.on_message, planned.name))
        self.watches.append(watch)
        return GroupRun(planned.name, opened, watch, (EachRound(functools.partial(self._after_round, planned.name)),))

    def _task(self, config: Config) -> Task:
        return build_task(config, self.trusted, self._data(config))

    def _data(self, config: Config) -> Data:
        """Read the data of the whole group and bring them to the device, once."""
        if self.data is None:
            self.data = Components(config, self.trusted).build_data().to(pick_device(config.device))
        return self.data

    def _after_round(self, name: str, progress: Progress) -> None:
        self.watch.on_round(name, progress)
        if self.watch.over:
            for watch in self.watches:
                watch.stop = True

    def _fail(self, name: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, AnybitError) else f"{type(error).__name__}: {error}"
        self.failed[name] = reason.partition("\n")[0]
        self.watch.on_state(name, "failed", self.failed[name])
