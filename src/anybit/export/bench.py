"""Load time, latency and peak memory of artifacts, relative to the float model in the same runtime."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anybit.errors import RunError
from anybit.export.extras import need
from anybit.export.subject import Subject
from anybit.export.verify import fed, session

BATCHES = (1, 32)
QUICK = 0.15
"""Seconds for which the latency of the table is measured."""


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call."""

    median: float
    p95: float


@dataclass(frozen=True)
class Cost:
    """The cost of one file on one thread."""

    load_ms: float
    batches: dict[str, Latency]
    """{batch size: latency}."""
    peak_mib: float
    """Resident memory of load and inference beyond that of the runtime without a model (Linux; else 0)."""


def latency(path: Path, subject: Subject, seconds: float = QUICK) -> Latency:
    """Measure the latency of one image at a time, in this process."""
    runner = session(path)
    return in_turns([_call(runner, fed(runner, next(subject.test_batches(1))))], seconds)[0]


def costs(paths: Sequence[Path], seconds: float = 1.5) -> dict[str, Cost]:
    """Return {file: cost}: load time and memory from a process per file, latencies from calls in turns."""
    loads = [_in_a_process(path) for path in paths]
    sessions = [session(path) for path in paths]
    batches: dict[str, list[Latency]] = {}
    for size in BATCHES:
        arrays = _arrays(sessions[0], size)
        batches[str(size)] = in_turns([_call(runner, arrays) for runner in sessions], seconds * len(paths))
    return {path.name: Cost(load, {size: latencies[i] for size, latencies in batches.items()}, peak)
            for i, (path, (load, peak)) in enumerate(zip(paths, loads, strict=True))}


def _call(runner: Any, arrays: dict[str, np.ndarray]) -> Callable[[], Any]:
    return functools.partial(runner.run, None, arrays)


def _arrays(runner: Any, size: int) -> dict[str, np.ndarray]:
    """Make inputs of the graph's shapes: normal floats, and zeros for whole numbers, which every vocabulary has."""
    draw, arrays = np.random.default_rng(0), dict[str, np.ndarray]()
    for wanted in runner.get_inputs():
        values = draw.normal(size=(size, *wanted.shape[1:]))
        kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
        arrays[wanted.name] = (values if wanted.type == "tensor(float)" else 0 * values).astype(kinds[wanted.type])
    return arrays


def in_turns(calls: Sequence[Callable[[], Any]], seconds: float = QUICK) -> list[Latency]:
    """Measure the latency of each call, in turns so that other load on the machine meets all calls alike."""
    times: list[list[float]] = [[] for _ in calls]
    order, end = np.random.default_rng(0), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 8:
        # A new order every time, because a model that runs after one like itself finds warm caches.
        for i in order.permutation(len(calls)):
            start = time.perf_counter()
            calls[i]()
            times[i].append(1e3 * (time.perf_counter() - start))
    return [Latency(*(float(np.percentile(spent[3:], share)) for share in (50, 95))) for spent in times]


def _in_a_process(path: Path) -> tuple[float, float]:
    """Measure (load time in ms, peak memory in MiB) in a fresh process, so that memory is this artifact's alone."""
    done = subprocess.run([sys.executable, "-m", "anybit.export.bench", str(path)], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise RunError(f"{path} cannot be measured ({(done.stderr.strip().splitlines() or ['no output'])[-1]})")
    load, peak = json.loads(done.stdout)
    return load, peak


def _status_mib(field: str) -> float:
    # ru_maxrss is inherited from the parent, so it will not do.
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(f"{field}:")) / 1024
    except OSError:
        return 0.0


def _load_and_run(path: Path) -> tuple[float, float]:
    need("onnxruntime")
    # The imports took more memory than they kept, so the high-water mark is reset.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before, start = _status_mib("VmRSS"), time.perf_counter()
    runner = session(path)
    load = 1e3 * (time.perf_counter() - start)
    for size in BATCHES:
        _call(runner, _arrays(runner, size))()
    return load, _status_mib("VmHWM") - before


if __name__ == "__main__":
    print(json.dumps(_load_and_run(Path(sys.argv[1]))))
