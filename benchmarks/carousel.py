"""Carousel beside its rivals, part by part: named runs in one sweep, side by side on a GPU, and the table of their scores.

    python -m benchmarks.carousel train search-resnet20 runs/search          # or go on with it
    python -m benchmarks.carousel train table-resnet20 runs/table --seeds 1,2,3 --minutes 9
    python -m benchmarks.carousel collect runs/table results/carousel/table-resnet20.csv    # --round 2000: as it was then
    python -m benchmarks.carousel summary results/carousel/table-resnet20.csv
    python -m benchmarks.carousel figure results/carousel/table-resnet20.csv docs/img/carousel-resnet20.svg --only "a;b"

Choices are made on 5,000 images held out of the training set (search, parts, activations), the table is measured on the
test set. Every run has the same schedule and keeps the same average; both the last weights and the average are scored.
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
from anybit.report import style
from anybit.sweeps.plan import PlannedRun, SweepFolder
from anybit.sweeps.schedule import SweepWatch, train_sweep

BITS = (32, 8, 7, 6, 5, 4, 3, 2)
HELD_OUT = ("data.holdout=5000", "data.evaluate=holdout")
UNIFORM, DOUBLED = "variant.bits=[2, 3, 4, 6, 8, 32]", "variant.bits=[2, 2, 3, 3, 4, 6, 8, 32]"

FIXED = ("ranges.weights=mse", "ranges.follow=false", "ranges.project=true", UNIFORM)
FOLLOWED = ("ranges.weights=rms", "ranges.follow=true", "ranges.project=true", DOUBLED)
FREE = ("ranges.weights=mse", "ranges.follow=false", "ranges.project=false")

SEARCH: dict[str, tuple[str, ...]] = {
    "rms 2.5, followed": FOLLOWED,
    "rms 2.0, followed": (*FOLLOWED, "ranges.spread=2.0"), "rms 3.0, followed": (*FOLLOWED, "ranges.spread=3.0"),
    "mse, followed": (*FOLLOWED, "ranges.weights=mse"),
    "rms 2.5, followed, a width per client": (*FOLLOWED, "variant.widths=clients"),
    "rms 2.5, followed, widths dealt": (*FOLLOWED, "variant.widths=cohort"),
    "rms 2.5, followed, uniform list": (*FOLLOWED, UNIFORM),
    "rms 3.0, followed, uniform list": (*FOLLOWED, UNIFORM, "ranges.spread=3.0"),
    "rms 2.5, followed, cap": (*FOLLOWED, "variant.cap=true"),
    "rms 2.5, followed, no decay": (*FOLLOWED, "server.schedule=constant"),
    "rms 2.5, followed, free": (*FOLLOWED, "ranges.project=false"),
    "rms 2.5, followed, narrow": (*FOLLOWED, "sites.weight_grid=narrow"),
    "rms 2.5": (*FIXED, DOUBLED, "ranges.weights=rms"),
    "rms 3.5": (*FIXED, DOUBLED, "ranges.weights=rms", "ranges.spread=3.5"),
    "mse, doubled list": (*FIXED, DOUBLED), "mse": FIXED,
    "mse, free, doubled list": (*FREE, DOUBLED), "mse, free": (*FREE, UNIFORM),
    "mse, free, doubled list, a width per client": (*FREE, DOUBLED, "variant.widths=clients"),
    "mse, free, a width per client": (*FREE, UNIFORM, "variant.widths=clients"),
}
"""{name: settings of carousel}: rules of ranges × lists of widths, of which "mse" is LeNet-5's recipe on CIFAR-10."""

PARTS: dict[str, tuple[str, ...]] = {
    "carousel": (),
    "a width per client": ("variant.widths=clients",), "widths dealt to the cohort": ("variant.widths=cohort",),
    "full grid": ("sites.weight_grid=full",), "narrow grid": ("sites.weight_grid=narrow",),
    "no projection": ("ranges.project=false",), "no decay": ("server.schedule=constant",),
    "doubled list": (DOUBLED,), "ranges that follow": ("ranges.follow=true",), "cap": ("variant.cap=true",),
    "ranges that stay": ("ranges.follow=false",), "learned steps": ("ranges.learned=true",),
}
"""{name: what differs from the recipe, which on CIFAR-10 has the ranges of the start}: carousel without each of its parts,
and with parts that it does not have."""

_LISTS = {"2, 3, 4": [2, 3, 4], "2, 3, 4, 32": [2, 3, 4, 32], "2 to 32": [2, 3, 4, 6, 8, 32], "4 to 32": [4, 6, 8, 32]}
_RANGES = {"WA": (), "WA, learned": ("ranges.follow=true", "ranges.learned=true")}
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    f"{kind}, activations {called}": ("variant.sites=WA", f"variant.activation_bits={bits}", "client.clip=10.0", *ranges)
    for kind, ranges in _RANGES.items() for called, bits in _LISTS.items()}
"""{name: settings of carousel}: lists of bits for activations, whose ranges are the recipe's, or learned while those of
weights follow."""

_BOTH = ("variant.sites=WA", "sites.weight_grid=narrow", "sites.activation_grid=auto", "sites.quantize_image=false",
         "client.clip=10.0")
RIVALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fedavg": ("baseline", ()),
    "mqat, full": ("mqat-full", ()), "mqat, narrow": ("mqat-full", ("sites.weight_grid=narrow",)),
    "mqat, centred": ("mqat-full", ("sites.weight_grid=centred",)),
    "mqat, narrow, ranges that follow": ("mqat-full", ("sites.weight_grid=narrow", "ranges.follow=true")),
    "mqat, centred, ranges that follow": ("mqat-full", ("sites.weight_grid=centred", "ranges.follow=true")),
    "mqat, learned, full": ("mqat-full", ("ranges.learned=true",)),
    "mqat, learned, narrow": ("mqat-full", ("ranges.learned=true", "sites.weight_grid=narrow")),
    "qat(2), narrow": ("qat2", ("sites.weight_grid=narrow", "variant.start=mse")),
    "qat(2), centred": ("qat2", ("sites.weight_grid=centred", "variant.start=mse")),
    "qat(4), narrow": ("qat4", ("sites.weight_grid=narrow", "variant.start=mse")),
    "qat(4), centred": ("qat4", ("sites.weight_grid=centred", "variant.start=mse")),
    "mqat, WA": ("mqat-full", _BOTH), "mqat, WA, learned": ("mqat-full", (*_BOTH, *_RANGES["WA, learned"])),
}
"""{name: (recipe of the paper, what differs from it)}; all of them get carousel's schedule."""


DATA = {"resnet20": "cifar10-resnet20", "lenet5": "cifar10-lenet5", "cifar100": "cifar100-resnet20",
        "femnist": "femnist-lenet5"}
"""{network, or data set, of an experiment: its recipes}."""

KINDS: dict[str, Sequence[str]] = {
    "search": tuple(SEARCH), "parts": tuple(PARTS), "activations": tuple(ACTIVATIONS),
    "table": ("carousel", next(iter(ACTIVATIONS)), *RIVALS)}


def arm(network: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the recipe and the overrides of a named run."""
    if name not in RIVALS:
        start = ("ranges.follow=false",) if network == "resnet20" else ()  # its parts were measured with those of the start
        return f"carousel/{DATA[network]}", (*start, *{**SEARCH, **PARTS, **ACTIVATIONS}[name])
    recipe, settings = RIVALS[name]
    if DATA[network].endswith("resnet20"):
        recipe = "mqat" if recipe == "mqat-full" else recipe
        settings += ("ranges.learned=true",) if recipe.startswith("qat") else ()  # fixed ones do worse at their own width
    return f"paper/{DATA[network]}/{recipe}", ("server.schedule=linear", *settings)


def planned(experiment: str, seeds: Sequence[int], only: Sequence[str], extra: Sequence[str],
            rounds: int | None = None) -> list[PlannedRun]:
    """Plan the runs of an experiment: table-… on the test set, the others on held-out images for 2,000 rounds."""
    kind, _, network = experiment.partition("-")
    rounds = rounds or (from_recipe(f"carousel/{DATA[network]}", ()).rounds if kind == "table" else 2000)
    last = sorted({max(1, rounds - round(rounds * 0.005 * k)) for k in range(5)})
    common = (f"rounds={rounds}", f"evaluation.also={last}", f"evaluation.bits={list(BITS)}", "server.average=0.998",
              f"evaluation.every={max(1, rounds // 20)}", 'evaluation.sites=["W"]', 'evaluation.steps=["mse"]',
              "checkpoint_every=500", *(() if kind == "table" else HELD_OUT))
    runs = []
    for name in only or KINDS[kind]:
        recipe, settings = arm(network, name)
        for seed in seeds:
            overrides = (*common, *settings, *extra, f"seed={seed}")
            folder = f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
            runs.append(PlannedRun(folder, recipe, overrides, seed, from_recipe(recipe, overrides)))
    return runs


def scores(folder: Path, at: int | None = None) -> dict[str, Any] | None:
    """Read a run: its last evaluation, the mean of its last five, and the swing in the middle of the training.

    at: the evaluation of this round alone, of runs that were cut as of others.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve = [(entry["round"], entry["evaluation"]) for entry in lines if entry.get("evaluation")
             and at in (None, entry["round"])]
    if not curve:
        return None
    config = json.loads((folder / "config.json").read_text())
    rounds, sites = config["rounds"], config["variant"].get("sites", "W")

    def metric(evaluation: Mapping[str, Any], bits: int, kind: str, sites: str = sites) -> float:
        return float(evaluation[kind]["FP32" if bits == 32 else f"{sites}{bits}"]["metric"])

    for _, evaluation in curve:  # by what the weights are, not by which are delivered
        if "last" in evaluation:
            evaluation["average"], evaluation["scores"] = evaluation["scores"], evaluation["last"]
    shown: dict[str, Any] = {"round": curve[-1][0]}
    middle = [e for r, e in curve if 0.4 * rounds <= r <= 0.7 * rounds and r % max(1, rounds // 20) == 0]
    for kind in ("scores", "average"):
        if kind in curve[-1][1]:
            called = kind if sites == "W" else f"{kind}, {sites}"
            shown[called] = [metric(curve[-1][1], b, kind) for b in BITS]
            shown[f"{called}, five"] = [statistics.fmean(metric(e, b, kind) for _, e in curve[-5:]) for b in BITS]
            swings = {b: [metric(y, b, kind) - metric(x, b, kind) for x, y in itertools.pairwise(middle)]
                      for b in (32, 2)}
            shown[f"{called}, swing"] = [statistics.fmean(d * d for d in s) ** 0.5 if s else 0.0 for s in swings.values()]
    if at is not None:
        return {kind: values for kind, values in shown.items() if ", five" not in kind and ", swing" not in kind}
    if sites != "W" and (folder / "evaluation.json").exists():  # weights alone are evaluated at the end, exactly
        final = json.loads((folder / "evaluation.json").read_text())
        for called, rounded in (("scores", "W"), (f"scores, {sites}", sites)):
            shown[called] = [metric(final["grid"], b, final["own"], rounded) for b in BITS]
    return shown


def collect(sweep: Path, out: Path, at: int | None = None) -> None:
    """Write the scores of all runs of a sweep, or of a round of them, into one file."""
    rows = []
    for folder in sorted(path.parent for path in sweep.glob("*/metrics.jsonl")):
        if shown := scores(folder, at):
            name, _, seed = folder.name.rpartition("-seed")
            for kind, values in shown.items():
                if kind != "round":
                    labels = ["swing at 32", "swing at 2"] if kind.endswith("swing") else [str(b) for b in BITS]
                    rows += [(name, seed, shown["round"], kind, label, f"{value:.4f}")
                             for label, value in zip(labels, values, strict=True)]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("run", "seed", "round", "weights", "bits", "accuracy"))
        writer.writerows(rows)


Table = dict[tuple[str, str], dict[str, list[float]]]
"""{(run, weights): {bits: accuracy of every seed}}."""


def read(results: Path) -> Table:
    """Read what `collect` wrote."""
    table: Table = {}
    with results.open() as file:
        for row in csv.DictReader(file):
            table.setdefault((row["run"], row["weights"]), {}).setdefault(row["bits"], []).append(float(row["accuracy"]))
    return table


def summary(results: Path, weights: str) -> None:
    """Print a line per run: the mean over seeds and, with several, the standard deviation."""
    labels = ["swing at 32", "swing at 2"] if weights.endswith("swing") else [str(b) for b in BITS]
    print("| run | seeds |", " | ".join(labels), "|")
    print("|" + "---|" * (len(labels) + 2))
    for (name, kind), by_bits in sorted(read(results).items()):
        if kind == weights:
            cells = [f"{statistics.fmean(v):.2f}" + (f" ± {statistics.stdev(v):.1f}" if len(v) > 1 else "")
                     for v in (by_bits[label] for label in labels)]
            print(f"| {name} | {len(by_bits[labels[0]])} |", " | ".join(cells), "|")


def figure(results: Path, names: Sequence[str], out: Path) -> None:
    """Draw accuracy over bits, a line per run and its deviation over seeds."""
    table = read(results)
    with style.styled():
        drawing = style.figure(style.FULL, 2.9)
        axes, lines = drawing.subplots(), []
        for number, name in enumerate(names):
            by_seed = [table[name.partition("=")[0], "scores"][str(bits)] for bits in BITS]
            spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in by_seed]
            lines.append(axes.errorbar(range(len(BITS)), [statistics.fmean(v) for v in by_seed], spread, capsize=2,
                                       color=style.colour(number), marker=style.marker(number)))
        axes.set_xticks(range(len(BITS)), [str(bits) for bits in BITS])
        axes.set_xlabel("bits of the weights")
        axes.set_ylabel("test accuracy in percent")
        style.legend(drawing, lines, [name.rpartition("=")[2].replace("-", ", ") for name in names])
        out.write_bytes(style.render(style.Plot(out.stem, "", "", drawing)).svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train")
    train.add_argument("experiment", choices=[f"{k}-{n}" for k in KINDS for n in DATA])
    train.add_argument("folder", type=Path)
    train.add_argument("--seeds", default="1")
    train.add_argument("--only", default="", help="names of runs, separated by ;")
    train.add_argument("--set", action="append", default=[], help="a setting of all runs")
    train.add_argument("--rounds", type=int, help="instead of the experiment's own")
    train.add_argument("--minutes", type=float, help="stop after so long, with checkpoints")
    gather = verbs.add_parser("collect")
    gather.add_argument("folder", type=Path)
    gather.add_argument("results", type=Path)
    gather.add_argument("--round", type=int, help="as it was after this round")
    shown = verbs.add_parser("summary")
    shown.add_argument("results", type=Path)
    shown.add_argument("--weights", default="scores", help="scores, average, 'scores, five', 'scores, swing', …")
    drawn = verbs.add_parser("figure")
    drawn.add_argument("results", type=Path)
    drawn.add_argument("out", type=Path)
    drawn.add_argument("--only", required=True, help="names of runs, or name=label, separated by ;")
    given = parser.parse_args()
    if given.verb == "train":
        _train(given)
    elif given.verb == "collect":
        collect(given.folder, given.results, given.round)
    elif given.verb == "summary":
        summary(given.results, given.weights)
    else:
        figure(given.results, _names(given.only), given.out)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]


def _train(given: argparse.Namespace) -> None:
    runs = planned(given.experiment, [int(seed) for seed in given.seeds.split(",")], _names(given.only), given.set,
                   given.rounds)
    deadline = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    watch = SweepWatch(on_state=lambda name, state, reason: print(time.strftime("%X"), name, state, reason, flush=True),
                       on_message=lambda name, text: print(time.strftime("%X"), name, text, flush=True),
                       deadline=deadline)
    print(train_sweep(SweepFolder.begin(given.folder, runs), watch) or "all trained", flush=True)


if __name__ == "__main__":
    main()
