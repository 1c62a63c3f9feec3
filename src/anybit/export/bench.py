"""What an artifact costs: load time, latency and peak memory, relative to the float model in the same runtime."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anybit.errors import RunError
from anybit.export.extras import need
from anybit.export.subject import Subject
from anybit.export.verify import session

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
    """Of one file, in a process of its own, on one thread."""

    load_ms: float
    batches: dict[str, Latency]
    """{batch size: latency}."""
    peak_mib: float
    """Resident memory of load and inference beyond that of the runtime without a model (Linux; else 0)."""


def latency(path: Path, subject: Subject, seconds: float = QUICK) -> Latency:
    """One image at a time, in this process."""
    running = session(path)
    x = subject.data.pipeline(subject.data.test.x[:1]).numpy()
    return _timed(lambda: running.run(None, {running.get_inputs()[0].name: x}), seconds)


def _timed(call: Any, seconds: float) -> Latency:
    for _ in range(3):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    median, p95 = (float(1e3 * np.percentile(times, q)) for q in (50, 95))
    return Latency(median, p95)


def cost(path: Path, seconds: float = 1.0) -> Cost:
    """Measured in a fresh process, so that memory is this artifact's alone."""
    done = subprocess.run([sys.executable, "-m", "anybit.export.bench", str(path), str(seconds)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise RunError(f"{path} cannot be measured ({last[0]})")
    found = json.loads(done.stdout)
    return Cost(found["load_ms"], {n: Latency(**b) for n, b in found["batches"].items()}, found["peak_mib"])


def _status_mib(field: str) -> float:
    """The kernel's own counter; ru_maxrss is inherited from the parent, so it will not do. 0 where there is none."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith(f"{field}:")) / 1024
    except OSError:
        return 0.0


def _forget_peak() -> None:
    """Start the high-water mark anew: importing took more than what stayed."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _measure(path: Path, seconds: float) -> Cost:
    need("onnxruntime")
    _forget_peak()
    before = _status_mib("VmRSS")
    start = time.perf_counter()
    running = session(path)
    load = 1e3 * (time.perf_counter() - start)
    wanted = running.get_inputs()[0]
    batches = {}
    for size in BATCHES:
        x = np.random.default_rng(0).normal(size=(size, *wanted.shape[1:])).astype(np.float32)
        batches[str(size)] = _timed(lambda x=x: running.run(None, {wanted.name: x}), seconds)
    return Cost(load, batches, _status_mib("VmHWM") - before)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(Path(sys.argv[1]), float(sys.argv[2])))))
