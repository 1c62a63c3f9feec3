"""How the paper may have quantized activations: trained runs, evaluated under every reading of its text.

    python benchmarks/activation_readings.py results/readings/activations.json runs/baseline-seed1 … --only rule=mse

Grid, range rule, number of calibration images, and whether the image itself is rounded; weights stay in full precision.
With --shortcuts, what a ResNet's shortcut carries is rounded like the input of the convolution beside it
(model.round_shortcuts).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from anybit import Run, evaluate
from anybit.config import RangeOptions
from anybit.environment import environment
from anybit.models.resnet import Block
from anybit.quant.sites import SiteOptions
from anybit.randomness import generator
from anybit.training.build import Components

WIDTHS = ("A8", "A6", "A4", "A3", "A2")


def readings() -> Iterator[dict[str, Any]]:
    for grid, rule in itertools.product(("full", "unsigned"), ("minmax", "cover", "mse")):
        yield {"grid": grid, "rule": rule, "images": 64, "quantize_image": True}
    for rule in ("minmax", "cover", "mse"):
        yield {"grid": "full", "rule": rule, "images": 1000, "quantize_image": True}
        yield {"grid": "full", "rule": rule, "images": 64, "quantize_image": False}
        yield {"grid": "unsigned", "rule": rule, "images": 64, "quantize_image": False}
    yield {"grid": "full", "rule": "running", "images": 1000, "quantize_image": True}


def scores(path: Path, reading: dict[str, Any], shortcuts: bool, widths: tuple[str, ...]) -> dict[str, float]:
    run = Run.load(path)
    model = run.model()
    for block in model.modules():
        if isinstance(block, Block):
            block.round_shortcuts = shortcuts
    data = Components(run.config).build_data()
    chosen = generator(run.config.seed, "calibration").permutation(len(data.train))[:reading["images"]]
    found = evaluate(model, (data.test.x, data.test.y), widths, steps="mse",
                     calibration=data.train.images[torch.from_numpy(chosen)],
                     sites=SiteOptions(activation_grid=reading["grid"], quantize_image=reading["quantize_image"]),
                     ranges=RangeOptions(activations=reading["rule"]), pipeline=data.pipeline)
    return {width: round(score.metric, 2) for width, score in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--widths", nargs="+", default=WIDTHS)
    parser.add_argument("--only", nargs="+", default=[], help="key=value of the readings that are wanted")
    parser.add_argument("--shortcuts", action="store_true", help="round what shortcuts carry, too")
    given = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "readings": []}
    wanted = [reading for reading in readings()
              if all(str(reading[key]) == value for key, value in (only.split("=") for only in given.only))]
    for reading, path in itertools.product(wanted, given.runs):
        accuracy = scores(path, reading, given.shortcuts, tuple(given.widths))
        result["readings"].append({"run": path.name, **reading, "shortcuts": given.shortcuts, "accuracy": accuracy})
        print(path.name, reading, accuracy, flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
