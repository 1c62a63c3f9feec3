"""The verb: tables, fleet, model card, and every bad input as one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from anybit.environment import environment
from anybit.errors import AnybitError
from tests.export.command import TRUSTED, run
from tests.unrecorded import unrecorded

OWN = ["--import", TRUSTED[0]]

FLEET = """
[[device]]
name = "phone"
width = "W4A8"
count = 30

[[device]]
name = "watch"
width = "W2"
runtime = "archive"
count = 10
"""


def test_a_fleet_gets_one_artifact_per_class(run_path: Path, tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    fleet, out = tmp_path / "fleet.toml", tmp_path / "out"
    fleet.write_text(FLEET)
    assert run(["export", str(run_path), "--fleet", str(fleet), "--out", str(out), "--licence", "mit", *OWN]) == 0
    shown = capsys.readouterr()
    report = json.loads((tmp_path / "out/export.json").read_text())
    phone, watch = report["artifacts"]
    assert (phone["file"], watch["file"]) == ("model.w4a8.onnx", "model.w2.safetensors")
    expected = (30 * phone["verdict"]["artifact"] + 10 * watch["verdict"]["artifact"]) / 40
    assert report["fleet"]["expected"] == pytest.approx(expected)
    for word in ("phone", "watch", f"{phone['bytes']:,}", f"expected over the fleet: {expected:.2f}"):
        assert word in shown.out
    assert "added beyond training, here and in the reference: 8-bit output quantizer on 2 layers" in shown.err
    card = (tmp_path / "out/README.md").read_text()
    head, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert dict(line.split(": ", 1) for line in head.splitlines())["license"] == "mit"
    for word in ("W4A8", "W2", "digits", "mqat", "12 rounds", f"{watch['bytes']:,}"):
        assert word in body


def test_the_card_says_which_code_trained_and_which_exported(run_path: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "run", tmp_path / "out"
    shutil.copytree(run_path, copy)
    here = environment()
    assert json.loads((copy / "environment.json").read_text())["commit"] == here["commit"]
    unrecorded(copy)
    exported = f"Exported with anybit {here['anybit']}" + (f" (commit {here['commit']})" if here["commit"] else "")
    for content, trained in (('{"anybit": "0.0.9", "commit": "feedbee"}', "anybit 0.0.9 (commit feedbee)"),
                             ('{"anybit": "0.0.9", "commit": null}', "anybit 0.0.9"),
                             ('{"anybit": "0.0.9"}', "anybit 0.0.9"), ("[]", "an unknown version of anybit")):
        (copy / "environment.json").write_text(content)
        assert run(["export", str(copy), "--width", "W4", "--runtime", "archive", "--out", str(out), *OWN]) == 0
        card = (out / "README.md").read_text()
        assert f"Trained with {trained}: variant" in card
        assert f"{exported}.\n" in card


@pytest.mark.artifacts
def test_json_and_bench(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(run_path), "--width", "WA8", "--bench", "--json", "--out", str(tmp_path), *OWN]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(report["bench"]) == {"fp32.onnx", "model.wa8.onnx"}
    for cost in report["bench"].values():
        assert set(cost["batches"]) == {"1", "32"}
        assert cost["load_ms"] > 0
        assert cost["batches"]["1"]["median"] <= cost["batches"]["1"]["p95"]
    assert report["options"]["exact"] is False


def test_untrained_widths_warn_with_what_was_measured(weights_only_run: Path, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    to = ["--runtime", "archive", "--out", str(tmp_path)]
    assert run(["export", str(weights_only_run), "--width", "W3", *to, *OWN]) == 0
    said = capsys.readouterr().err
    assert "warning: W3 was not trained for (variant 'mqat' trains at W4, W8, FP32): its accuracy is " in said


def fails(*arguments: str) -> str:
    with pytest.raises(AnybitError) as error:
        run(["export", *arguments])
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_that_trained_weights_only_has_its_activations_measured(weights_only_run: Path, tmp_path: Path) -> None:
    assert run(["export", str(weights_only_run), "--width", "W4A8", "--out", str(tmp_path), *OWN]) == 0
    report = json.loads((tmp_path / "export.json").read_text())
    assert "activations measured on 64 training images" in json.dumps(report)


def test_a_run_without_activation_ranges_says_what_calibrates(run_path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run_path, copy)
    unrecorded(copy)
    steps = json.loads((copy / "steps.json").read_text())
    (copy / "steps.json").write_text(json.dumps({s: v for s, v in steps.items() if "input" not in s}))
    said = fails(str(copy), "--width", "W4A8", *OWN)
    assert "has no activation steps (site 'conv.input_quantizer')" in said
    assert f"'anybit export {copy} --calibrate'" in said
    out = ["--out", str(tmp_path / "out"), *OWN]
    assert run(["export", str(copy), "--width", "W4", "--runtime", "archive", *out]) == 0
    assert run(["export", str(copy), "--width", "W4A8", "--calibrate", *out]) == 0


def test_corrupt_runs(run_path: Path, tmp_path: Path) -> None:
    assert "nowhere does not exist" in fails(str(tmp_path / "nowhere"))
    assert "is not a run" in fails(str(tmp_path))
    copy = tmp_path / "run"
    shutil.copytree(run_path, copy)
    unrecorded(copy)
    model = copy / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-9])
    assert "model.safetensors is damaged" in fails(str(copy), *OWN)
    (copy / "steps.json").write_text("{")
    shutil.copy(run_path / "model.safetensors", model)
    assert "steps.json is not readable as JSON" in fails(str(copy), *OWN)
    (copy / "evaluation.json").unlink()
    assert "is not finished" in fails(str(copy), *OWN)


def test_a_missing_extra(run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, package, None)
    said = fails(str(run_path), "--width", "W4", "--out", str(tmp_path), *OWN)
    assert said.endswith("pip install 'anybit[export]'")
    assert run(["export", str(run_path), "--width", "W4", "--runtime", "archive", "--out", str(tmp_path), *OWN]) == 0


@pytest.mark.parametrize(("content", "message"), [
    ('[[device]]\nname = "a"\nwidht = "W4"\nwidth = "W4"', "device[0].widht is unknown: did you mean 'width'?"),
    ('[[devices]]\nname = "a"\nwidth = "W4"', "devices is unknown: did you mean 'device'?"),
    ('[[device]]\nname = "a"\nwidth = "X4"', "width 'X4'"), ('[[device]]\nname = "a"', "device[0].width is missing"),
    ('[[device]]\nname = "a"\nwidth = "W4"\nruntime = "onx"', "must be one of onnx, executorch, archive"),
    ('[[device]]\nname = "a"\nwidth = "W4"\ncount = 0', "count = 0"), ("device = []", "device is empty"),
    ('[[device]]\nname = "a"\nwidth = "W4"\n[[device]]\nname = "a"\nwidth = "W2"', "'a' appears twice"),
    ("=", "is not valid TOML")])
def test_fleet_files(run_path: Path, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(content)
    said = fails(str(run_path), "--fleet", str(path), *OWN)
    assert message in said
    assert str(path) in said


@pytest.mark.parametrize(("arguments", "message"), [
    (["--width", "A8"], "width A8"), (["--width", "W9"], "bits = 9"), (["--runtime", "onnxx"], "did you mean 'onnx'?"),
    (["--opset", "17"], "--opset 17"), (["--operands", "int4"], "did you mean 'int8'?"),
    (["--steps", "tabel"], "did you mean 'table'?"), (["--fleet", "none.toml"], "does not exist"),
    (["--web", "--runtime", "c", "--no-verify"], "--no-verify: not with --web")])
def test_bad_arguments(run_path: Path, arguments: list[str], message: str) -> None:
    assert message in fails(str(run_path), *arguments, *OWN)


def test_an_unwritable_folder(run_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for runtime in ("onnx", "archive"):
        assert "cannot be written" in fails(str(run_path), "--width", "W4", "--runtime", runtime, "--out",
                                            str(tmp_path / "file/x"), *OWN)
