"""An artifact that does not compute what was evaluated is rejected, whatever is wrong with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import anybit
from anybit.data.examples import IGNORED
from anybit.errors import Rejected
from anybit.export import exporting, onnx_model
from anybit.export.exporting import Exporter
from anybit.export.reference import Additions, outputs, reference
from anybit.export.verify import missing_kernels, verdict
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from tests.export.command import TRUSTED, run
from tests.export.test_onnx import untrained


def test_wrong_answers_are_rejected(elsewhere: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    right = exporting.onnx_outputs
    monkeypatch.setattr(exporting, "onnx_outputs", lambda path, subject: right(path, subject).roll(1, 1))
    artifact = elsewhere.export(Width(4, 8))
    assert artifact.rejected
    assert re.search(r"more than [\d.]+ apart", artifact.verdict.problem)
    assert artifact.file == "model.w4a8.onnx.rejected"
    assert [p.name for p in elsewhere.folder.glob("model.*")] == ["model.w4a8.onnx.rejected"]
    monkeypatch.undo()
    assert not elsewhere.export(Width(4, 8)).rejected
    assert [p.name for p in elsewhere.folder.glob("model.*")] == ["model.w4a8.onnx"], "a good one replaces it"


@pytest.mark.parametrize(("width", "problem"), [
    (Width(4, 32), "the relative error of its outputs is 0.5, more than 0.05"), (Width(4, 8), "")])
def test_other_outputs_with_the_same_decisions(elsewhere: Exporter, monkeypatch: pytest.MonkeyPatch, width: Width,
                                               problem: str) -> None:
    """Outputs of half the size around their mean: where only weights are rounded, another computation."""
    right = exporting.onnx_outputs

    def shrunk(path: Path, subject: Any) -> torch.Tensor:
        found = right(path, subject)
        return (found - found.mean(0)) / 2 + found.mean(0)
    monkeypatch.setattr("anybit.export.verify.same_decisions", lambda left, right: 1.0)
    monkeypatch.setattr("anybit.export.verify.metric", lambda subject, found: 80.0)
    monkeypatch.setattr(exporting, "onnx_outputs", shrunk)
    assert elsewhere.export(width).verdict.problem == problem


def test_two_decisions_of_a_small_test_set_are_no_problem(elsewhere: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = len(elsewhere.subject.data.test)
    assert examples < 400
    for decisions, rejected in ((2, False), (3, True)):
        found = iter([80.0, 80.0, 80.0 - 99.9 * decisions / examples])
        monkeypatch.setattr("anybit.export.verify.metric", lambda subject, outputs, found=found: next(found))
        assert elsewhere.export(Width(4, 8)).rejected == rejected


@pytest.mark.parametrize(("ignored", "targets"), [(0, 64), (44, 20)])
def test_where_it_decides_for_each_pixel_two_are_few(ignored: int, targets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 pixels per example, of which all have a target or, in one example, few: two are 200/(examples · targets)."""
    subject = untrained(SiteOptions(), nn.Sequential(nn.Conv2d(1, 10, 3, padding=1)))
    examples, width = 5, Width(4, 8)
    y = torch.zeros(examples, 8, 8, dtype=torch.int64)
    y[0].view(-1)[:ignored] = IGNORED
    images = subject.data.test.x
    assert isinstance(images, Tensor)
    data = replace(subject.data, test=replace(subject.data.test, x=images[:examples], y=y))
    subject = replace(subject, evaluator=replace(subject.evaluator, data=data))
    model = reference(subject, width)
    for decisions, rejected in ((2, False), (3, True)):
        found = iter([80.0, 80.0, 80.0 - 99.9 * decisions / (examples * targets)])
        monkeypatch.setattr("anybit.export.verify.metric", lambda subject, outputs, found=found: next(found))
        assert bool(verdict(subject, width, model, model, outputs(model, subject)).problem) == rejected


class Masked(nn.Module):
    """A classifier that never chooses its last class."""

    def __init__(self, mask: float) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(4, 4), mask

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).masked_fill(torch.arange(4) == 3, self.mask)


@pytest.mark.parametrize("mask", [-torch.inf, -1e9])
def test_a_class_that_is_masked_is_no_difference(mask: float, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32), np.arange(24) % 3
    (artifact,) = anybit.fit(Masked(mask), [(x, y)], (x, y), rounds=1).export(tmp_path, ["W8"], min_accuracy=0)
    assert artifact.verdict.error is not None
    assert artifact.verdict.error < 1e-3
    (recorded,) = json.loads((tmp_path / "export.json").read_text())["artifacts"]
    assert recorded["verdict"]["error"] == artifact.verdict.error


def test_an_integer_kernel_that_does_not_fuse_is_noticed(elsewhere: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_model, "output_grids", lambda subject, width, layers: {})
    artifact = elsewhere.export(Width(8, 8))
    assert artifact.rejected
    assert "the optimized graph holds 0 QLinearConv instead of 2" in artifact.verdict.problem


def test_the_command_ends_with_an_exit_code_of_its_own(run_path: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "missing_kernels", lambda found, promised: "a kernel is missing")
    with pytest.raises(Rejected, match=r"model.w4.onnx.rejected: a kernel is missing") as error:
        run(["export", str(run_path), "--width", "W4", "--out", str(tmp_path), "--import", TRUSTED[0]])
    assert error.value.exit_code not in (0, 2)
    assert (tmp_path / "model.w4.onnx.rejected").exists()
    assert not (tmp_path / "model.w4.onnx").exists()


@pytest.mark.parametrize(("found", "promised", "problem"), [
    ({"QLinearConv": 2}, {"QLinearConv": 2}, ""), ({"MatMulIntegerToFloat": 1}, {"MatMulInteger": 1}, ""),
    ({"Conv": 2}, {"QLinearConv": 2}, "holds 0 QLinearConv instead of 2"),
    ({"Conv": 2, "BitShift": 1}, {}, "unpacks weights at every call")])
def test_promises(found: dict[str, int], promised: dict[str, int], problem: str) -> None:
    said = missing_kernels(found, promised)
    assert problem in said
    assert bool(said) == bool(problem)


def test_what_the_export_adds_is_in_the_reference(exporter: Exporter) -> None:
    subject, width = exporter.subject, Width(2, 4)
    added = exporter._onnx.model(width).added
    assert set(added.outputs) == {"conv", "depthwise"}
    plain, full = (outputs(reference(subject, width, a), subject) for a in (Additions(), added))
    assert not torch.equal(plain, full), "the additions change numbers"


def test_the_reference_without_additions_is_the_evaluation(exporter: Exporter) -> None:
    subject: Any = exporter.subject
    width = Width(3, 6)
    score = subject.evaluator.score(subject.w(), subject.table, [width])[str(width)]
    from anybit.export.reference import metric

    assert metric(subject, outputs(reference(subject, width), subject)) == pytest.approx(score.metric)
