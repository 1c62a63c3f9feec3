"""Columns of the tables of activations, trained with rounded shortcuts: a reading that fits the baseline (docs/readings.md).

    python benchmarks/rounded_shortcuts.py train runs/shortcuts --minutes 15
    python benchmarks/rounded_shortcuts.py collect runs/shortcuts results/readings/shortcuts-trained.csv

A block of a ResNet rounds its input once, for its first convolution and for the shortcut beside it.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path

from activation_readings import round_shortcuts

from anybit.config import from_recipe
from anybit.sweeps.plan import PlannedRun, SweepFolder
from anybit.sweeps.schedule import SweepWatch, train_sweep

COLUMNS = {"cifar10-resnet20": (("qat4-a", "mse"), ("qat2-a", "mse"), ("mqat-a", "mse")),
           "cifar100-resnet20": (("qat4-a", "mse"), ("qat2-a", "mse"), ("mqat-a", "mse"), ("qat4-a", "minmax"),
                                 ("qat2-a", "minmax"))}
"""{recipes of a data set: (column, rule of the ranges at the start)}."""


def planned() -> Iterator[PlannedRun]:
    for recipes, columns in COLUMNS.items():
        for column, rule in columns:
            recipe = f"paper/{recipes}/{column}"
            settings = (f"ranges.activations={rule}", "compute.precision=bf16", "evaluation.every=500",
                        "checkpoint_every=1000", "seed=1")
            yield PlannedRun(f"{recipes}-{column}-{rule}", recipe, settings, 1, from_recipe(recipe, settings))


def collect(sweep: Path, out: Path) -> None:
    """Write the final accuracy of every run, by every step rule, with its activations rounded."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "steps", "width", "accuracy"))
        for path in sorted(sweep.glob("*/evaluation.json")):
            for steps, scores in json.loads(path.read_text())["grid"].items():
                writer.writerows((path.parent.name, steps, width, f"{score['metric']:.2f}")
                                 for width, score in scores.items() if width == "FP32" or width.startswith("A"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train")
    train.add_argument("folder", type=Path)
    train.add_argument("--minutes", type=float, default=60.0, help="stop after so long, with checkpoints")
    gather = verbs.add_parser("collect")
    gather.add_argument("folder", type=Path)
    gather.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "collect":
        collect(given.folder, given.out)
        return
    round_shortcuts()
    watch = SweepWatch(on_message=lambda name, text: print(name, text, flush=True),
                       deadline=time.monotonic() + 60 * given.minutes)
    print(train_sweep(SweepFolder.begin(given.folder, list(planned())), watch) or "all trained", flush=True)


if __name__ == "__main__":
    main()
