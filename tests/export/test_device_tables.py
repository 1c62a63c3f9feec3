"""The tables of docs/export.md on what a lower width buys are those of the benchmarks' files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import device_tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("table", [device_tables.runtimes, device_tables.networks])
def test_the_docs_have_the_figures_of_the_files(table: Callable[[], list[str]]) -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in text, "print them anew: python -m benchmarks.device_tables"


def test_two_bits_take_fewer_instructions_and_a_quarter_of_the_weights() -> None:
    """W2A8 on Cortex-M7: at most 0.95 of the instructions of W8A8 and a quarter of its weights, in rows of whole bytes."""
    with (ROOT / "results" / "devices" / "cortex-m.csv").open(newline="") as file:
        rows = {(row["network"], row["width"]): row for row in csv.DictReader(file)}
    for row in rows.values():
        assert row["accuracy"] == row["evaluation"] or int(row["changed_by_float64"] or 0) > 0, row
    for network in {network for network, _ in rows}:
        few, many = rows[network, "W2A8"], rows[network, "W8A8"]
        assert int(few["packed"]) <= 0.26 * int(many["packed"]), network
        # Depthwise convolutions, norms and gates of the MobileNet cost the same at every width.
        most = 1.0 if network == "mobile-digits" else 0.95
        assert int(few["instructions_m7"]) <= most * int(many["instructions_m7"]), network
