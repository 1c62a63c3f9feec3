"""Rounds per second of one and of two torchrun ranks, taking turns.

    python benchmarks/ranks.py             # writes results/performance/ranks.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from anybit.environment import environment

RESULTS = Path(__file__).parents[1] / "results" / "performance"


def rounds_per_second(ranks: int, rounds: int) -> float:
    """Of a quickstart run, from its timing.jsonl without the first rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = ["-m", "anybit", "run", "quickstart/mqat", f"rounds={rounds}", "engine=sequential",
                   "evaluation.every=10000", "evaluation.sites=[]", "evaluation.bits=[4]", "--quiet", "--path", str(path)]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *command], check=True, capture_output=True, env=environ)
        seconds: list[float] = [json.loads(line)["seconds"] for line in (path / "timing.jsonl").read_text().splitlines()]
    return 1 / median(seconds[2:-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--out", type=Path, default=RESULTS / "ranks.json")
    given = options.parse_args()
    speeds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(given.repeat):
        for ranks, seen in speeds.items():
            seen.append(rounds_per_second(ranks, given.rounds))
            print(f"{ranks} rank{'s' if ranks > 1 else ''}: {seen[-1]:.2f} rounds/s", flush=True)
    facts = {"date": time.strftime("%Y-%m-%d"), "environment": environment(), "load": os.getloadavg(),
             "work": "quickstart/mqat (ResNet-20, 8×8 digits, 10 clients a round), sequential engine, 1 thread a rank",
             "rounds_per_second": {str(r): {"median": median(v), "best": max(v), "all": v} for r, v in speeds.items()},
             "ratio": median(speeds[2]) / median(speeds[1]), "ratio_best": max(speeds[2]) / max(speeds[1])}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"2 ranks are {facts['ratio']:.2f}× one")


if __name__ == "__main__":
    main()
