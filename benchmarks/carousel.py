"""Carousel beside its rivals, part by part: named runs in one sweep, side by side on a GPU, and the table of their scores.

    python -m benchmarks.carousel parts-resnet20 runs/parts                # train (or go on), then print and write
    python -m benchmarks.carousel table-resnet20 runs/table --seeds 1,2,3 --minutes 9
    python -m benchmarks.carousel table-resnet20 runs/table --show results/carousel/table-resnet20.csv

Choices are made on images held out of the training set ("parts-…"), tables on the test set. Every run has the same
schedule and keeps the same average, of which both the last weights and the average are scored.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anybit.config import from_recipe
from anybit.sweeps.plan import PlannedRun, SweepFolder
from anybit.sweeps.schedule import SweepWatch, train_sweep

BITS = (32, 8, 7, 6, 5, 4, 3, 2)
HELD_OUT = ("data.holdout=5000", "data.evaluate=holdout")
LIST = "variant.bits=[2, 2, 3, 3, 4, 6, 8, 32]"
FIXED = ("ranges.follow=false", "ranges.project=true")

FREE = ("ranges.follow=false", "ranges.project=false", "ranges.weights=mse")

CAROUSEL: dict[str, tuple[str, ...]] = {
    "carousel": (),
    "spread 2.0": ("ranges.spread=2.0",), "spread 3.0": ("ranges.spread=3.0",),
    "mse, followed": ("ranges.weights=mse",),
    "a width per client": ("variant.widths=clients",),
    "widths dealt to the cohort": ("variant.widths=cohort",),
    "uniform list": ("variant.bits=[2, 3, 4, 6, 8, 32]",),
    "cap": ("variant.cap=true",),
    "no decay": ("server.schedule=constant",),
    "fixed, spread 2.5": FIXED, "fixed, spread 3.5": (*FIXED, "ranges.spread=3.5"),
    "fixed, mse": (*FIXED, "ranges.weights=mse"),
    "no projection": ("ranges.project=false",),
    "fixed, mse, free": FREE, "fixed, mse, free, uniform list": (*FREE, "variant.bits=[2, 3, 4, 6, 8, 32]"),
    "fixed, mse, free, per client": (*FREE, "variant.widths=clients"),
    "fixed, mse, free, uniform, per client": (*FREE, "variant.widths=clients", "variant.bits=[2, 3, 4, 6, 8, 32]"),
    "narrow grid": ("sites.weight_grid=narrow",), "full grid": ("sites.weight_grid=full",),
}
"""{name: what differs from the recipe}."""

RIVALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg": ("baseline", ()),
    "mqat, full": ("mqat-full", ()), "mqat, narrow": ("mqat-full", ("sites.weight_grid=narrow",)),
    "mqat, centred": ("mqat-full", ("sites.weight_grid=centred",)),
    "mqat, learned, full": ("mqat-full", ("ranges.learned=true",)),
    "mqat, learned, narrow": ("mqat-full", ("ranges.learned=true", "sites.weight_grid=narrow")),
    "qat(2), narrow": ("qat2", ("sites.weight_grid=narrow", "variant.start=mse")),
    "qat(2), centred": ("qat2", ("sites.weight_grid=centred", "variant.start=mse")),
    "qat(4), narrow": ("qat4", ("sites.weight_grid=narrow", "variant.start=mse")),
    "qat(4), centred": ("qat4", ("sites.weight_grid=centred", "variant.start=mse")),
}
"""{name: (recipe of the paper, what differs from it)}; all of them get carousel's schedule."""


def arms(network: str, names: Sequence[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return {name: (recipe, overrides)}."""
    out = {}
    for name in names:
        if name in CAROUSEL:
            out[name] = (f"carousel/cifar10-{network}", CAROUSEL[name])
            continue
        recipe, settings = RIVALS[name]
        recipe = "mqat" if recipe == "mqat-full" and network == "resnet20" else recipe
        out[name] = (f"paper/cifar10-{network}/{recipe}", ("server.schedule=linear", *settings))
    return out


PARTS = tuple(CAROUSEL)
TABLE = ("carousel", *RIVALS)


def planned(experiment: str, seeds: Sequence[int], only: Sequence[str], extra: Sequence[str]) -> list[PlannedRun]:
    """Plan the runs of an experiment: parts-… on held-out images for 2,000 rounds, table-… on the test set."""
    kind, _, network = experiment.partition("-")
    rounds = 2000 if kind == "parts" or network == "lenet5" else 5000
    last = [rounds - round(rounds * 0.005 * k) for k in range(5)]
    common = (f"rounds={rounds}", f"evaluation.also={last}", f"evaluation.bits={list(BITS)}", "server.average=0.998",
              "evaluation.every=250", 'evaluation.sites=["W"]', 'evaluation.steps=["mse"]', "checkpoint_every=500",
              *(HELD_OUT if kind == "parts" else ()))
    runs = []
    for name, (recipe, settings) in arms(network, only or (PARTS if kind == "parts" else TABLE)).items():
        for seed in seeds:
            overrides = (*common, *settings, *extra, f"seed={seed}")
            folder = f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
            runs.append(PlannedRun(folder, recipe, overrides, seed, from_recipe(recipe, overrides)))
    return runs


def scores(folder: Path) -> dict[str, Any] | None:
    """Read a run: its last evaluation, the mean of its last five, and the swing in the middle of the training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [(entry["round"], entry["evaluation"]) for entry in lines if entry.get("evaluation")]
    if not curve:
        return None
    rounds = json.loads((folder / "config.json").read_text())["rounds"]

    def metric(evaluation: Mapping[str, Any], bits: int, kind: str) -> float:
        return float(evaluation[kind]["FP32" if bits == 32 else f"W{bits}"]["metric"])

    shown: dict[str, Any] = {"round": curve[-1][0]}
    middle = [e for r, e in curve if 0.4 * rounds <= r <= 0.7 * rounds and r % 250 == 0]
    for kind in ("scores", "average"):
        if kind in curve[-1][1]:
            shown[kind] = [metric(curve[-1][1], b, kind) for b in BITS]
            shown[f"{kind}, five"] = [statistics.fmean(metric(e, b, kind) for _, e in curve[-5:]) for b in BITS]
            swings = {b: [metric(y, b, kind) - metric(x, b, kind) for x, y in itertools.pairwise(middle)]
                      for b in (32, 2)}
            shown[f"{kind}, swing"] = [statistics.fmean(d * d for d in s) ** 0.5 if s else 0.0 for s in swings.values()]
    return shown


def show(sweep: Path, out: Path | None) -> None:
    """Print a line per run and write all of it."""
    rows = []
    for folder in sorted(path.parent for path in sweep.glob("*/metrics.jsonl")):
        if shown := scores(folder):
            name, _, seed = folder.name.rpartition("-seed")
            print(f"{folder.name:40} {shown['round']:5}", *(f"{s:6.2f}" for s in shown["scores"]),
                  " | average", *(f"{s:6.2f}" for s in shown.get("average", [])))
            for kind, values in shown.items():
                if kind != "round":
                    labels = ["swing at 32", "swing at 2"] if kind.endswith("swing") else [str(b) for b in BITS]
                    rows += [(name, seed, shown["round"], kind, label, f"{value:.4f}")
                             for label, value in zip(labels, values, strict=True)]
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("run", "seed", "round", "weights", "bits", "accuracy"))
            writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=[f"{k}-{n}" for k in ("parts", "table") for n in ("resnet20", "lenet5")])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default="", help="names of runs, separated by ;")
    parser.add_argument("--set", action="append", default=[], help="a setting of all runs")
    parser.add_argument("--minutes", type=float, help="stop after so long, with checkpoints")
    parser.add_argument("--show", type=Path, help="train nothing; write the scores that are there")
    given = parser.parse_args()
    if given.show is None:
        seeds = [int(seed) for seed in given.seeds.split(",")]
        runs = planned(given.experiment, seeds, [n.strip() for n in given.only.split(";") if n.strip()], given.set)
        deadline = None if given.minutes is None else time.monotonic() + 60 * given.minutes
        watch = SweepWatch(on_state=lambda name, state, reason: print(time.strftime("%X"), name, state, reason, flush=True),
                           on_message=lambda name, text: print(time.strftime("%X"), name, text, flush=True),
                           deadline=deadline)
        print(train_sweep(SweepFolder.begin(given.folder, runs), watch) or "all trained", flush=True)
    show(given.folder, given.show)


if __name__ == "__main__":
    main()
