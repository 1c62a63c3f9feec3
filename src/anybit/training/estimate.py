"""What a run will take, before it is trained: time, memory, traffic and work."""

from __future__ import annotations

import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anybit.federated.state import trainable_weights
from anybit.training.computation import Computation
from anybit.training.engine_choice import Candidate, round_seconds

_FORWARD = 1 / 3
"""Of a local step's time: an evaluation has no backward pass, which takes about twice as long as the forward pass."""


@dataclass(frozen=True)
class Estimate:
    """The work of a run, counted in images through the model, and what it takes here."""

    parameters: int
    clients: int
    training_images: int
    evaluation_images: int
    local_steps: int
    bytes_down: int
    """Sent to clients in the whole run: float weights × cohort × rounds."""
    bytes_up: int
    seconds: float | None
    """From a few local steps that were measured; none: not on a CPU."""
    memory: int
    """The most that this process has held: with the data, and the tensors of a few local steps."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Say it in five lines."""
        work = f"{self.training_images:,} images in {self.local_steps:,} local steps, {self.evaluation_images:,} to evaluate"
        return [f"model    {self.parameters:,} parameters, {self.clients:,} clients",
                f"time     {'unknown on a GPU' if self.seconds is None else 'about ' + _time(self.seconds)}",
                f"memory   about {_size(self.memory)} on this machine",
                f"traffic  {_size(self.bytes_down)} to the clients and {_size(self.bytes_up)} back",
                f"work     {work}"]


def estimate(computation: Computation) -> Estimate:
    """Estimate a run whose config leaves nothing open, from a few local steps of its largest clients."""
    config, task, evaluator = computation.config, computation.task, computation.evaluator
    mean = sum(len(index) for index in task.split) / len(task.split)
    clients, evaluations = config.rounds * config.places(len(task.split)), config.rounds // config.evaluation.every + 1
    epochs = clients * config.client.passes(mean)
    passes = evaluations * len(evaluator.own_widths) + len(evaluator.grid_rules()) * len(evaluator.grid_widths())
    training, evaluating = epochs * mean, passes * len(task.data.test)
    seconds = None
    if config.device == "cpu" and config.engine != "auto":
        candidate = Candidate(config.engine, config.threads or 1, config.compute.convolution or "default")
        rounds = round_seconds(config, task, candidate) * config.rounds
        seconds = rounds * (1 + _FORWARD * evaluating / training)
    sent = sum(p.numel() * p.element_size() for p in trainable_weights(task.model).values()) * clients
    return Estimate(sum(p.numel() for p in task.model.parameters()), len(task.split), round(training), evaluating,
                    round(epochs * -(-mean // config.client.batch_size)), sent, sent, seconds, _most_memory())


def _most_memory() -> int:
    """Return the largest resident size of this program; getrusage alone would count that of the one which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
