"""Worker processes: the same bytes as the sequential engine, and a clear end when something goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.config import ComputeOptions, Config
from anybit.engines import processes
from anybit.engines.processes import Processes, _Queue
from anybit.errors import ConfigError, EngineError
from anybit.training.callbacks import EachRound
from anybit.training.course import Progress, Training
from anybit.training.machine import open_engine
from anybit.training.run_folder import RunFolder
from tests.parity.test_engines import training
from tests.trainings import begun, to_end

Arrays = tuple[np.ndarray, np.ndarray]


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether the process ends in time; a zombie that nobody collects has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def fitted(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, engine: str) -> tuple[list[Tensor], list[object]]:
    result = anybit.fit(mlp, clients, held_out, anybit.mqat(), rounds=3, cohort=5, engine=engine,  # type: ignore[arg-type]
                        client=anybit.ClientOptions(batch_size=7, epochs=2))
    return [p.detach() for p in result.model.parameters()], [m["loss"] for m in result.metrics]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("memory", [0, 1 << 28])
def test_bytes_do_not_depend_on_the_number_of_workers(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, workers: int,
                                                      memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with room for a few results only."""
    monkeypatch.setattr(processes, "RESULT_BYTES", memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(workers)))
    w, losses = fitted(mlp, clients, held_out, "processes")
    reference, expected = fitted(mlp, clients, held_out, "sequential")
    assert losses == expected
    assert all(torch.equal(a, b) for a, b in zip(w, reference, strict=True))


def test_the_longest_client_within_the_window_goes_first() -> None:
    queue = _Queue([1, 9, 4, 17, 5], places=3)
    assert queue.longest(0) == 1
    places = {queue.place(1), queue.place(2), queue.place(0)}
    assert len(places) == 3
    assert queue.longest(0) is None
    queue.release(0)
    assert queue.longest(1) == 3


def failing(run: Training) -> tuple[Training, list[int]]:
    """The training, and the pids of its workers once they run."""
    pids: list[int] = []
    engine = run.computation.engine
    assert isinstance(engine, Processes)
    run.callbacks = (*run.callbacks, EachRound(lambda progress: pids.extend(w.pid for w in engine._running)))
    return run, pids


def test_a_failing_client_is_named_with_round_and_step() -> None:
    run = training(anybit.baseline(), engine="processes", rounds=2, threads=1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 1 and outputs.requires_grad:
            raise ValueError("no such label")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    task = replace(run.computation.task, split=run.computation.task.split[3:], loss=loss)
    client = anybit.ClientOptions(batch_size=4, batches="full")
    alone = begun(task, Config(engine="processes", cohort=1, rounds=2, client=client))
    with pytest.raises(EngineError, match=r"^client 0 failed in round 1, local step 5: ValueError: no such label$"):
        to_end(alone)
    assert not alone.computation.engine._running  # type: ignore[attr-defined]


def test_an_error_of_anybit_stays_what_it_is(mlp: nn.Module, clients: list[Arrays], held_out: Arrays) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.requires_grad:
            raise ConfigError("a worker's own words")
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    with pytest.raises(ConfigError, match=r"^a worker's own words$"):
        anybit.fit(mlp, clients, held_out, loss=loss, rounds=1, cohort=2, engine="processes")


def test_a_killed_worker_ends_the_run_and_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    run, pids = failing(training(anybit.mqat(), engine="processes", rounds=9, checkpoint_every=1, threads=1))
    engine = run.computation.engine
    assert isinstance(engine, Processes)

    def kill(progress: Progress) -> None:
        if progress.round == 3:
            os.kill(engine._running[-1].pid, signal.SIGKILL)

    run.callbacks = (*run.callbacks, EachRound(kill))
    run.folder = folder = RunFolder.create(tmp_path / "run", {}, {})
    with pytest.raises(EngineError, match=r"was killed by SIGKILL .* in round 4.*; the last good checkpoint is .*000003"):
        to_end(run)
    assert folder.load_checkpoint(folder.checkpoints()[-1], torch.device("cpu")).round == 3
    assert all(gone(pid) for pid in set(pids))


def test_workers_end_with_the_training() -> None:
    run, pids = failing(training(anybit.mqat(), engine="processes", rounds=2, threads=1))
    to_end(run)
    assert len(set(pids)) >= 1
    assert all(gone(pid) for pid in set(pids))


THREADED = """
import torch, anybit, numpy as np
from torch import nn
torch.set_num_threads(2)
x = torch.randn(64, 8, 32, 32)
conv = nn.Conv2d(8, 16, 3)
for _ in range(3):
    conv(x).sum().backward()
    torch.randn(700, 700) @ torch.randn(700, 700)
draw = np.random.default_rng(0)
clients = [(draw.normal(size=(80, 3, 16, 16)).astype("float32"), draw.integers(4, size=80)) for _ in range(4)]
model = nn.Sequential(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 4))
anybit.fit(model, clients, clients[0], rounds=3, cohort=4, engine="processes")
assert torch.get_num_threads() == 2
print("done")
"""


def test_a_fork_after_openmp_threads_does_not_hang() -> None:
    done = subprocess.run([sys.executable, "-c", THREADED], capture_output=True, text=True, timeout=240, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.stdout.strip() == "done", done.stderr


def test_convolution_backends_compute_the_same() -> None:
    reference = to_end(training(anybit.mqat(sites="WA"), rounds=2, threads=1)).w
    for name in ("default", "channels-last", "no-onednn"):
        run = training(anybit.mqat(sites="WA"), rounds=2, threads=1,
                       compute=ComputeOptions(convolution=name))  # type: ignore[arg-type]
        w = to_end(run).w
        assert all(torch.allclose(w[n], reference[n], atol=1e-9) for n in w), name
    assert torch._C._get_mkldnn_enabled()


def test_processes_are_for_a_cpu() -> None:
    with pytest.raises(ConfigError, match="engine = 'processes' computes on a CPU"):
        open_engine(Config(engine="processes"), torch.device("meta"), 1)


