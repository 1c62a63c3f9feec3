"""Engines of several processes under signals, as a person or a cluster sends them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from anybit.files.safetensors import load
from tests.e2e.conftest import TINY, Anybit, command, environment
from tests.e2e.test_cli import wait_for
from tests.engines.test_processes import gone

pytestmark = pytest.mark.kills

LONG = [*TINY, "rounds=4000", "evaluation.every=5000", "checkpoint_every=5"]
PROCESSES = ["engine=processes", "compute.workers=2"]
RANKS = ["engine=sequential"]
STARTED: list[subprocess.Popen[str]] = []


def start(home: Path, *arguments: str, ranks: int = 0) -> subprocess.Popen[str]:
    """In a group of its own, so that a signal to the group is what a terminal's Ctrl-C is."""
    launch = command(*arguments)
    if ranks:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *launch[1:]]
    STARTED.append(subprocess.Popen(launch, cwd=home, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True, start_new_session=True))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """A test that fails half way leaves nothing running."""
    yield
    for process in STARTED:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    STARTED.clear()


def children(pid: int) -> list[int]:
    found = [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]
    return [*found, *(c for p in found for c in children(p))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_stops_after_the_round(anybit: Anybit, home: Path, number: signal.Signals) -> None:
    process = start(home, "run", "quickstart/mqat", *LONG, *PROCESSES, "--path", "run")
    wait_for(home / "run/metrics.jsonl", process, 3)
    workers = children(process.pid)
    assert len(workers) == 2
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert "continue with: anybit resume run" in errors
    assert all(gone(pid) for pid in workers)


def test_workers_do_not_outlive_a_killed_parent(home: Path) -> None:
    process = start(home, "run", "quickstart/mqat", *LONG, *PROCESSES, "--path", "run")
    wait_for(home / "run/metrics.jsonl", process, 3)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.communicate(timeout=240)
    assert all(gone(pid) for pid in workers)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load(folder / "model.safetensors")[0]


def test_ranks_give_the_model_of_one_process(anybit: Anybit, home: Path) -> None:
    """10 clients over 1, 2 and 4 ranks; only rank 0 writes and speaks."""
    assert anybit("run", "quickstart/mqat", *TINY, *RANKS, "--path", "one").returncode == 0
    for ranks in (2, 4):
        process = start(home, "run", "quickstart/mqat", *TINY, *RANKS, "--path", f"ranks{ranks}", ranks=ranks)
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert out.count("accuracy") == 1
        assert errors.count("round 6/6") == 1
        one, many = weights(home / "one"), weights(home / f"ranks{ranks}")
        assert all(torch.allclose(one[n], many[n], atol=1e-6) for n in one)
        assert len((home / f"ranks{ranks}/metrics.jsonl").read_text().splitlines()) == 6


def test_a_killed_rank_ends_the_job_and_one_process_resumes(anybit: Anybit, home: Path) -> None:
    process = start(home, "run", "quickstart/mqat", *LONG, *RANKS, "--path", "run", ranks=2)
    wait_for(home / "run/metrics.jsonl", process, 12)
    ranks = children(process.pid)
    os.kill(ranks[-1], signal.SIGKILL)
    _, errors = process.communicate(timeout=240)
    assert process.returncode != 0
    assert re.search(r"rank 0 lost the others (in|after) round \d+: one of the 2 ranks ended", errors), errors
    assert "the last good checkpoint is run/checkpoints/round-" in errors
    assert all(gone(pid) for pid in ranks)
    config = (home / "run/config.json").read_text()
    checkpoints = sorted((home / "run/checkpoints").glob("*.safetensors"))
    resumed = start(home, "resume", "run", "--import", "tiny_models")
    for _ in range(1200):
        if sorted((home / "run/checkpoints").glob("*.safetensors"))[-1] > checkpoints[-1]:
            break
        assert resumed.poll() is None, resumed.communicate()
        time.sleep(0.05)
    resumed.terminate()
    resumed.communicate(timeout=240)
    assert resumed.returncode == 130
    assert (home / "run/config.json").read_text() == config


def test_a_signal_to_one_rank_stops_all_of_them_after_the_same_round(home: Path) -> None:
    process = start(home, "run", "quickstart/mqat", *LONG, *RANKS, "--path", "run", ranks=2)
    wait_for(home / "run/metrics.jsonl", process, 3)
    os.kill(children(process.pid)[-1], signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert "continue with: anybit resume run" in errors
    assert "lost the others" not in errors


def test_ranks_do_not_outlive_a_torchrun_that_is_killed(home: Path) -> None:
    process = start(home, "run", "quickstart/mqat", *LONG, *RANKS, "--path", "run", ranks=2)
    wait_for(home / "run/metrics.jsonl", process, 6)
    ranks = children(process.pid)
    assert len(ranks) >= 2
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=240)
    assert all(gone(rank) for rank in ranks)
    seen = (home / "run/metrics.jsonl").read_bytes().count(b"\n")
    resumed = start(home, "resume", "run", "--import", "tiny_models", ranks=2)
    wait_for(home / "run/metrics.jsonl", resumed, seen + 5)
    resumed.terminate()
    _, errors = resumed.communicate(timeout=240)
    assert "continue with: anybit resume run" in errors


def test_a_signal_to_torchrun_saves_and_another_number_of_ranks_resumes(home: Path) -> None:
    settings = [*TINY, "rounds=60", "evaluation.every=100", "checkpoint_every=1000"]
    process = start(home, "run", "quickstart/mqat", *settings, "rounds=4000", *RANKS, "--path", "run", ranks=2)
    wait_for(home / "run/metrics.jsonl", process, 5)
    process.terminate()
    _, errors = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "continue with: anybit resume run" in errors
    (checkpoint,) = (home / "run/checkpoints").glob("*.safetensors")
    resumed = start(home, "resume", "run", "--import", "tiny_models", ranks=3)
    seen = int(checkpoint.stem.partition("-")[2])
    wait_for(home / "run/metrics.jsonl", resumed, seen + 5)
    resumed.terminate()
    _, errors = resumed.communicate(timeout=240)
    assert "continue with: anybit resume run" in errors
