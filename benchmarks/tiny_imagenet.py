"""Speed of the Tiny-ImageNet recipe on one GPU: baseline and MQAT side by side, 100 clients × 20 images a step each.

    python -m benchmarks.tiny_imagenet results/performance/tiny-imagenet.json

Images are random, as time does not depend on them. Prints seconds of a round, images per second and what share of the
card's measured matrix rate that is; with --alone, also of one run alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from anybit.config import from_recipe
from anybit.data.examples import Data, Examples, Pipeline
from anybit.environment import environment
from anybit.federated.variants import Variant, baseline, mqat
from anybit.models import resnet18
from anybit.sweeps.lockstep import Runs
from anybit.training.computation import open_computation
from anybit.training.loop import begin
from anybit.training.machine import computing
from anybit.training.task import Task

CLIENTS, IMAGES = 100, 200
MATRIX_TFLOP = 780.0
"""What an H200 reaches in a large bf16 matrix product."""


def gigaflop() -> float:
    """Count an image's forward and backward pass, two operations a multiplication."""
    model, x = resnet18(stem="7x7"), torch.zeros(1, 3, 64, 64)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    return float(counter.get_total_flops() / 1e9)


def task(variant: Variant) -> Task:
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (CLIENTS * IMAGES, 3, 64, 64), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 200, (CLIENTS * IMAGES,), generator=draw)
    data = Data(Examples(images, labels), Examples(images[:100], labels[:100]), Pipeline((0.5,) * 3, (0.25,) * 3))
    torch.manual_seed(0)
    return Task(resnet18(stem="7x7"), variant, data, np.split(np.arange(CLIENTS * IMAGES), CLIENTS))


def seconds(variants: list[Variant], repetitions: int) -> dict[str, Any]:
    """Measure rounds of these runs in one program, after one that compiles."""
    config = from_recipe("paper/tinyimagenet-resnet18/mqat", ("compute.precision=bf16", "engine=stacked"))
    started = time.perf_counter()
    with computing(config):
        runs = Runs({str(i): begin(open_computation(task(v), config)) for i, v in enumerate(variants)})
        each = []
        for _ in range(repetitions + 2):
            torch.cuda.synchronize()
            before = time.perf_counter()
            runs.state, _ = runs.program(runs.state, runs.inputs)
            torch.cuda.synchronize()
            each.append(time.perf_counter() - before)
    median = statistics.median(each[2:])
    rate = len(variants) * CLIENTS * IMAGES / median
    return {"runs": len(variants), "compiling_seconds": time.perf_counter() - started - sum(each[2:]),
            "round_seconds": median, "spread": max(each[2:]) - min(each[2:]), "images_per_second": rate,
            "share_of_matrix_peak": rate * gigaflop() / 1000 / MATRIX_TFLOP,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--alone", action="store_true", help="also MQAT alone")
    given = parser.parse_args()
    pair = [baseline(), mqat(bits=(2, 3, 4, 6, 8))]
    ways = {"baseline and MQAT": pair, **({"MQAT": pair[1:]} if given.alone else {})}
    result: dict[str, Any] = {"environment": environment(), "gigaflop_per_image": gigaflop(),
                              "work": f"a round of {CLIENTS} clients × {IMAGES} images of 64×64, batches of 20"}
    for name, variants in ways.items():
        result[name] = seconds(variants, given.repetitions)
        print(name, result[name], flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
