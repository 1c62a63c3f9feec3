"""docs/file-formats.md names what files hold: every file of a run, every key and operation of an archive."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from anybit.export.archive import KEYS, write_archive
from anybit.export.artifact import Artifact
from anybit.export.fleet import Device
from anybit.export.nodes import OPERATIONS
from anybit.files.safetensors import load
from anybit.fleet.registry import Listed
from anybit.quant.grid import Width
from anybit.sweeps.plan import PlannedRun
from anybit.sweeps.results import Result
from anybit.training import ledger, run_folder
from tests.export.archives import made, resnet, tiny

PAGE = (Path(__file__).parents[2] / "docs/file-formats.md").read_text(encoding="utf-8")


def section(title: str) -> set[str]:
    """The words in code of a section."""
    text = next(part for part in re.split(r"^## ", PAGE, flags=re.M) if part.startswith(title))
    return set(re.findall(r"[\w./-]+", " ".join(re.findall(r"`([^`]+)`", text))))


def test_every_file_of_a_run_is_named(run_path: Path) -> None:
    written = {str(path.relative_to(run_path)) for path in run_path.rglob("*") if path.is_file()}
    assert {"config.json", "manifest.json", "evaluation.json"} <= written
    named = {re.sub(r"round-\d+", "round-000123", name) for name in written}
    assert sorted(named - section("A run")) == []
    declared = {*re.findall(r"[\w-]+\.(?:jsonl?|safetensors)", run_folder.__doc__ or ""), *ledger.RESULTS, "fleet.jsonl"}
    assert sorted(declared - section("A run")) == []


@pytest.mark.parametrize("name", ["evaluation.json", "metrics.jsonl", "timing.jsonl"])
def test_every_key_of_its_records_is_named(run_path: Path, name: str) -> None:
    entries = [json.loads(line) for line in (run_path / name).read_text().splitlines()] if name.endswith("l") else \
        [json.loads((run_path / name).read_text())]
    assert sorted({key for entry in entries for key in entry} - section("A run")) == []


def test_every_key_of_an_archive_is_named(tmp_path: Path) -> None:
    keys, attributes, entries = set[str](), set[str](), set[str]()
    for network in (resnet, tiny):
        write_archive(tmp_path / "m", made(network, "centred"), Width(4, 8))
        tensors, metadata = load(tmp_path / "m")
        keys |= set(metadata)
        graph, packed, sites = (json.loads(metadata[key]) for key in ("graph", "packed", "activations"))
        attributes |= {key for node in graph for key in node}
        entries |= {key for table in (packed, sites) for entry in table.values() for key in entry}
        entries |= {key for part in ("input", "output", "test") for key in json.loads(metadata[part])}
        entries |= {name for name in tensors if name.startswith("test/")}
    assert keys <= set(KEYS)
    assert sorted({*KEYS, *attributes, *entries} - section("The archive")) == []


def test_every_operation_is_named() -> None:
    rows = {op for row in re.findall(r"^\| (`[^|]+) \|", PAGE, re.M) for op in re.findall(r"`(\w+)`", row)}
    assert sorted(set(OPERATIONS) - rows) == []


def test_the_page_holds_for_other_files() -> None:
    for title, kind in (("An export", Artifact), ("Fleets", Device), ("Fleets", Listed), ("Sweeps", PlannedRun),
                        ("Sweeps", Result)):
        known = {field.name for field in fields(kind)} - {"minimum_onnxruntime", "known_wrong"}
        assert sorted(known - section(title)) == [], kind.__name__
