"""What else a GPU run costs: evaluation beside training, growth with cohort and runs, and a cohort that does not fit.

    python benchmarks/gpu_limits.py results/performance/gpu-limits.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu import CLIENTS, STEPS, milliseconds, of_engine, side_by_side, task

from anybit.config import ClientOptions, ComputeOptions, Config, Precision
from anybit.data.examples import Data, Examples
from anybit.engines.stacked import Stacked
from anybit.environment import environment
from anybit.federated.variants import baseline, mqat
from anybit.models import lenet5, resnet18
from anybit.training.computation import open_computation
from anybit.training.course import Watch
from anybit.training.loop import Simulation, begin, train
from anybit.training.machine import computing
from anybit.training.task import Task

CADENCE = 100
"""Rounds between two evaluations, by default."""


def median_ms(what: Callable[[], Any], repetitions: int = 5) -> float:
    """Of one call, after two to warm up."""
    for _ in range(2):
        what()
    return statistics.median(milliseconds(what) * STEPS for _ in range(repetitions))


def evaluation(network: str, precision: Precision) -> dict[str, float]:
    """One evaluation at six widths on 10,000 images, by variant, and its share of the time between two of them."""
    round = median_ms(of_engine(network, Stacked(CLIENTS, compiled=True, captured=True), baseline(), precision))
    config = Config(cohort=CLIENTS, device="cuda", compute=ComputeOptions(precision=precision))
    found = {"round_ms": round}
    for variant in (baseline(), mqat()):
        run = open_computation(task(network, variant, test=10_000), config)
        state, table = run.start()
        one = median_ms(lambda: run.evaluator.own(state.w, table))  # noqa: B023
        found |= {f"{variant.name}_ms": one, f"{variant.name}_share": one / (CADENCE * round)}
    return found


def cohorts(sizes: tuple[int, ...] = (10, 30, 100, 300, 1000)) -> list[dict[str, float]]:
    """A round of LeNet-5 clients with 128 images each, captured."""
    rows = []
    for size in sizes:
        run = open_computation(_clients(lenet5(), size, 128, 32), _config(size))
        state, table = run.start()
        program, inputs = run.engine.prepare(run.round_program(run.client_step(table))), run.inputs(run.given(table), 0)
        torch.cuda.reset_peak_memory_stats()
        rows.append({"cohort": size, "ms": median_ms(lambda: program(state, inputs)),  # noqa: B023
                     "peak_gib": torch.cuda.max_memory_allocated() / 2**30})
    return rows


def runs(counts: tuple[int, ...] = (1, 2, 4, 8)) -> list[dict[str, float]]:
    """A round of several ResNet-20 runs side by side, bfloat16, captured."""
    rows = []
    for count in counts:
        torch.cuda.reset_peak_memory_stats()
        ms = median_ms(side_by_side("resnet20", count, "bf16", compiled=False))
        rows.append({"runs": count, "ms": ms, "ms_per_run": ms / count,
                     "peak_gib": torch.cuda.max_memory_allocated() / 2**30})
    return rows


def too_large(cohort: int = 100) -> dict[str, Any]:
    """Two rounds of 100 ResNet-18 clients on 64×64 images: more than the card holds at once."""
    said: list[str] = []
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run = open_computation(_clients(resnet18(classes=200), cohort, 64, 64), _config(cohort))
    started = time.perf_counter()
    training = begin(run, watch=Watch(on_message=said.append))
    train(training, Simulation(training))
    return {"cohort": cohort, "messages": said, "chunk": run.engine.chunk if isinstance(run.engine, Stacked) else None,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30, "seconds": time.perf_counter() - started}


def _config(cohort: int) -> Config:
    return Config(cohort=cohort, rounds=2, client=ClientOptions(batch_size=64), device="cuda", engine="stacked")


def _clients(model: torch.nn.Module, clients: int, images: int, side: int) -> Task:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * images, 3, side, side), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, 10, (len(x),), generator=draw)
    return Task(model, mqat(), Data(Examples(x, y), Examples(x[:500], y[:500])), np.split(np.arange(len(x)), clients))


PARTS: dict[str, Callable[[], Any]] = {
    "evaluation": lambda: {"resnet20 bf16": evaluation("resnet20", "bf16"), "lenet5 tf32": evaluation("lenet5", "tf32")},
    "cohorts": cohorts, "runs": runs, "too large": too_large}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="what is in the file stays")
    given = parser.parse_args()
    result: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    result |= {"date": time.strftime("%Y-%m-%d"), "environment": environment()}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        with computing(Config()):
            result[name] = PARTS[name]()
        print(name, json.dumps(result[name], indent=1), flush=True)
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
