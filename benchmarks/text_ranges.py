"""Ranges and schedules for networks over text, tried on other texts than the recipes': the sources of Python's own modules.

    python -m benchmarks.text_ranges runs/text-ranges results/text/ranges.csv          # or go on with it

Next characters predicted correctly in the held-out ends of the texts, in percent, after 100 rounds.
"""

from __future__ import annotations

import argparse
import csv
import json
import sysconfig
from pathlib import Path

from anybit.config import from_recipe
from anybit.sweeps.plan import PlannedRun, SweepFolder
from anybit.sweeps.schedule import SweepWatch, train_sweep

LEAST, SKIPPED, TAKEN = 8000, 2000, 6000
"""Characters: of a module that is taken at all, those before its part, and those of its part."""

FALLING, CONSTANT = "server.schedule=linear", "server.schedule=constant"
OWN = ("ranges.weights=mse",)


def wide(spread: float) -> tuple[str, ...]:
    """Return the settings of ranges of ±spread root mean squares."""
    return "ranges.weights=rms", f"ranges.spread={spread}"


ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "lstm, carousel, mse": ("carousel-lstm", (*OWN, FALLING)),
    **{f"lstm, carousel, {spread} rms": ("carousel-lstm", (*wide(spread), FALLING)) for spread in (2.5, 3.0, 3.5)},
    "lstm, carousel, 3.0 rms, constant": ("carousel-lstm", (*wide(3.0), CONSTANT)),
    "lstm, mqat, 3.0 rms": ("mqat-lstm", (*wide(3.0), FALLING)),
    "lstm, mqat, 3.0 rms, narrow": ("mqat-lstm", (*wide(3.0), FALLING, "sites.weight_grid=narrow")),
    "lstm, fedavg": ("fedavg-lstm", (FALLING,)),
    "lstm, fedavg, constant": ("fedavg-lstm", (CONSTANT,)),
    "transformer, carousel, mse": ("carousel-transformer", (*OWN, FALLING)),
    "transformer, carousel, 3.0 rms": ("carousel-transformer", (*wide(3.0), FALLING)),
}
"""{name: (recipe, what differs from it)}."""


def write_texts(folder: Path) -> None:
    """Write a part of every longer module of the running Python into a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = module.read_text(errors="ignore")
        if len(text) > LEAST:
            (folder / f"{module.stem}.txt").write_text(text[SKIPPED:SKIPPED + TAKEN])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    write_texts(texts := given.folder / "texts")
    names = {name.replace(", ", "-").replace(" ", "-"): name for name in ARMS}
    common = (f"data.folder={texts.absolute()}", "seed=1", "engine=sequential", "threads=1")
    runs = [PlannedRun(f"{folder}-seed1", f"text/{recipe}", (*common, *settings), 1,
                       from_recipe(f"text/{recipe}", (*common, *settings)))
            for folder, (recipe, settings) in zip(names, ARMS.values(), strict=True)]
    watch = SweepWatch(on_state=lambda name, state, reason: print(name, state, reason, flush=True))
    train_sweep(SweepFolder.begin(given.folder / "runs", runs), watch)
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("network, variant, ranges", "bits", "accuracy"))
        for folder, name in names.items():
            last = json.loads((given.folder / "runs" / f"{folder}-seed1" / "metrics.jsonl").read_text().splitlines()[-1])
            for width, score in last["evaluation"]["scores"].items():
                writer.writerow((name, width.removeprefix("W").replace("FP32", "32"), f"{score['metric']:.4f}"))


if __name__ == "__main__":
    main()
