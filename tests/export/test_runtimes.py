"""What the documentation and the cards say of runtimes is what was measured in them."""

from __future__ import annotations

import csv

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
        loads = runtimes._oldest(rows, "openvino", opset, width)
        assert any("does not load" in words for words in known_wrong(stored)) == ("does not load" in loads)


def test_an_opset_between_two_needs_what_the_next_needs() -> None:
    assert minimum_onnxruntime(19, ["uint8"]) == minimum_onnxruntime(21, ["uint8"])
    assert minimum_onnxruntime(26, ["uint8"]) == ""


def test_the_card_names_runtimes(elsewhere: Exporter) -> None:
    artifact = elsewhere.export(Width(3, 32))
    report = write_report(elsewhere, {("W3", "onnx"): artifact}, None, {})
    card = (elsewhere.folder / "README.md").read_text()
    assert f"`model.w3.onnx` needs ONNX Runtime {artifact.minimum_onnxruntime} or newer." in card
    assert "`model.w3.onnx`: OpenVINO 2026.4.1 on x86-64 computes weights in bit streams wrongly" in card
    assert report["artifacts"][0]["known_wrong"] == artifact.known_wrong
    assert not elsewhere.export(Width(8, 32)).known_wrong
