"""Opening a run: one way for `fit`, the command line, sweeps and the fleet's server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anybit.config import Config, chosen
from anybit.environment import environment
from anybit.errors import RunError
from anybit.files.schema import plain
from anybit.training.build import settled
from anybit.training.computation import Computation, open_computation
from anybit.training.engine_choice import with_engine
from anybit.training.follower import Follower
from anybit.training.machine import computing
from anybit.training.run_folder import RunFolder
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
             trusted: Collection[str] = (), say: Callable[[str], None] = lambda text: None, same: bool = True,
             compute: Callable[[Task, Config], Computation] = open_computation) -> OpenRun:
    """Open the run at `path`: with `resume` the one that is there, if there is one, else a new one by `config`.

    config: none where only a run that is there can be meant · same: whether such a run must have this config · say: hears
    which engine was chosen · compute: what the run computes with. A run that cannot start leaves no folder.
    """
    if resume and path is not None and (path / "config.json").exists():
        folder = RunFolder.open(path)
        stored = folder.stored_config()
        task = replace(make_task(stored), split=folder.split())
        if same and config is not None:
            _check_same(path, stored, config, task, trusted)
        with computing(stored):
            computation = compute(task, stored)
        return OpenRun(computation, folder if computation.engine.leads else Follower(path), True)
    if config is None:
        raise RunError(f"{path} is not a run: it has no config.json")
    task = make_task(config)
    config = settled(with_engine(config, task, say), trusted)
    with computing(config):
        computation = compute(task, config)
        return OpenRun(computation, _new_folder(path, computation, task), False)


def _new_folder(path: Path | None, computation: Computation, task: Task) -> RunFolder | None:
    if path is None:
        return None
    if not computation.engine.leads:
        return Follower(path)
    return RunFolder.create(path, plain(computation.config), environment(), task.split)


def _check_same(path: Path, stored: Config, config: Config, task: Task, trusted: Collection[str]) -> None:
    """Raise unless a run's stored config is `config`, whose open choices it has settled."""
    stored, config = (chosen(each, task.variant.choices) for each in (stored, config))
    config = replace(config, cohort=config.cohort or stored.cohort)
    if config.sites.one_sided is None:
        config = replace(config, sites=replace(config.sites, one_sided=stored.sites.one_sided))
    taken: dict[str, Any] = {name: getattr(stored, name) for name, open_choice in
                             (("engine", "auto"), ("device", "auto"), ("threads", None))
                             if getattr(config, name) == open_choice}
    compute = replace(config.compute, convolution=config.compute.convolution or stored.compute.convolution)
    if plain(settled(replace(config, compute=compute, **taken), trusted)) != plain(settled(stored, trusted)):
        raise RunError(f"{path} holds a run with another config: start a new one in another folder")
