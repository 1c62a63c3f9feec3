"""What compiling costs at the start and saves later: rounds of run folders that trained side by side in one program.

    python benchmarks/first_rounds.py results/performance/first-rounds.csv "KURE, compiled=runs/kure" …

A folder holds the runs of one sweep. A round of the program is its runs' shares together; the first one waits for compilers
and the first capture. If something waits after one run's first round, the shares of the others contain it: the least counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from pathlib import Path


def measured(folder: Path) -> tuple[int, int, float, float]:
    """Return a program's runs and clients, the seconds of its first round and the milliseconds of later ones."""
    runs = sorted(path.parent for path in folder.glob("*/timing.jsonl"))
    cohort = json.loads((runs[0] / "config.json").read_text())["cohort"]
    seconds = [[json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()] for run in runs]
    later = [statistics.median(each[20:]) for each in seconds]
    return len(runs), len(runs) * cohort, len(runs) * min(each[0] for each in seconds), 1000 * sum(later)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("programs", nargs="+", metavar="LABEL=FOLDER")
    given = parser.parse_args()
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("program", "runs side by side", "clients", "first round in s", "later rounds in ms (median)"))
        for label, _, folder in (program.rpartition("=") for program in given.programs):
            runs, clients, first, later = measured(Path(folder))
            writer.writerow((label, runs, clients, f"{first:.1f}", f"{later:.1f}"))


if __name__ == "__main__":
    main()
