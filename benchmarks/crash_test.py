"""Kill runs with SIGKILL at random moments, resume them, and compare with a run that was never disturbed, byte for byte:

python benchmarks/crash_test.py --mode sequential --kills 40

Half of the kills come at a random time, half in the moment in which a file is being written, most often a checkpoint or
a manifest. Modes: sequential, stacked, processes (engines of one process or machine), torchrun (two ranks), sweep,
sweep-stacked (runs side by side). Writes results/reliability/crash-MODE.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from anybit.environment import environment
from anybit.errors import AnybitError

MODES = ("sequential", "stacked", "processes", "torchrun", "sweep", "sweep-stacked")
FRESH = ("processes", "torchrun")
"""Modes that start processes of their own: they run in a new interpreter, the others in a fork, which starts sooner."""
MODEL = '''
from torch import nn

def wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
'''
SETTINGS = ["model.name=crash_model:wide", "cohort=2", "client.batch_size=80", "evaluation.every=8",
            'evaluation.sites=["W"]', "evaluation.bits=[32,2]", 'evaluation.steps=["mse"]', "checkpoint_every=1",
            "threads=1"]
TRUST = ["--import", "crash_model", "--quiet"]
TIMES = "timing.jsonl"
"""The one file that says how long things took, and so is never the same twice."""


@dataclass
class Count:
    """What happened."""

    kills: int = 0
    while_writing: int = 0
    """Kills that left a half-written file behind."""
    before_the_run: int = 0
    """Kills before there was a run to resume."""
    runs: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)


class Crash:
    """Runs of one mode in one folder."""

    def __init__(self, home: Path, mode: str, rounds: int, seed: int) -> None:
        self.home, self.mode, self.rounds, self.draw = home, mode, rounds, random.Random(seed)
        self.count = Count()
        for module in ("torch._dynamo", "anybit.cli.main", "anybit.sweeps.schedule"):
            importlib.import_module(module)  # once, and not in every fork
        (home / "crash_model.py").write_text(MODEL)
        started = time.perf_counter()
        self.finish(self.start("whole"))
        self.duration = time.perf_counter() - started
        self.reference = content(home / "whole")

    def command(self, name: str) -> list[str]:
        """What a person would type: the run, or its resume once it is there."""
        settings = [*SETTINGS, f"rounds={self.rounds}"]
        if self.mode.startswith("sweep"):
            engine = "stacked" if self.mode == "sweep-stacked" else "sequential"
            return ["sweep", "quickstart", *settings, f"engine={engine}", "--seeds", "1,2", "--path", name, *TRUST]
        if (self.home / name / "config.json").exists():
            return ["resume", name, *TRUST]
        if self.mode != "torchrun":
            settings.append(f"engine={self.mode}")
        return ["run", "quickstart/mqat", *settings, "--path", name, *TRUST]

    def start(self, name: str) -> int:
        """Begin or continue in a process group of its own, so that one signal ends all of it."""
        command = self.command(name)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.chdir(self.home)
            log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            self._become(command)
        return pid

    def _become(self, command: list[str]) -> None:
        if self.mode in FRESH:
            ranks = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if self.mode == "torchrun" else []
            os.execv(sys.executable, [sys.executable, *ranks, "-m", "anybit", *command])
        code = 1
        try:
            from anybit.cli.main import run
            code = run(command)
        except AnybitError as error:
            print(error, flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)

    def finish(self, pid: int) -> None:
        """Wait for an undisturbed end."""
        _, status = os.waitpid(pid, 0)
        if status != 0:
            raise RuntimeError(f"it ended with status {status}: {(self.home / 'log').read_text()}")

    def disturb(self, name: str, limit: int) -> None:
        """One run from its start to its end, killed on the way as often as it comes."""
        while not (self.home / name / "evaluation.json").exists():  # a run can be killed between its end and its exit
            pid = self.start(name)
            if self.count.kills >= limit or not self._kill(pid, name):
                self.finish(pid)
                break
        self.count.runs += 1
        self.count.differences += [f"{name}: {text}" for text in differences(self.reference, content(self.home / name))]

    def _kill(self, pid: int, name: str) -> bool:
        """Kill it in a while; false if it ended before that and nobody has waited for it."""
        wait_for_write, writes = self.draw.random() < 0.5, self.draw.randint(1, 12)
        deadline, seen = time.perf_counter() + self.draw.uniform(0, self.duration / 2), set[str]()
        while wait_for_write or time.perf_counter() < deadline:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            if wait_for_write:
                seen |= set(half_written(self.home / name))
                if len(seen) >= writes:
                    break
            else:
                time.sleep(0.001)
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        _, status = os.waitpid(pid, 0)
        if status == 0:  # it came to its end in the same moment
            return True
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"it ended with status {status}: {(self.home / 'log').read_text()}")
        self.count.kills += 1
        self.count.while_writing += bool(half_written(self.home / name))
        self.count.before_the_run += not any(self.home.joinpath(name).rglob("config.json"))
        return True


def half_written(folder: Path) -> list[str]:
    """Temporary files (checkpoints, manifests, results) of a run, or of the runs of a sweep."""
    found = []
    for place in (folder, *folder.glob("*/"), *folder.glob("*/checkpoints")):
        try:
            found += [str(path) for path in place.iterdir() if path.name.startswith(".")]
        except OSError:
            continue
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a run or sweep but its times."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != TIMES}


def differences(wanted: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    return [name for name in sorted({**wanted, **found}) if wanted.get(name) != found.get(name)]


def crash(mode: str, kills: int, rounds: int, seed: int) -> Count:
    """Kill `kills` times, over as many runs as it takes."""
    with tempfile.TemporaryDirectory() as home:
        test = Crash(Path(home), mode, rounds, seed)
        started, number = time.perf_counter(), 0
        while test.count.kills < kills:
            test.disturb(f"run{number}", kills)
            shutil.rmtree(Path(home) / f"run{number}")
            number += 1
        test.count.seconds = round(time.perf_counter() - started, 1)
    return test.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=MODES, default="sequential")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/reliability"))
    given = parser.parse_args()
    count = crash(given.mode, given.kills, given.rounds, given.seed)
    result: dict[str, Any] = {"date": date.today().isoformat(), "environment": environment(), "mode": given.mode,
                              "rounds": given.rounds, "seed": given.seed, **vars(count)}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"crash-{given.mode}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    sys.exit(1 if count.differences else 0)


if __name__ == "__main__":
    main()
