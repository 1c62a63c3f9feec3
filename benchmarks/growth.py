"""How time and memory of a round grow with the cohort, the number of clients and the model, on a CPU (native kernels).

    python benchmarks/growth.py            # writes results/performance/growth-cpu.json and .svg

Every point is a process of its own, so that its peak memory is its own: the resident memory of the process and of its
workers, shared pages counted once per process (an upper bound).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anybit import models
from anybit.config import ClientOptions, ComputeOptions, Config
from anybit.data.examples import Data, Examples
from anybit.environment import environment
from anybit.federated.variants import mqat
from anybit.training.computation import open_computation
from anybit.training.machine import computing
from anybit.training.task import Task

RESULTS = Path(__file__).parents[1] / "results" / "performance"
IMAGES = 32
POINTS: list[dict[str, Any]] = [
    *({"axis": "cohort", "model": "lenet5", "clients": 1000, "cohort": n} for n in (10, 30, 100, 300, 1000)),
    *({"axis": "clients", "model": "lenet5", "clients": n, "cohort": 10} for n in (10, 100, 1000)),
    *({"axis": "model", "model": name, "clients": 10, "cohort": 10} for name in ("lenet5", "resnet20", "resnet18"))]


def resident(pid: int) -> int:
    """Bytes of a process and its children."""
    total = 0
    for one in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    return total


class Watcher(threading.Thread):
    """Samples the memory of this process while it works."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.on = 0, True

    def run(self) -> None:
        while self.on:
            self.peak = max(self.peak, resident(os.getpid()))
            time.sleep(0.02)


def measure(point: dict[str, Any], engine: str) -> dict[str, Any]:
    """The best of a few rounds, after one to warm up, and the peak memory of all of them."""
    side = 64 if point["model"] == "resnet18" else 32
    total = IMAGES * point["clients"]
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=(total, 3, side, side), dtype=np.uint8))
    examples = Examples(images, torch.arange(total) % 10)
    options: Any = {"engine": engine, "compute": ComputeOptions(convolution="native")}
    config = Config(cohort=point["cohort"], client=ClientOptions(batch_size=32), threads=1, device="cpu", **options)
    task = Task(getattr(models, point["model"])(), mqat(), Data(examples, Examples(images[:8], examples.y[:8])),
                np.split(np.arange(total), point["clients"]))
    seconds: list[float] = []
    watcher = Watcher()
    with computing(config):
        computation = open_computation(task, config)
        state, table = computation.start()
        given, program = computation.given(table), computation.round_program(computation.client_step(table))
        for round in range(2 if point["cohort"] >= 300 else 4):
            before = time.perf_counter()
            inputs = computation.inputs(given, round)
            state, _ = program(state, inputs)
            seconds.append(time.perf_counter() - before)
            if not watcher.is_alive() and watcher.on:
                watcher.start()
    watcher.on = False
    watcher.peak = max(watcher.peak, resident(os.getpid()))
    computation.engine.close()
    return {**point, "engine": engine, "seconds": min(seconds[1:]), "peak_mib": watcher.peak / 2**20}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for engine in sorted({r["engine"] for r in rows}):
        here = [r for r in rows if r["axis"] == "cohort" and r["engine"] == engine]
        left.loglog([r["cohort"] for r in here], [r["seconds"] for r in here], "o-", label=engine)
        right.semilogx([r["cohort"] for r in here], [r["peak_mib"] for r in here], "o-", label=engine)
    left.set(xlabel="clients in the cohort", ylabel="seconds per round")
    right.set(xlabel="clients in the cohort", ylabel="peak memory, MiB",
              ylim=(0, 1.1 * max(r["peak_mib"] for r in rows if r["axis"] == "cohort")))
    left.legend()
    figure.savefig(path)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--point", help="measure one point (JSON) and print it")
    options.add_argument("--engines", nargs="+", default=["processes", "sequential"])
    options.add_argument("--out", type=Path, default=RESULTS / "growth-cpu")
    given = options.parse_args()
    if given.point:
        print(json.dumps(measure(json.loads(given.point), given.engines[0])))
        return
    rows = []
    for point in POINTS:
        for engine in given.engines:
            done = subprocess.run([sys.executable, __file__, "--point", json.dumps(point), "--engines", engine], text=True,
                                  capture_output=True, check=True)
            rows.append(json.loads(done.stdout))
            print(f"{point['axis']:8s} {point['model']:9s} clients {point['clients']:5d} cohort {point['cohort']:5d} "
                  f"{engine:11s} {rows[-1]['seconds']:8.3f} s {rows[-1]['peak_mib']:7.0f} MiB", flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    facts = {"date": time.strftime("%Y-%m-%d"), "environment": environment(), "load": os.getloadavg(),
             "work": f"{IMAGES} images a client, batch 32, MQAT, 1 local epoch",
             "points": rows}
    given.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    plot(rows, given.out.with_suffix(".svg"))


if __name__ == "__main__":
    main()
