"""The evaluations of a sweep over its rounds, finished or not; Tiny-ImageNet's beside the paper's figures after 4,500.

    python -m benchmarks.rounds collect runs/tiny results/readings/tinyimagenet.csv
    python -m benchmarks.rounds figure results/readings/tinyimagenet.csv docs/img/tinyimagenet.svg
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from anybit.report import style
from anybit.reproduction.facts import facts

WIDTHS = {"FP32": 32, "W4": 4, "W3": 3, "W2": 2}
"""{column of the results: bits in the paper's table}, those that are drawn."""


def collect(sweep: Path, out: Path) -> None:
    """Write (run, round, width, accuracy) of every evaluation."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("run", "round", "width", "accuracy"))
        for metrics in sorted(sweep.glob("*/metrics.jsonl")):
            for line in map(json.loads, metrics.read_text().splitlines()):
                for width, score in line.get("evaluation", {}).get("scores", {}).items():
                    writer.writerow((metrics.parent.name, line["round"], width, f"{score['metric']:.2f}"))


def figure(results: Path, out: Path) -> None:
    """Draw a panel per variant, accuracy over rounds in a line per width, dashed where the paper ends."""
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = facts().tables["tinyimagenet_resnet18_w"].columns
    runs = sorted({row["run"] for row in rows})
    with style.styled():
        drawing = style.figure(style.FULL, 2.9)
        panels = drawing.subplots(1, len(runs), sharey=True, squeeze=False)[0]
        for run, axes in zip(runs, panels, strict=True):
            column, lines = columns[run.partition("-")[0]], []
            for number, (width, bits) in enumerate(WIDTHS.items()):
                mine = [row for row in rows if (row["run"], row["width"]) == (run, width)]
                lines += axes.plot([int(row["round"]) for row in mine], [float(row["accuracy"]) for row in mine],
                                   color=style.colour(number), marker=style.marker(number))
                axes.axhline(column.values[bits], color=style.colour(number), linestyle="--", linewidth=1)
            axes.set_title(column.title)
            axes.set_xlabel("round")
        panels[0].set_ylabel("test accuracy in percent")
        style.legend(drawing, lines, [f"{bits} bits" for bits in WIDTHS.values()])
        out.write_bytes(style.render(style.Plot(out.stem, "", "", drawing)).svg)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["collect", "figure"])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    (collect if given.verb == "collect" else figure)(given.source, given.out)


if __name__ == "__main__":
    main()
