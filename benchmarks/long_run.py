"""A long run in a small space: does memory grow, do rounds get slower, do the logs still load?

python benchmarks/long_run.py --rounds 2000      writes results/reliability/long-run-ENGINE.json

Trains LeNet-5 on 16×16 digits with checkpoints and evaluations on the way. Memory is the resident set of the process,
time the processor's (which other processes on the machine do not lengthen).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import tempfile
import time
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.nn.functional import interpolate

from anybit.config import Config
from anybit.data.examples import Data, Examples
from anybit.data.sources import digits
from anybit.environment import environment
from anybit.models import lenet5
from anybit.report import accuracy_table, read_runs
from anybit.schema import plain, read
from anybit.training.build import Components
from anybit.training.callbacks import EachRound
from anybit.training.computation import open_computation
from anybit.training.course import Progress
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task

WINDOW = 100


def resident() -> int:
    """Bytes of memory that the process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def larger(data: Data) -> Data:
    def grown(part: Examples) -> Examples:
        return Examples(interpolate(part.images.float(), size=(16, 16)).to(torch.uint8), part.y)
    return Data(grown(data.train), grown(data.test), data.pipeline, data.class_names)


def long_run(rounds: int, engine: str, home: Path) -> dict[str, Any]:
    config: Config = read(Config, {
        "rounds": rounds, "cohort": 2, "engine": engine, "threads": 1, "device": "cpu", "checkpoint_every": 50,
        "split": {"name": "dirichlet", "clients": 40}, "client": {"batch_size": 40}, "evaluation": {
            "every": 100, "bits": [32, 2], "sites": ["W"], "steps": ["mse"]}})
    data, named = larger(digits()), Components(config)
    task = Task(lenet5(in_channels=1, image_size=16), named.build_variant(), data, named.build_split(data))
    memory, clock = {}, [time.process_time()]

    def on_round(progress: Progress) -> None:
        clock.append(time.process_time())
        if progress.round % WINDOW == 0:
            gc.collect()
            memory[progress.round] = resident()

    folder = RunFolder.create(home / "run", plain(config), environment(), task.split)
    with computing(config):
        training = begin(open_computation(task, config), folder, callbacks=[EachRound(on_round)])
        train(training, Simulation(training))
    # Without the rounds that evaluate or write: they are few and cost more.
    plain_rounds = {i: after - before for i, (before, after) in enumerate(pairwise(clock), 1)
                    if i % 50 not in (0, 1)}
    windows = {end: statistics.median(s for i, s in plain_rounds.items() if end - WINDOW < i <= end) for end in memory}
    first, last = min(memory), max(memory)
    return {"rounds": rounds, "engine": engine, "rss_mb": {n: round(b / 1e6, 1) for n, b in memory.items()},
            "rss_last_over_first": round(memory[last] / memory[first], 4),
            "cpu_ms_per_round": {n: round(1e3 * s, 2) for n, s in windows.items()},
            "time_last_over_first": round(windows[last] / windows[first], 3), **_files(folder)}


def _files(folder: RunFolder) -> dict[str, Any]:
    """How large the logs are, and what it takes to look at them."""
    started = time.process_time()
    lines = len(folder.lines("metrics"))
    loaded = time.process_time() - started
    accuracy_table(read_runs([folder.path]))
    return {"metrics_lines": lines, "metrics_bytes": folder.file("metrics.jsonl").stat().st_size,
            "metrics_load_ms": round(1e3 * loaded, 1),
            "run_read_ms": round(1e3 * (time.process_time() - started - loaded), 1),
            "checkpoints": len(folder.checkpoints())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--engine", default="sequential")
    parser.add_argument("--out", type=Path, default=Path("results/reliability"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        result = {"date": date.today().isoformat(), "environment": environment(),
                  **long_run(given.rounds, given.engine, Path(home))}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"long-run-{given.engine}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
