"""Whom a fleet of unequal devices serves how well: carousel with and without a cap per client, by the widths of devices.

    python -m benchmarks.carousel train table-lenet5 runs/caps --seeds 1,2,3 --only "carousel; cap" --set server.average=0
    python -m benchmarks.cap_classes runs/caps results/carousel/cap-classes.csv

Every client runs the model at its own largest width, drawn as in a training with a cap. Its accuracy is that of the test
images, with the labels in the shares in which it has them: Σ_c p_i(c)·accuracy_c at its width.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import anybit
from anybit.quant.grid import FLOAT, Width
from anybit.training.machine import computing
from anybit.training.per_client import per_client

Row = tuple[str, str, str, int, str, str]


def accuracy_of_classes(run: anybit.Run, width: str) -> np.ndarray:
    """Return the accuracy on the test images of every class."""
    with computing(run.config):
        evaluator, w = run._evaluator()
        test = evaluator.data.test
        labels = test.y.cpu().numpy()
        rows = [np.flatnonzero(labels == c) for c in range(int(labels.max()) + 1)]
        of_test = replace(evaluator, data=replace(evaluator.data, train=test))
        return per_client(of_test, w, run.steps().to(test.device), Width.parse(width), rows)


def shares(run: anybit.Run) -> np.ndarray:
    """Return the share of every label on every client."""
    task = run.task()
    labels = task.data.train.y.cpu().numpy()
    counts = np.stack([np.bincount(labels[index], minlength=int(labels.max()) + 1) for index in task.split])
    return np.asarray(counts / counts.sum(1, keepdims=True))


def caps_of(run: anybit.Run) -> list[int]:
    """Return the largest width of every client of a run with caps."""
    task = run.task()
    return [width.weights for width in task.variant.widths_of(run.config.seed, 0, range(len(task.split)))]


def rows_of(name: str, seed: str, caps: Sequence[int], accuracy: Mapping[int, np.ndarray], of: np.ndarray) -> list[Row]:
    """Return a line per width of devices, and one for all of them, with the tenth of clients that is served worst."""
    own = np.array([of[i] @ accuracy[cap] for i, cap in enumerate(caps)])
    groups = {str(b): own[np.array(caps) == b] for b in sorted({*caps})} | {"all": own}
    return [(name, seed, label, len(each), f"{each.mean():.4f}", f"{np.percentile(each, 10):.4f}")
            for label, each in groups.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    rows: list[Row] = []
    for path in sorted(given.runs.glob("cap-seed*")):
        seed, capped = path.name.rpartition("seed")[2], anybit.Run.load(path)
        caps, of = caps_of(capped), shares(capped)
        for name in ("cap", "carousel"):
            run = capped if name == "cap" else anybit.Run.load(given.runs / f"carousel-seed{seed}")
            accuracy = {b: accuracy_of_classes(run, "FP32" if b == FLOAT else f"W{b}") for b in sorted({*caps})}
            rows += rows_of(name, seed, caps, accuracy, of)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "seed", "width of device", "clients", "accuracy", "tenth percentile"))
        writer.writerows(rows)
    for name in ("carousel", "cap"):
        for label in dict.fromkeys(row[2] for row in rows):
            mine = [row for row in rows if row[0] == name and row[2] == label]
            print(name, label, *(f"{statistics.fmean(float(row[i]) for row in mine):.2f}" for i in (4, 5)))


if __name__ == "__main__":
    main()
