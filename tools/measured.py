"""Write the tables of docs/deployment.md, privacy.md and reliability.md anew from the files in results/:

    python tools/measured.py
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
Rows = list[dict[str, str]]
WIDTHS = ("FP32", "W8", "W4", "W2")
MODES = {"sequential": "sequential", "stacked": "stacked", "sweep": "sweep, one run after another",
         "sweep-stacked": "sweep, runs side by side", "processes": "processes (two workers)",
         "torchrun": "torchrun (two ranks; the launcher is killed, and they end with it)"}
READERS = {
    "recipe": "recipe (TOML)", "config": "`config.json`", "checkpoint": "checkpoint, with the resume of a training",
    "steps": "step table", "archive": "export archive", "manifest": "data set: manifest", "npy": "data set: `.npy`",
    "split": "split", "digests": "`manifest.json` of a run", "links": "runs whose parts are links",
    "results": "results file, with the comparison", "sweep": "`sweep.json`", "evaluation": "`evaluation.json`",
    "metrics": "`metrics.jsonl`", "timing": "`timing.jsonl`", "fleet": "fleet file (TOML)",
    "devices": "`devices.toml`, with a device added", "gate": "a request to the gate", "hello": "a device's hello",
    "answer": "a device's answer: values", "delta": "a device's answer: tensors",
    "delta4": "a device's answer: tensors in 4 bits"}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" if cells else "|---" * len(head) + "|" for cells in (head, [], *rows)]


def read_csv(name: str) -> Rows:
    with open(RESULTS / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def attacks() -> list[str]:
    """Return mean accuracies, full precision · 2 bits, of attacks and defences."""
    means = {(row["attack"], row["defence"], row["bits"]): float(row["mean"]) for row in read_csv("security/attacks.csv")}
    names, defences = ([*dict.fromkeys(column)] for column in itertools.islice(zip(*means, strict=True), 2))
    return table(["2 of 10 devices", *defences], [
        [name, *(f"{means[name, by, 'FP32']:.1f} · {means[name, by, '2 bits']:.1f}" for by in defences)] for name in names])


def privacy(file: str, population: str, title: str) -> list[str]:
    """Return mean accuracies of one population against ε."""
    of = [row for row in read_csv(f"privacy/{file}.csv") if row["population"] == population]
    columns = [*itertools.product(dict.fromkeys(row["variant"] for row in of), WIDTHS)]
    rows = list[list[str]]()
    for noise in sorted({float(row["noise"]) for row in of}):
        here = [row for row in of if float(row["noise"]) == noise]
        epsilon = float(here[0]["epsilon"])
        scores = [fmean(float(row[width]) for row in here if row["variant"] == variant) for variant, width in columns]
        rows.append(["none" if math.isinf(epsilon) else f"{epsilon:.3g}", f"{noise:g}", *(f"{each:.1f}" for each in scores)])
    return table([f"{title}: ε", "z", *map(" ".join, columns)], rows)


def crashes() -> list[str]:
    """Return kills and what came of them, by mode."""
    found = {text: json.loads((RESULTS / f"reliability/crash-{mode}.json").read_text()) for mode, text in MODES.items()}
    counts = {text: [each["kills"], each["while_writing"], each["before_the_run"], each["runs"], len(each["differences"])]
              for text, each in found.items()}
    counts["together"] = [sum(column) for column in zip(*counts.values(), strict=True)]
    return table(["mode", "kills", "while a file was written", "before there was a run", "runs", "files that differ"],
                 [[mode, *map(str, row)] for mode, row in counts.items()])


def damages() -> list[str]:
    """Return damaged files and what came of them, by reader."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / "reliability/fuzz.json").read_text())["readers"]
    rows = [[READERS[name], f"{found[name]['files']:,}", f"{found[name]['refused']:,}", f"{found[name]['seconds'] / 60:.1f}",
             f"{found[name]['cpu_seconds'] / 60:.1f}", str(len(found[name]["failures"]))] for name in READERS]
    every = [found[name] for name in READERS]
    rows.append(["together", *(f"{sum(each[what] for each in every):,}" for what in ("files", "refused")),
                 *(f"{sum(each[what] for each in every) / 60:.0f}" for what in ("seconds", "cpu_seconds")),
                 str(sum(len(each["failures"]) for each in every))])
    return table(["file", "damaged files read", "refused", "minutes", "of processor time", "failures"], rows)


PAGES: Mapping[str, list[Callable[[], list[str]]]] = {
    "docs/deployment.md": [attacks],
    "docs/privacy.md": [lambda: privacy("digits", "crowd", "10,000 clients"),
                        lambda: privacy("digits", "hundred", "100 clients"),
                        lambda: privacy("femnist", "writers", "184 writers")],
    "docs/reliability.md": [crashes, damages]}


def page(name: str) -> str:
    """Return a page with its tables made anew: each in place of the one whose first cell is the same."""
    lines = (ROOT / name).read_text(encoding="utf-8").split("\n")
    for made in PAGES[name]:
        new = made()
        start = next(i for i, line in enumerate(lines) if line.startswith(new[0].split(" | ")[0] + " |"))
        end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
        lines[start:end] = new
    return "\n".join(lines)


def main() -> None:
    for name in PAGES:
        (ROOT / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
