"""Measure data preparation, loading and splitting: python benchmarks/data.py --data-dir DIR

DIR holds the hub's files (DIR/uoft-cs/cifar10/plain_text/…). Writes results/data/data.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anybit.data import cache, hub, sources, splits
from anybit.data.known import KNOWN
from anybit.environment import environment

CIFAR10_BYTES = 60_000 * 3072
SCALES = {"50,000 examples, 500 clients, 100 classes": (50_000, 500, 100, 20),
          "800,000 examples, 3,500 clients, 62 classes": (800_000, 3_500, 62, 31)}
# ru_maxrss is inherited over exec, so a child would report its parent's peak: the kernel's own counters are not.
_RESIDENT = """
import torch
from anybit.data import sources
def status(name):
    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith(name + ':'))
before = status('VmRSS')
data = sources.cifar10()
mapped = status('VmRSS')
total = sum(int(data.train.x[i:i + 500].to(torch.int64).sum()) for i in range(0, len(data.train), 500))
assert total > 0
print(before, mapped, status('VmRSS'), status('VmHWM'))
"""


def seconds(action: Any) -> float:
    started = time.perf_counter()
    action()
    return round(time.perf_counter() - started, 3)


def prepare_and_load(data_dir: Path) -> dict[str, Any]:
    """CIFAR-10 from parquet to the cache, then what a run does at its start."""
    prepared = seconds(lambda: hub.prepare("cifar10", KNOWN["cifar10"], data_dir))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"prepare_s": prepared, "prepare_peak_MB": round(peak / 1024), "load_s": seconds(sources.cifar10),
            "verify_s": seconds(lambda: cache.verify("cifar10"))}


def resident() -> dict[str, Any]:
    """How much a process grows that holds CIFAR-10: once it is mapped, and after every training image was touched."""
    done = subprocess.run([sys.executable, "-c", _RESIDENT], capture_output=True, text=True, check=True)
    before, mapped, touched, peak = (int(n) / 1024 for n in done.stdout.split())
    return {"before_MB": round(before), "mapped_grows_MB": round(mapped - before),
            "touched_grows_MB": round(touched - before), "peak_grows_MB": round(peak - before),
            "peak_over_184_MB": round((peak - before) * 2**20 / CIFAR10_BYTES, 2)}


def split_times() -> dict[str, dict[str, float]]:
    draw, times = np.random.default_rng(0), dict[str, dict[str, float]]()
    for scale, (examples, clients, classes, families) in SCALES.items():
        labels = draw.integers(classes, size=examples)
        extra = {"pachinko": {"coarse": labels * families // classes},
                 "by_id": {"ids": draw.integers(clients, size=examples)}}
        times[scale] = {name: seconds(partial(function, labels, 1, clients=clients, **extra.get(name, {})))
                        for name, function in splits.SPLITS.items()}
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/data/data.json"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["ANYBIT_DATA"] = home
        result = {"date": date.today().isoformat(), "environment": environment(),
                  "cifar10": {**prepare_and_load(arguments.data_dir), "resident": resident()}, "split_s": split_times()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
