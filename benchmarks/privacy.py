"""Accuracy against ε, at 32 to 2 bits: does rounding help or hurt under the noise of differential privacy?

    python -m benchmarks.privacy run              # adds what is missing to results/privacy/digits.csv (15 minutes on a core)
    python -m benchmarks.privacy figure           # draws docs/img/privacy.svg
    python -m benchmarks.privacy table            # prints the means as Markdown

Two populations of the embedded digits, on a network of 2,410 parameters (64-32-10):
crowd: 10,000 simulated clients with four examples each, drawn with replacement from the 1,437 training digits and shifted
by at most a pixel either way, so that people are many and no two alike; 500 a round. hundred: the 1,437 training digits
dealt out to 100 clients; 50 a round. Both are scored on the 360 test digits, as they are.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import nn

import anybit
from anybit.data.sources import digits
from anybit.report import style

ROOT = Path(__file__).parents[1]
TABLE, PICTURE = ROOT / "results/privacy/digits.csv", ROOT / "docs/img/privacy.svg"
NOISES = (0.0, 0.6, 1.2, 2.4, 4.8, 9.6)
"""z; 0: clipped, without noise and without any promise."""
SEEDS = (1, 2)
ROUNDS, CLIP = 60, 0.2
VARIANTS: dict[str, Callable[[], anybit.Variant]] = {
    "FedAvg": anybit.baseline, "MQAT": anybit.mqat, "carousel": anybit.carousel}
WIDTHS = ("FP32", "W8", "W4", "W2")
COHORTS = {"crowd": 500, "hundred": 50}
COLUMNS = ("population", "variant", "noise", "seed", "clients", "cohort", "epsilon", "delta", *WIDTHS)
Clients = list[tuple[np.ndarray, np.ndarray]]


def crowd(x: np.ndarray, y: np.ndarray, clients: int = 10_000, each: int = 4) -> Clients:
    """Draw examples with replacement and shift each by −1, 0 or 1 pixels along both axes."""
    draw = np.random.default_rng(0)
    chosen = draw.integers(len(y), size=clients * each)
    shifted, around = x[chosen], np.pad(x[chosen], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=x.min())
    shifts, (height, width) = draw.integers(3, size=(len(chosen), 2)), x.shape[2:]
    for down in range(3):
        for right in range(3):
            here = (shifts == [down, right]).all(1)
            shifted[here] = around[here][:, :, down:down + height, right:right + width]
    return [(shifted[i:i + each], y[chosen[i:i + each]]) for i in range(0, len(chosen), each)]


def hundred(x: np.ndarray, y: np.ndarray) -> Clients:
    """Deal the examples out to 100 clients."""
    order = np.random.default_rng(0).permutation(len(y))
    return [(x[part], y[part]) for part in np.array_split(order, 100)]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def trained(clients: Clients, test: tuple[np.ndarray, np.ndarray], variant: str, noise: float, seed: int,
            cohort: int) -> dict[str, Any]:
    """Train one model; return its scores and its ε."""
    privacy = anybit.PrivacyOptions(CLIP, noise, sampling="poisson") if noise else anybit.PrivacyOptions(CLIP)
    fitted = anybit.fit(network(seed), clients, test, VARIANTS[variant](), rounds=ROUNDS, cohort=cohort, seed=seed,
                        client=anybit.ClientOptions(lr=0.3, batch_size=16, epochs=2),
                        server=anybit.ServerOptions(optimizer="adam", lr=0.02), privacy=privacy,
                        evaluation=anybit.EvaluationOptions(every=ROUNDS, bits=(32, 8, 4, 2), sites=("W",), steps=()),
                        engine="stacked", device="cpu", threads=1, compute=anybit.ComputeOptions(chunk=125), progress=False)
    promise = fitted.evaluation.get("privacy", {"epsilon": math.inf, "delta": ""})
    return {"epsilon": promise["epsilon"], "delta": promise["delta"],
            **{width: round(fitted.scores[width].metric, 2) for width in WIDTHS}}


def run() -> None:
    """Train what the table lacks."""
    data = digits()
    x, test = (data.pipeline(part.x).numpy() for part in (data.train, data.test))  # type: ignore[union-attr]
    populations = {"crowd": crowd(x, data.train.y.numpy()), "hundred": hundred(x, data.train.y.numpy())}
    done = {_key(row) for row in rows()} if TABLE.exists() else set()
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with open(TABLE, "a", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not done:
            lines.writeheader()
        for seed, population in itertools.product(SEEDS, reversed(populations)):
            clients = populations[population]
            for noise in NOISES:
                for variant in VARIANTS:
                    row: dict[str, Any] = {"population": population, "variant": variant, "noise": noise, "seed": seed,
                                           "clients": len(clients), "cohort": COHORTS[population]}
                    if _key(row) not in done:
                        lines.writerow(row | trained(clients, (test, data.test.y.numpy()), variant, noise, seed,
                                                     COHORTS[population]))
                        file.flush()


def _key(row: dict[str, Any]) -> tuple[str, str, float, int]:
    return row["population"], row["variant"], float(row["noise"]), int(row["seed"])


def rows() -> list[dict[str, Any]]:
    with open(TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def means(population: str) -> Iterator[tuple[str, float, float, dict[str, list[float]]]]:
    """Give (variant, z, ε, {width: the seeds' scores}) of a population."""
    of = [row for row in rows() if row["population"] == population]
    for variant in VARIANTS:
        for noise in NOISES:
            runs = [row for row in of if row["variant"] == variant and float(row["noise"]) == noise]
            if runs:
                yield variant, noise, float(runs[0]["epsilon"]), {w: [float(row[w]) for row in runs] for w in WIDTHS}


def table() -> None:
    """Print mean ± standard deviation over the seeds."""
    for population in COHORTS:
        print(f"\n| {population}: ε | z | " + " | ".join(f"{v} {w}" for v in VARIANTS for w in WIDTHS) + " |")
        print("|---|---|" + "---|" * (len(VARIANTS) * len(WIDTHS)))
        found = {(variant, noise): (epsilon, scores) for variant, noise, epsilon, scores in means(population)}
        for noise in NOISES:
            epsilon = next(epsilon for (_, z), (epsilon, _) in found.items() if z == noise)
            cells = [_cell(found[variant, noise][1][width]) for variant in VARIANTS for width in WIDTHS]
            print(f"| {'none' if math.isinf(epsilon) else f'{epsilon:.3g}'} | {noise:g} | " + " | ".join(cells) + " |")


def _cell(scores: Sequence[float]) -> str:
    return f"{fmean(scores):.1f}" + (f" ± {stdev(scores):.1f}" if len(scores) > 1 else "")


def figure() -> None:
    """Draw the accuracy in full precision and at two bits over ε."""
    with style.styled():
        drawing = style.figure(style.FULL, 3.1)
        panels = drawing.subplots(1, 2, sharey=True)
        handles, names = list[Any](), list[str]()
        for axes, (population, cohort) in zip(panels, COHORTS.items(), strict=True):
            finite = sorted(e for _, _, e, _ in means(population) if math.isfinite(e))
            beyond = finite[-1] * (finite[-1] / finite[0]) ** 0.2
            for i, variant in enumerate(VARIANTS):
                for width, line in (("FP32", "-"), ("W2", (0, (3, 1.5)))):
                    points = sorted((min(e, beyond), fmean(s[width]), min(s[width]), max(s[width]))
                                    for v, _, e, s in means(population) if v == variant)
                    x, y, low, high = (np.array(column) for column in zip(*points, strict=True))
                    (drawn,) = axes.plot(x, y, color=style.colour(i), marker=style.marker(i), linestyle=line)
                    axes.fill_between(x, low, high, color=style.colour(i), alpha=0.12, linewidth=0)
                    if axes is panels[0]:
                        handles.append(drawn)
                        names.append(f"{variant} {width}")
            axes.set_xscale("log")
            axes.set_xticks([*finite[::len(VARIANTS)], beyond], [*(f"{e:.2g}" for e in finite[::len(VARIANTS)]), "none"],
                            minor=False)
            axes.minorticks_off()
            clients = next(row["clients"] for row in rows() if row["population"] == population)
            axes.set_title(f"{int(clients):,} clients, {cohort} a round")
            axes.set_xlabel("ε; none: no noise")
        panels[0].set_ylabel("test accuracy, %")
        style.legend(drawing, handles, names)
        PICTURE.write_bytes(style.render(style.Plot("privacy", "", "", drawing)).svg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "figure", "table"))
    {"run": run, "figure": figure, "table": table}[parser.parse_args().what]()
