"""Speed on one GPU: a local SGD step of 10 clients × 64 CIFAR-sized images, by the ways to execute it.

    python benchmarks/gpu.py results/performance/gpu.json

Ways are timed in turns (one round of each, then again), so that a machine's mood hits all of them; the median counts.
The plain loop is what a script without a simulator does: module, optimizer, backward, one client after another. A
peer that is not installed is left out, with its error (pfl 0.6.0 has to be on the path).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from peers import SIDE, Contestant
from torch import nn

from anybit.config import ClientOptions, ComputeOptions, Config, Precision
from anybit.data.examples import Data, Examples, Pipeline
from anybit.engines.base import Engine
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.environment import environment
from anybit.federated.variants import Variant, baseline, carousel, mqat
from anybit.models import lenet5, resnet20
from anybit.sweeps.lockstep import Runs
from anybit.training import computation
from anybit.training.computation import open_computation
from anybit.training.evaluation import uses_kernels
from anybit.training.loop import begin
from anybit.training.machine import computing
from anybit.training.task import Task

CLIENTS, BATCH, STEPS = 10, 64, 8
NETWORKS: dict[str, Callable[[], nn.Module]] = {"resnet20": resnet20, "lenet5": lenet5}
GFLOP = {"resnet20": 157.0, "lenet5": 16.4}
"""Of one step: forward and backward, two operations a multiplication, counted layer by layer."""
COPY_TB, MATRIX_TFLOP = 4.3, 780.0
"""What an H200 reaches: a device-to-device copy (bytes read and written), a large bf16 matrix product."""


def task(network: str, variant: Variant, test: int = 500) -> Task:
    draw = torch.Generator().manual_seed(0)
    size = CLIENTS * BATCH * STEPS
    images = torch.randint(0, 256, (size, 3, 32, 32), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 10, (size,), generator=draw)
    data = Data(Examples(images, labels), Examples(images[:test], labels[:test]), Pipeline((0.5,) * 3, (0.25,) * 3))
    torch.manual_seed(0)
    return Task(NETWORKS[network](), variant, data, np.split(np.arange(size), CLIENTS))


def of_engine(network: str, engine: Engine, variant: Variant = baseline(), precision: Precision = "tf32",
              kernels: bool = True) -> Callable[[], None]:
    """One round, state carried on."""
    config = Config(cohort=CLIENTS, client=ClientOptions(batch_size=BATCH), device="cuda",
                    compute=ComputeOptions(precision=precision))
    run = replace(open_computation(task(network, variant), config), engine=engine)
    start, table = run.start()
    # A config has no switch for the kernels alone.
    with patch.object(computation, "uses_kernels", lambda *given: kernels and uses_kernels(*given)):
        client_step = run.client_step(table)
    program, inputs, state = engine.prepare(run.round_program(client_step)), run.inputs(run.given(table), 0), [start]

    def round() -> None:
        state[0], _ = program(state[0], inputs)
    return round


def side_by_side(network: str, runs: int, precision: Precision, compiled: bool = True) -> Callable[[], None]:
    """One round of several runs in one program, without logs and evaluation."""
    config = Config(cohort=CLIENTS, rounds=1000, client=ClientOptions(batch_size=BATCH), device="cuda", engine="stacked",
                    compute=ComputeOptions(precision=precision, compile=compiled))
    stacked = Runs({str(i): begin(open_computation(task(network, mqat()), config)) for i in range(runs)})

    def round() -> None:
        stacked.state, _ = stacked.program(stacked.state, stacked.inputs)
    return round


def plain_loop(network: str) -> Callable[[], None]:
    """FedAvg as one writes it by hand: deep copies, SGD, the mean of the weights."""
    given = task(network, baseline())
    data, server = given.data.to(torch.device("cuda")), given.model.cuda()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True

    def round() -> None:
        trained = []
        for index in given.split:
            client = copy.deepcopy(server)
            optimizer = torch.optim.SGD(client.parameters(), lr=0.05)
            for part in torch.split(torch.from_numpy(index).cuda(), BATCH):
                optimizer.zero_grad()
                F.cross_entropy(client(data.pipeline(data.train.images[part])), data.train.y[part]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            trained.append(client.state_dict())
        server.load_state_dict({n: torch.stack([s[n] for s in trained]).mean(0) for n in trained[0]})
    return round


def pfl(network: str) -> Callable[[], None]:
    """The same work by pfl's simulation, in a process of its own, its data on the card."""
    peer = Contestant("pfl 0.6.0", [sys.executable, str(SIDE / "pfl_run.py"), network, "1", "cuda"])
    peer.start(Path(tempfile.gettempdir()) / f"pfl-{network}.log", CLIENTS, BATCH * STEPS)

    def round() -> None:
        peer.round()
        if peer.error:
            raise RuntimeError(peer.error)
    round()
    return round


def ways(network: str) -> dict[str, Callable[[], Callable[[], None]]]:
    def stacked(**options: bool) -> Stacked:
        return Stacked(CLIENTS, **options)

    def best(variant: Variant, precision: Precision, kernels: bool = True) -> Callable[[], Callable[[], None]]:
        return lambda: of_engine(network, stacked(compiled=True, captured=True), variant, precision, kernels)

    return {
        "plain loop, eager": lambda: plain_loop(network),
        "pfl 0.6.0": lambda: pfl(network),
        "sequential engine, eager": lambda: of_engine(network, Sequential()),
        "stacked, eager": lambda: of_engine(network, stacked(), kernels=False),
        "stacked, captured": lambda: of_engine(network, stacked(captured=True), kernels=False),
        "compiled, captured": best(baseline(), "tf32", kernels=False),
        "kernels, captured": lambda: of_engine(network, stacked(captured=True)),
        "kernels, compiled, captured": best(baseline(), "tf32"),
        "kernels, compiled, captured, MQAT": best(mqat(), "tf32"),
        "bf16 compiled, captured": best(baseline(), "bf16", kernels=False),
        "bf16 kernels, captured": lambda: of_engine(network, stacked(captured=True), baseline(), "bf16"),
        "bf16 kernels, compiled, captured": best(baseline(), "bf16"),
        "bf16 kernels, compiled, captured, MQAT": best(mqat(), "bf16"),
        "bf16 kernels, compiled, captured, carousel": best(carousel(), "bf16"),
        "bf16, 4 runs side by side": lambda: side_by_side(network, 4, "bf16"),
    }


def milliseconds(round: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    round()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1000 / STEPS


def measure(network: str, repetitions: int, only: str) -> dict[str, Any]:
    prepared: dict[str, Callable[[], None]] = {}
    out: dict[str, Any] = {}
    for name, make in ways(network).items():
        if only not in name:
            continue
        started = time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        try:
            round = make()
            first = milliseconds(round) * STEPS / 1000
        except RuntimeError as error:
            if "pfl" not in name:
                raise
            out[name] = {"error": str(error)}
            continue
        prepared[name] = round
        out[name] = {"start_seconds": time.perf_counter() - started, "first_round_seconds": first,
                     "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        print(f"{network}: {name}: ready after {out[name]['start_seconds']:.1f} s", flush=True)
    times: dict[str, list[float]] = {name: [] for name in prepared}
    for _ in range(repetitions):
        for name, round in prepared.items():
            times[name].append(milliseconds(round))
    loop = statistics.median(times["plain loop, eager"]) if "plain loop, eager" in times else None
    for name, each in times.items():
        ms = statistics.median(each)
        runs = 4 if "side by side" in name else 1
        out[name] |= {"ms": ms, "spread": max(each) - min(each), "ratio": runs * loop / ms if loop else None,
                      "share_of_matrix_peak": runs * GFLOP[network] / ms / MATRIX_TFLOP}
        print(f"{network}  {name:42s} {ms:8.3f} ms", f"{runs * loop / ms:6.1f}×" if loop else "", flush=True)
    return out


def profile(network: str) -> list[dict[str, Any]]:
    """Where the fastest way spends its time: microseconds per step and kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    round = of_engine(network, Stacked(CLIENTS, compiled=True, captured=True), baseline(), "bf16")
    round()
    with profiler(activities=[ProfilerActivity.CUDA]) as seen:
        round()
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:15]
    return [{"kernel": r.key[:100], "us": r.self_device_time_total / STEPS, "calls": r.count / STEPS} for r in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="ways whose name contains this")
    parser.add_argument("--networks", default="resnet20,lenet5")
    options = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "work": f"{CLIENTS} clients × {BATCH} images, one step"}
    with computing(Config()):
        for network in options.networks.split(","):
            result[network] = measure(network, options.repetitions, options.only)
            result[f"{network} profile"] = profile(network)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
