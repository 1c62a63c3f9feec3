"""What the documentation and the cards say of runtimes is what was measured in them."""

from __future__ import annotations

import csv
from dataclasses import replace

import onnx
import pytest

from anybit.export.exporting import Exporter
from anybit.export.lowbit import storage
from anybit.export.report import write_report
from anybit.export.runtimes import known_wrong, minimum_onnxruntime
from anybit.quant.grid import Width
from tools import runtimes


def test_the_page_has_the_table_of_the_file() -> None:
    text = runtimes.PAGE.read_text()
    assert runtimes.page(text) == text


@pytest.mark.parametrize("opset", runtimes.OPSETS)
def test_the_versions_of_cards_are_the_measured_ones(opset: int) -> None:
    with runtimes.RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    for width in runtimes.WIDTHS:
        stored = [storage(Width.parse(width).weights, opset)]
        assert minimum_onnxruntime(opset, stored) == runtimes._oldest(rows, "onnxruntime", opset, width), (opset, width)
        assert bool(known_wrong(stored)) == (" in " in runtimes._oldest(rows, "openvino", opset, width)), (opset, width)


def test_an_opset_between_two_needs_what_the_next_needs() -> None:
    assert minimum_onnxruntime(19, ["uint8"]) == minimum_onnxruntime(21, ["uint8"])
    assert minimum_onnxruntime(26, ["uint8"]) == ""


def test_the_card_names_runtimes(elsewhere: Exporter) -> None:
    exporter = replace(elsewhere, options=replace(elsewhere.options, opset=25))
    artifact = exporter.export(Width(2, 32))
    report = write_report(exporter, {("W2", "onnx"): artifact}, None, {})
    card = (exporter.folder / "README.md").read_text()
    assert f"`model.w2.onnx` needs ONNX Runtime {artifact.minimum_onnxruntime} or newer." in card
    assert "`model.w2.onnx`: OpenVINO 2026.4.1 does not load native uint2" in card
    assert report["artifacts"][0]["known_wrong"] == artifact.known_wrong
    assert not exporter.export(Width(3, 32)).known_wrong


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7])
def test_nothing_is_shifted_to_unpack_a_stream(bits: int, elsewhere: Exporter) -> None:
    """OpenVINO on x86-64 shifts bytes wrongly."""
    file = elsewhere.folder / elsewhere.export(Width(bits, 32)).file
    operations = {node.op_type for node in onnx.load(file).graph.node}
    assert "BitwiseAnd" in operations
    assert "BitShift" not in operations
