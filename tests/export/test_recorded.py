"""An export is compared with the evaluation that the run recorded, and says what its files are."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anybit.errors import RunError
from anybit.export.recorded import tolerance
from tests.export.command import TRUSTED, run
from tests.unrecorded import unrecorded

OWN = ["--import", TRUSTED[0]]


@pytest.fixture
def edited(run_path: Path, tmp_path: Path) -> Callable[[str, Callable[[Any], None]], Path]:
    """A copy of the run in which one JSON file is edited, and no digest tells."""
    def edit(name: str, change: Callable[[Any], None]) -> Path:
        copy = tmp_path / "run"
        unrecorded(Path(shutil.copytree(run_path, copy)))
        content = json.loads((copy / name).read_text())
        change(content)
        (copy / name).write_text(json.dumps(content))
        return copy
    return edit


def large_step(steps: Any) -> None:
    """Change a step size as one flipped bit in its first digit does, which makes an 8 of a 0."""
    assert steps["head.weight_quantizer"]["4"] < 1
    steps["head.weight_quantizer"]["4"] += 8


def other_score(evaluation: Any) -> None:
    evaluation["grid"][evaluation["own"]]["WA4"]["metric"] /= 2


@pytest.mark.parametrize(("name", "change"), [("steps.json", large_step), ("evaluation.json", other_score)])
def test_what_does_not_score_as_recorded_is_not_exported(edited: Callable[..., Path], name: str,
                                                         change: Callable[[Any], None]) -> None:
    path = edited(name, change)
    with pytest.raises(RunError, match=r"at WA4 its accuracy is .* evaluation\.json says .* steps\.json") as error:
        run(["export", str(path), "--width", "WA4", "--runtime", "archive", *OWN])
    assert (error.value.exit_code, str(error.value).count("\n")) == (2, 0)
    assert "delete all three, and 'anybit resume" in str(error.value)
    assert not (path / "export").exists()


def test_other_step_sizes_than_the_runs_own_have_no_record(edited: Callable[..., Path], tmp_path: Path) -> None:
    path = edited("evaluation.json", other_score)
    assert run(["export", str(path), "--width", "WA4", "--runtime", "archive", "--steps", "minmax", *OWN]) == 0
    assert run(["export", str(path), "--width", "WA4", "--runtime", "archive", "--calibrate", *OWN]) == 0


def test_the_report_holds_the_hash_of_every_file(run_path: Path, tmp_path: Path) -> None:
    widths = [word for width in ("WA4", "W4", "FP32") for word in ("--width", width)]
    assert run(["export", str(run_path), *widths, "--out", str(tmp_path), *OWN]) == 0
    report = json.loads((tmp_path / "export.json").read_text())
    assert set(report["sha256"]) == {"model.wa4.onnx", "model.w4.onnx", "fp32.onnx", "README.md"}
    for name, digest in report["sha256"].items():
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest


def test_numerics_explain_a_point_or_four_deviations() -> None:
    assert tolerance(100_000) == 1
    assert tolerance(360) == pytest.approx(4.7, abs=0.1)
    assert tolerance(10_000) < tolerance(1_000) < tolerance(100)
