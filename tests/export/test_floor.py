"""Nothing bad is left behind: widths below the floor, files that nobody verified, failures without a word."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from anybit.errors import ConfigError, ModelError, RunError
from anybit.export import exporting, floor
from anybit.export.exporting import Exporter, Options
from anybit.export.floor import Floor, chance
from anybit.federated.metrics import Metric, accuracy
from anybit.quant.grid import Width
from anybit.quant.sites import SiteOptions
from tests.export.command import TRUSTED, run
from tests.export.test_onnx import untrained

OWN = ["--import", TRUSTED[0]]
ALL, LABELS = Width(32, 32), torch.arange(400) % 4


def judge(monkeypatch: pytest.MonkeyPatch, answers: dict[int, torch.Tensor], least: float | None = None,
          metric: Any = accuracy) -> Floor:
    """A floor over models that are known by their outputs alone, one per bit-width."""
    monkeypatch.setattr(floor, "reference", lambda subject, width: answers[width.weights])
    monkeypatch.setattr(floor, "outputs", lambda model, subject: model)
    data = SimpleNamespace(test=SimpleNamespace(y=LABELS))
    subject: Any = SimpleNamespace(data=data, evaluator=SimpleNamespace(metric=metric))
    return Floor(subject, least)


def answers(right: float) -> torch.Tensor:
    """Decisions of which a share is right and the others are class 0; every fourth of those is right, too."""
    decided = torch.where(torch.arange(400) < 400 * right, LABELS, 0)
    return nn.functional.one_hot(decided, 4).float()


def test_a_width_must_keep_half_of_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge(monkeypatch, {32: answers(1.0), 8: answers(0.6), 4: answers(0.4), 2: answers(0.0)})
    assert chance(judged.subject, answers(0.0)) == pytest.approx(25)
    assert [bool(judged.refusal(Width(bits, 32))) for bits in (32, 8, 4, 2)] == [False, False, True, True]
    assert judged.refusal(Width(2, 32)).startswith("W2 is not exported: its accuracy is 25.00, by chance 25.00, in full "
                                                   "precision 100.00: more than half of what was learned is lost")


def test_a_model_that_learned_nothing_is_said_and_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = judge(monkeypatch, {32: answers(0.0), 2: answers(0.0)})
    assert not judged.refusal(Width(2, 32))
    assert "in full precision its accuracy is 25.00, by chance 25.00" in judged.warning


def test_a_limit_follows_the_direction_of_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {32: answers(1.0), 2: answers(0.4)}  # 55 % right
    said = judge(monkeypatch, given, 56).refusal(Width(2, 32))
    assert said == "W2 is not exported: its accuracy is 55.00, below min_accuracy=56"
    assert not judge(monkeypatch, given, 55).refusal(Width(2, 32))
    assert not judge(monkeypatch, given, 0).refusal(Width(2, 32))
    wrong = Metric(lambda x, y: (x.argmax(1) != y).float(), "wrong", "lower")  # 0.45 of them
    assert not judge(monkeypatch, given, None, wrong).refusal(Width(2, 32)), "it has no chance level"
    assert not judge(monkeypatch, given, 0.46, wrong).refusal(Width(2, 32))
    said = judge(monkeypatch, given, 0.4, wrong).refusal(Width(2, 32))
    assert said.endswith("its wrong is 0.45, above min_accuracy=0.4")
    with pytest.raises(ConfigError, match="which direction of the metric 'wrong' is better"):
        judge(monkeypatch, given, 0.4, Metric(wrong.function, "wrong")).refusal(Width(2, 32))


def test_what_is_below_the_floor_is_named_and_the_others_are_written(run_path: Path, tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Floor, "refusal", lambda self, width: f"{width} is too bad" if width.weights == 2 else "")
    to = ["--runtime", "archive", "--out", str(tmp_path), *OWN]
    with pytest.raises(RunError, match=r"^W2 is too bad$") as error:
        run(["export", str(run_path), "--width", "W2", *to])
    assert error.value.exit_code == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(RunError, match=r"^W2 is too bad$"):
        run(["export", str(run_path), "--width", "W4", "--width", "W2", *to])
    assert {p.name for p in tmp_path.iterdir()} == {"model.w4.safetensors", "export.json", "README.md"}
    assert json.loads((tmp_path / "export.json").read_text())["refused"] == {"W2": "W2 is too bad"}
    assert "- W2 is too bad." in (tmp_path / "README.md").read_text()


def test_the_option_reaches_the_floor(run_path: Path, tmp_path: Path) -> None:
    to = ["--runtime", "archive", "--out", str(tmp_path), *OWN]
    with pytest.raises(RunError, match=r"W4 is not exported: its accuracy is .*, below --min-accuracy 101"):
        run(["export", str(run_path), "--width", "W4", "--min-accuracy", "101", *to])
    assert run(["export", str(run_path), "--width", "W4", "--min-accuracy", "0", *to]) == 0


def test_a_file_that_does_not_run_is_not_kept(elsewhere: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path, subject: object) -> torch.Tensor:
        assert path.exists()
        raise RuntimeError("while running Expand node\nand more")

    monkeypatch.setattr(exporting, "onnx_outputs", fails)
    with pytest.raises(ModelError, match=r"W4 for onnx cannot be made or does not run.*: while running Expand node$"):
        elsewhere.export(Width(4, 32))
    assert not list(elsewhere.folder.iterdir())


class Token(nn.Module):
    """A class token as many write it: len() of a batch is a plain number for tracers."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token, self.head = nn.Conv2d(1, 8, 2, 2), nn.Parameter(torch.ones(1, 1, 8)), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        out: torch.Tensor = self.head(torch.cat([self.token.expand(len(x), -1, -1), patches], 1).mean(1))
        return out


def test_a_batch_that_the_model_measures_stays_free(tmp_path: Path) -> None:
    artifact = Exporter(untrained(SiteOptions(), Token()), tmp_path).export(Width(8, 32))
    assert not artifact.rejected, artifact.verdict.problem


@pytest.mark.parametrize(("opset", "version"), [(18, 8), (21, 10), (25, 13)])
def test_the_file_is_no_younger_than_its_opset(elsewhere: Exporter, opset: int, version: int) -> None:
    proto = onnx.ModelProto()
    proto.CopyFrom(Exporter(elsewhere.subject, elsewhere.folder, Options(opset=opset))._onnx.model(ALL).proto)
    assert proto.ir_version == version


def test_the_float_file_is_written_once(elsewhere: Exporter) -> None:
    artifacts = [elsewhere.export(width) for width in (Width(8, 32), ALL)]
    assert [a.file for a in artifacts] == ["model.w8.onnx", "fp32.onnx"]
    assert {p.name for p in elsewhere.folder.iterdir()} == {"model.w8.onnx", "fp32.onnx"}
    assert artifacts[1].bytes == artifacts[1].fp32_bytes == artifacts[0].fp32_bytes


def test_an_artifact_does_not_depend_on_those_beside_it(weights_only_run: Path, tmp_path: Path) -> None:
    for folder, widths in (("alone", ["W4"]), ("beside", ["W4", "W4A8"])):
        named = [argument for width in widths for argument in ("--width", width)]
        assert run(["export", str(weights_only_run), *named, "--out", str(tmp_path / folder), *OWN]) == 0
    alone, beside = ((tmp_path / folder / "model.w4.onnx").read_bytes() for folder in ("alone", "beside"))
    assert alone == beside
