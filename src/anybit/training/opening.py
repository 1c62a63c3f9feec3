"""Opening a run: one way for `fit`, the command line, sweeps and the fleet's server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anybit.config import OBJECT, Config, chosen
from anybit.config.compare import compared
from anybit.environment import environment
from anybit.errors import RunError
from anybit.schema import plain
from anybit.training.build import settled
from anybit.training.computation import Computation, open_computation
from anybit.training.engine_choice import with_engine
from anybit.training.extension import check_start, extend, extended
from anybit.training.follower import Follower
from anybit.training.identity import check_identity, identity, identity_of_data
from anybit.training.machine import computing
from anybit.training.run_folder import RunFolder
from anybit.training.suspicions import warn_of_leftovers, warn_of_probabilities, warn_of_scale, warn_of_unused
from anybit.training.task import Task


@dataclass(frozen=True)
class OpenRun:
    """A run that is ready to be trained: settled, checked, with a folder (or without, where nothing is kept)."""

    computation: Computation
    folder: RunFolder | None
    resumed: bool

    @property
    def config(self) -> Config:
        return self.computation.config

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, and the process's settings as the run wants them, while it is trained; then end the engine."""
        held = self.folder.locked() if self.folder else nullcontext()
        with held, computing(self.config), closing(self.computation.engine):
            yield


def open_run(path: Path | None, config: Config | None, make_task: Callable[[Config], Task], *, resume: bool = False,
             rounds: int | None = None, trusted: Collection[str] = (), say: Callable[[str], None] = lambda text: None,
             warn: Callable[[str], None] | None = None, same: bool = True,
             compute: Callable[[Task, Config], Computation] = open_computation) -> OpenRun:
    """Open the run at `path`: with `resume` the one that is there, if there is one, else a new one by `config`.

    config: none where only a run that is there can be meant · rounds: of such a run, if more than it has, it is extended ·
    same: whether such a run must have this config · say: hears which engine was chosen · warn: hears of what is not as it
    should be, as `say` does unless given · compute: what the run computes with. A run that cannot start leaves no folder.
    """
    if resume and path is not None and (path / "config.json").exists():
        folder = RunFolder.open(path)
        stored = folder.stored_config()
        task = make_task(stored)
        _check_identity(folder, stored, task)
        if same and config is not None:
            _check_same(folder, stored, config if rounds is None else replace(config, rounds=stored.rounds), task, trusted)
        longer = None
        if rounds is not None and rounds != stored.rounds:
            longer, last = extended(folder, chosen(stored, task.variant.choices), rounds, task.schedule)
        with computing(stored):
            computation = compute(replace(task, split=folder.split()), longer or stored)
        if longer and computation.engine.leads:
            check_start(folder, last)
            extend(folder, longer.rounds, last)
            (warn or say)(f"{path} goes on from round {last}, to {longer.rounds} rounds instead of {stored.rounds}")
        return OpenRun(computation, folder if computation.engine.leads else Follower(path), True)
    if config is None:
        raise RunError(f"{path} is not a run: it has no config.json")
    task = make_task(config)
    config = settled(with_engine(config, task, say), trusted)
    described = {} if path is None else _identity(config, task)
    with computing(config):
        computation = compute(task, config)
        warn_of_scale(computation.task, computation.config)
        warn_of_probabilities(computation.task, computation.config)
        warn_of_unused(computation.task, computation.config)
        warn_of_leftovers(computation.task, computation.config)
        return OpenRun(computation, _new_folder(path, computation, task, described), False)


def _new_folder(path: Path | None, computation: Computation, task: Task, described: dict[str, Any]) -> RunFolder | None:
    if path is None:
        return None
    if not computation.engine.leads:
        return Follower(path)
    return RunFolder.create(path, plain(computation.config), environment(), task.split, described)


def _identity(config: Config, task: Task) -> dict[str, Any]:
    """Describe what a config does not: of named parts the data alone, which may be another version of themselves."""
    return identity(task) if config.model.name == OBJECT else identity_of_data(task.data)


def _check_identity(folder: RunFolder, config: Config, task: Task) -> None:
    stored = folder.task()
    if stored is not None:  # earlier versions recorded none, which opening the folder warned of
        check_identity(folder.path, stored, _identity(config, task))


def _check_same(folder: RunFolder, stored: Config, config: Config, task: Task, trusted: Collection[str]) -> None:
    """Raise unless a run's stored config is `config`, whose open choices it has settled."""
    if not stored.server.warmup:  # as in all runs of earlier versions
        config = replace(config, server=replace(config.server, warmup=config.server.warmup or 0))
    config = replace(config, client=replace(config.client, batches=config.client.batches or stored.client.batches))
    stored, config = (chosen(each, task.variant.choices) for each in (stored, config))
    config = replace(config, cohort=config.cohort or stored.cohort,
                     fleet=replace(config.fleet, minimum=config.fleet.minimum or stored.fleet.minimum))
    if config.sites.one_sided is None:
        config = replace(config, sites=replace(config.sites, one_sided=stored.sites.one_sided))
    if folder.task() is None:  # such a run said nothing of its own loss and metric
        config = replace(config, loss=stored.loss, metric=stored.metric)
    taken: dict[str, Any] = {name: getattr(stored, name) for name, open_choice in
                             (("engine", "auto"), ("device", "auto"), ("threads", None))
                             if getattr(config, name) == open_choice}
    compute = replace(config.compute, convolution=config.compute.convolution or stored.compute.convolution)
    now = settled(replace(config, compute=compute, **taken), trusted)
    for key, (was, new) in compared([plain(settled(stored, trusted)), plain(now)]).items():
        if was != new:
            raise RunError(f"{folder.path} holds a run with another config ({key} was {was}, now {new}): start a new one in "
                           "another folder")
