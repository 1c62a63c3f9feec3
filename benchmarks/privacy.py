"""Accuracy against ε, at 32 to 2 bits: does rounding help or hurt under the noise of differential privacy?

    python -m benchmarks.privacy run              # adds what is missing to results/privacy/digits.csv (25 minutes on a core)
    python -m benchmarks.privacy run writers      # the same for results/privacy/femnist.csv (FEMNIST must be prepared)
    python -m benchmarks.privacy figure           # draws docs/img/privacy.svg
    python tools/measured.py                      # makes the tables in docs/privacy.md of them

Two populations of the embedded digits, on a network of 2,410 parameters (64-32-10):
crowd: 10,000 simulated clients with four examples each, drawn with replacement from the 1,437 training digits and shifted
by at most a pixel either way, so that people are many and no two alike; 500 a round. hundred: the 1,437 training digits
dealt out to 100 clients; 50 a round. Both are scored on the 360 test digits, as they are. And one of FEMNIST, on LeNet-5:
writers: all 184 that are prepared, each a client, a quarter of them a round, for 10 rounds of two local steps.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import anybit
from anybit.data.examples import Data
from anybit.data.sources import digits, femnist
from anybit.models.lenet import lenet5
from anybit.report import style

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "results/privacy", ROOT / "docs/img/privacy.svg"
NOISES = (0.0, 0.6, 1.2, 2.4, 4.8, 9.6)
"""z; 0: clipped, without noise and without any promise."""
VARIANTS: dict[str, Callable[[], anybit.Variant]] = {
    "FedAvg": anybit.baseline, "MQAT": anybit.mqat, "carousel": anybit.carousel}
WIDTHS = ("FP32", "W8", "W4", "W2")
COLUMNS = ("population", "variant", "noise", "seed", "clients", "cohort", "epsilon", "delta", *WIDTHS)
Clients = list[tuple[np.ndarray, np.ndarray]]
Test = tuple[np.ndarray, np.ndarray]


def crowd(clients: int = 10_000, each: int = 4) -> tuple[Clients, Test]:
    """Draw examples with replacement and shift each by −1, 0 or 1 pixels along both axes."""
    draw, (x, y), test = np.random.default_rng(0), *arrays(digits())
    chosen = draw.integers(len(y), size=clients * each)
    shifted, around = x[chosen], np.pad(x[chosen], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=x.min())
    shifts, (height, width) = draw.integers(3, size=(len(chosen), 2)), x.shape[2:]
    for down in range(3):
        for right in range(3):
            here = (shifts == [down, right]).all(1)
            shifted[here] = around[here][:, :, down:down + height, right:right + width]
    return [(shifted[i:i + each], y[chosen[i:i + each]]) for i in range(0, len(chosen), each)], test


def hundred() -> tuple[Clients, Test]:
    """Deal the examples out to 100 clients."""
    (x, y), test = arrays(digits())
    order = np.random.default_rng(0).permutation(len(y))
    return [(x[part], y[part]) for part in np.array_split(order, 100)], test


def writers() -> tuple[Clients, Test]:
    """Make every prepared writer of FEMNIST a client."""
    data = femnist(writers=0, normalize=True)
    (x, y), test = arrays(data)
    ids = np.asarray(data.ids)
    return [(x[ids == writer], y[ids == writer]) for writer in np.unique(ids)], test


def arrays(data: Data) -> tuple[Test, Test]:
    """Return training and test examples as a model gets them."""
    train, test = ((data.pipeline(part.x).numpy(), part.y.numpy())  # type: ignore[union-attr]
                   for part in (data.train, data.test))
    return train, test


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class Population:
    """Clients, and how they train; the same for every ε and variant."""

    file: str
    clients: Callable[[], tuple[Clients, Test]]
    cohort: int
    rounds: int = 60
    clip: float = 0.2
    network: Callable[[], nn.Module] = network
    client: anybit.ClientOptions = anybit.ClientOptions(lr=0.3, batch_size=16, epochs=2, batches="full")
    server: anybit.ServerOptions = anybit.ServerOptions(optimizer="adam", lr=0.02)
    noises: Sequence[float] = NOISES
    variants: Sequence[str] = tuple(VARIANTS)
    seeds: Sequence[int] = (1, 2, 3)
    engine: Literal["sequential", "stacked"] = "stacked"
    compute: anybit.ComputeOptions = anybit.ComputeOptions(chunk=125)

    @property
    def table(self) -> Path:
        return RESULTS / f"{self.file}.csv"


POPULATIONS = {
    "crowd": Population("digits", crowd, 500), "hundred": Population("digits", hundred, 50),
    "writers": Population("femnist", writers, 46, 10, 0.3, lambda: lenet5(1, 28, 62),
                          anybit.ClientOptions(lr=0.1, batch_size=32, local_steps=2, batches="full"),
                          anybit.ServerOptions(optimizer="adam", lr=0.003), (0.0, 0.6, 1.2), tuple(VARIANTS), (1, 2, 3),
                          "sequential", anybit.ComputeOptions(convolution="native"))}
DIGITS = ("crowd", "hundred")


def trained(people: Population, clients: Clients, test: Test, variant: str, noise: float, seed: int) -> dict[str, Any]:
    """Train one model; return its scores and its ε."""
    privacy = anybit.PrivacyOptions(people.clip, noise, sampling="poisson") if noise else anybit.PrivacyOptions(people.clip)
    torch.manual_seed(seed)
    fitted = anybit.fit(people.network(), clients, test, VARIANTS[variant](), rounds=people.rounds, cohort=people.cohort,
                        seed=seed, client=people.client, server=people.server, privacy=privacy,
                        ranges=anybit.RangeOptions(follow=False),  # of all variants alike, as the tables were made
                        evaluation=anybit.EvaluationOptions(every=people.rounds, bits=(32, 8, 4, 2), sites=("W",), steps=()),
                        engine=people.engine, device="cpu", threads=1, compute=people.compute, progress=False)
    promise = fitted.evaluation.get("privacy", {"epsilon": math.inf, "delta": ""})
    return {"epsilon": promise["epsilon"], "delta": promise["delta"],
            **{width: round(fitted.scores[width].metric, 2) for width in WIDTHS}}


def run(names: Sequence[str]) -> None:
    """Train what the tables lack."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name in names:
        people, (clients, test) = POPULATIONS[name], POPULATIONS[name].clients()
        done = {_key(row) for row in rows(people)}
        with open(people.table, "a", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if not file.tell():
                lines.writeheader()
            for seed, noise, variant in itertools.product(people.seeds, people.noises, people.variants):
                row: dict[str, Any] = {"population": name, "variant": variant, "noise": noise, "seed": seed,
                                       "clients": len(clients), "cohort": people.cohort}
                if _key(row) not in done:
                    lines.writerow(row | trained(people, clients, test, variant, noise, seed))
                    file.flush()


def _key(row: dict[str, Any]) -> tuple[str, str, float, int]:
    return row["population"], row["variant"], float(row["noise"]), int(row["seed"])


def rows(people: Population) -> list[dict[str, Any]]:
    if not people.table.exists():
        return []
    with open(people.table, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def means(population: str) -> Iterator[tuple[str, float, float, dict[str, list[float]]]]:
    """Give (variant, z, ε, {width: the seeds' scores}) of a population."""
    of = [row for row in rows(POPULATIONS[population]) if row["population"] == population]
    for variant in VARIANTS:
        for noise in NOISES:
            runs = [row for row in of if row["variant"] == variant and float(row["noise"]) == noise]
            if runs:
                yield variant, noise, float(runs[0]["epsilon"]), {w: [float(row[w]) for row in runs] for w in WIDTHS}


def figure() -> None:
    """Draw the accuracy in full precision and at two bits over ε."""
    with style.styled():
        drawing = style.figure(style.FULL, 3.1)
        panels = drawing.subplots(1, len(POPULATIONS))
        handles, names = list[Any](), list[str]()
        for axes, population in zip(panels, POPULATIONS, strict=True):
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
            known = next(row for row in rows(POPULATIONS[population]) if row["population"] == population)
            data = {"digits": "digits", "femnist": "FEMNIST"}[POPULATIONS[population].file]
            axes.set_title(f"{data}: {int(known['clients']):,} clients, {known['cohort']} a round")
            axes.set_xlabel("ε; none: no noise")
        panels[0].set_ylabel("test accuracy, %")
        style.legend(drawing, handles, names)
        PICTURE.write_bytes(style.render(style.Plot("privacy", "", "", drawing)).svg)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "figure"))
    parser.add_argument("populations", nargs="*", default=[*reversed(DIGITS)], metavar="POPULATION",
                        help=f"of {', '.join(POPULATIONS)}; default: the digits'")
    given = parser.parse_args()
    if given.what == "run":
        run(given.populations)
    else:
        figure()
