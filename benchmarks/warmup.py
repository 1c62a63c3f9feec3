"""What a rising server rate costs on a task so easy that it needs none: a small network on the digits, by rounds.

    python -m benchmarks.warmup results/quickstart/warmup.csv

Accuracy on clients that are held out, with the rate of anybit's choice, at once or rising over as many rounds as it chooses.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import anybit

WIDTHS = ("FP32", "W2")
VARIANTS: tuple[Callable[[], anybit.Variant], ...] = (anybit.baseline, anybit.mqat, anybit.carousel)


def network(seed: int) -> nn.Module:
    """Make the README's network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, 1, 8, 8) / 16).astype("float32")
    clients, held_out = [(x[i::10], y[i::10]) for i in range(8)], (x[8::10], y[8::10])
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("variant", "rounds", "warmup", "seed", "width", "accuracy"))
        for make, rounds, warmup, seed in itertools.product(VARIANTS, (20, 50, 100), (0, None), (1, 2, 3)):
            variant = make()
            result = anybit.fit(network(seed), clients, held_out, variant, rounds=rounds, seed=seed, engine="sequential",
                                threads=1, server=anybit.ServerOptions(warmup=warmup), progress=False,
                                client=anybit.ClientOptions(batches="full"),
                                evaluation=anybit.EvaluationOptions(every=1000, bits=(32, 2), sites=("W",)))
            which = (variant.name, rounds, result.config.server.warmup, seed)
            rows.writerows((*which, width, f"{result.scores[width].metric:.2f}") for width in WIDTHS)


if __name__ == "__main__":
    main()
