"""The choice of an engine: a few local steps of the real task in every candidate, measured once and remembered.

Candidates are engines × threads × convolution backends. The result is kept in <data home>/calibration.json by what it
depends on (processor, cores, torch, the model's shapes, batch and cohort size), and in the config of the run, so that a
resume computes the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from anybit.config import Config, Convolution, EngineName
from anybit.data.on_demand import OnDemand
from anybit.engines.ranks import world
from anybit.environment import cores, environment
from anybit.errors import AnybitError, ConfigError
from anybit.federated.algorithm import client_update
from anybit.federated.cohort import Cohort, build_cohort, sample_clients
from anybit.federated.state import Trainable, trainable_weights
from anybit.files.reading import read_json
from anybit.files.writing import home, write_json
from anybit.inputs import shapes
from anybit.kernels.native import library
from anybit.quant.checks import check_initialized
from anybit.quant.ranges import StepTable
from anybit.quant.sites import quantizers
from anybit.training.checks import check_numbers, check_ranges
from anybit.training.computation import open_computation
from anybit.training.machine import computing, pick_device
from anybit.training.passes import unmapped
from anybit.training.task import Task

SWITCH = "ANYBIT_CALIBRATION"
"""Set to "off" to never measure: auto is then the sequential engine."""
FILE = "calibration.json"
SHORT_RUN = 30.0
"""Seconds of training below which measuring does not pay."""
BUDGET = 8.0
"""Seconds after which no further candidate is tried."""
_LOCAL_STEPS = 2
_SHORT, _LONG = 1.0, 10.0
"""Seconds of a first pass, which also pays for what is made once, up to which it is followed by two that count, by one."""
_TELLING, _MOST = 0.2, 0.8
"""Seconds from which on a share of the processor tells something; the share below which the machine is busy."""
_CLEARLY = 0.9
"""Another engine than the sequential one must be this much faster: it is the simplest and needs the least memory."""


@dataclass(frozen=True)
class Candidate:
    """One way to compute a round."""

    engine: EngineName
    threads: int
    convolution: Convolution

    def apply(self, config: Config) -> Config:
        compute = replace(config.compute, convolution=self.convolution)
        return replace(config, engine=self.engine, threads=self.threads, compute=compute)

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        return f"{self.engine} engine, {threads}, {self.convolution} convolutions"


@dataclass(frozen=True)
class Measured:
    """A candidate and the seconds that a round takes with it."""

    candidate: Candidate
    seconds: float


def with_engine(config: Config, task: Task, say: Callable[[str], None] = lambda text: None) -> Config:
    """Return the config with its engine chosen, where it leaves the choice open and measuring pays."""
    on_demand = isinstance(task.data.train, OnDemand)
    if on_demand and config.engine == "stacked":
        raise ConfigError("engine = 'stacked' needs all clients in memory, and some are functions that load them: use "
                          "engine=sequential or processes")
    if config.engine == "auto" and pick_device(config.device).type != "cpu" and (
            reason := "some are functions that load them" if on_demand else unmapped(task, config)):
        say(f"clients are computed one after another, which is slow on a GPU; together they cannot be computed: {reason}")
        return replace(config, engine="sequential")
    open_choice = config.engine == "auto" and config.compute.convolution is None
    if not open_choice or pick_device(config.device).type != "cpu" or world() > 1 or os.environ.get(SWITCH) == "off":
        return config
    check_initialized(task.model)  # an error need not wait for a measurement
    check_ranges(config, task.variant)
    check_numbers(task, config)
    key = _key(config, task)
    known = _remembered().get(key)
    chosen = _read(known) if known else None
    if chosen and chosen.candidate.convolution == "native" and not _has_native(task.model):
        chosen = None
    if chosen is None:
        with _Load() as load:
            first = next(iter(measure(config, task, quick=True)), None)
        if first is None or first.seconds * config.rounds < SHORT_RUN:
            return config
        table = list(measure(config, task))
        chosen = best(table)
        others = f" ({table[0].seconds / chosen.seconds:.1f}× the default)"
        if load.busy:
            others += "; the machine is busy, so the next run measures again"
        else:
            _remember(key, chosen)
    else:
        others = " (measured before)"
    say(f"chosen for this machine: {chosen.candidate}, about {chosen.seconds:.2g} s a round{others}")
    return chosen.candidate.apply(config)


class _Load:
    """Tell if others had the processor while this thread computed: what is measured then is theirs, too."""

    busy = False

    def __enter__(self) -> _Load:
        self._before = time.perf_counter(), time.thread_time()
        return self

    def __exit__(self, *raised: object) -> None:
        waited, computed = time.perf_counter() - self._before[0], time.thread_time() - self._before[1]
        self.busy = waited > _TELLING and computed < _MOST * waited


def best(table: list[Measured]) -> Measured:
    """Return the fastest; a sequential one unless another is clearly faster."""
    simple = min((m for m in table if m.candidate.engine == "sequential"), key=lambda m: m.seconds)
    fastest = min(table, key=lambda m: m.seconds)
    return fastest if fastest.seconds < _CLEARLY * simple.seconds else simple


def measure(config: Config, task: Task, budget: float = BUDGET, quick: bool = False) -> Iterator[Measured]:
    """Measure the seconds per round of each candidate, the default first; with `quick` that one alone."""
    native = not quick and _has_native(task.model)
    started, table = time.perf_counter(), list[Measured]()
    stacked, together = not isinstance(task.data.train, OnDemand), config.places(len(task.split)) > 1
    for candidate in _candidates(task.model, table, cores() if together else 1, native, stacked):
        if table and (quick or time.perf_counter() - started > budget):
            break
        if config.threads is not None:
            candidate = replace(candidate, threads=config.threads)
        if any(m.candidate == candidate for m in table):
            continue
        if candidate.engine == "stacked" and unmapped(task, config):
            continue
        table.append(Measured(candidate, round_seconds(config, task, candidate)))
        yield table[-1]


def _has_convolutions(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Conv2d) for m in model.modules())


def _has_native(model: nn.Module) -> bool:
    """Tell if the model can use the native kernels; they are compiled now, outside any measured round."""
    if not _has_convolutions(model):
        return False
    try:
        library()
    except ConfigError:
        return False
    return True


def _candidates(model: nn.Module, table: list[Measured], many: int, native: bool, stacked: bool) -> Iterator[Candidate]:
    """List convolutions first, on one thread; then every other engine with the best of them."""
    yield Candidate("sequential", 1, "default")
    if native:
        yield Candidate("sequential", 1, "native")
    if _has_convolutions(model):
        yield Candidate("sequential", 1, "channels-last")
        yield Candidate("sequential", 1, "no-onednn")
    kernels = min(table, key=lambda m: m.seconds).candidate.convolution
    if many > 1:
        yield Candidate("processes", 1, kernels)
        yield Candidate("sequential", many, kernels)
    if stacked:
        yield Candidate("stacked", 1, "no-onednn" if kernels == "no-onednn" else "default")


def round_seconds(config: Config, task: Task, candidate: Candidate) -> float:
    """Return the time of a few local steps of a few clients, per image, times the images of a round."""
    quiet = candidate.apply(replace(config, ranges=replace(config.ranges, learned=False), device="cpu"))
    cohort = _probe(config, task, {"sequential": 1, "processes": cores()}.get(candidate.engine, 4))
    with computing(quiet):
        computation = open_computation(task, quiet)
        w, table = Trainable(trainable_weights(task.model)), _some_steps(computation.evaluator.plain)
        step, given = computation.client_step(table), computation.given(table)

        def once() -> float:
            before = time.perf_counter()
            for _ in computation.engine.map_clients(client_update, step, w, given, cohort):
                pass
            return time.perf_counter() - before

        try:
            first = once()
            seconds = first if first > _LONG else min(once() for _ in range(1 if first > _SHORT else 2))
        finally:
            computation.engine.close()
    mean = sum(len(index) for index in task.split) / len(task.split)
    return seconds / float(cohort.counts.sum()) * mean * config.client.passes(mean) * min(config.places(), len(task.split))


def _probe(config: Config, task: Task, size: int) -> Cohort:
    """Take the first local steps of the largest clients of the first cohort: full batches, if there are any."""
    clients = sample_clients(config.seed, 0, len(task.split), min(config.places(), len(task.split)))
    largest = sorted(clients, key=lambda c: -len(task.split[c]))[:size]
    widths = task.variant.widths_of(config.seed, 0, largest)
    cohort = build_cohort(config.seed, 0, largest, widths, task.split, config.client, task.variant.step_widths)
    return replace(cohort, index=cohort.index[:, :_LOCAL_STEPS], rows=cohort.rows[:, :_LOCAL_STEPS])


def _some_steps(prepared: nn.Module) -> StepTable:
    """Make step sizes that are likely: what is measured is time."""
    return StepTable({name: torch.full((7,), 0.05) for name in quantizers(prepared)})


def _key(config: Config, task: Task) -> str:
    """Digest everything that a measurement depends on."""
    facts = environment()
    about = {"cpu": facts["cpu"], "cores": cores(), "torch": facts["torch"],
             "anybit": facts["anybit"], "model": [(n, list(p.shape)) for n, p in task.model.named_parameters()],
             "layers": [type(m).__name__ for m in task.model.modules()], "input": shapes(task.data.train.x),
             "batch": config.client.batch_size, "cohort": config.places(len(task.split)),
             "variant": [task.variant.name, task.variant.sites],
             **({"on_demand": True} if isinstance(task.data.train, OnDemand) else {})}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _remembered() -> Mapping[str, Any]:
    """Read the cache; a damaged one counts as empty and is written anew."""
    try:
        remembered = read_json(home() / FILE)
    except (AnybitError, OSError, ValueError):
        return {}
    return remembered if isinstance(remembered, dict) else {}


def _read(entry: Any) -> Measured | None:
    try:
        candidate = Candidate(str(entry["engine"]), int(entry["threads"]), str(entry["convolution"]))  # type: ignore[arg-type]
        candidate.apply(Config())
        return Measured(candidate, float(entry["seconds"]))
    except (AnybitError, KeyError, TypeError, ValueError):
        return None


def _remember(key: str, chosen: Measured) -> None:
    """Keep a measurement if the folder can be written; a run does not fail for it."""
    entry = {**asdict(chosen.candidate), "seconds": chosen.seconds}
    try:
        home().mkdir(parents=True, exist_ok=True)
        write_json(home() / FILE, {**_remembered(), key: entry})
    except OSError:
        return


def example_task(model: nn.Module, clients: int = 10, images: int = 500) -> Task:
    """Make a task of random images of CIFAR's shape: work of a known size."""
    from anybit.data.examples import Data, Examples
    from anybit.federated.variants import mqat

    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(clients * images, 3, 32, 32)).astype(np.float32))
    examples = Examples(x, torch.from_numpy(draw.integers(10, size=clients * images)))
    return Task(model, mqat(), Data(examples, Examples(x[:16], examples.y[:16])),
                np.split(np.arange(clients * images), clients))
