"""Export of a finished run from Python, as the command line does it."""

from __future__ import annotations

from pathlib import Path

import pytest

import anybit
from anybit.errors import ConfigError
from tests.export.command import TRUSTED


def test_a_run_exports_itself(run_path: Path, tmp_path: Path) -> None:
    run = anybit.Run.load(run_path, trusted=TRUSTED)
    scores = run.evaluation["grid"][run.evaluation["own"]]
    artifacts = run.export(tmp_path, ["WA4", "W8"], "archive", min_accuracy=0)
    assert artifacts[0].verdict.artifact == scores["WA4"]["metric"]
    assert {path.name for path in tmp_path.iterdir()} == {"model.wa4.safetensors", "model.w8.safetensors", "export.json",
                                                          "README.md"}
    with pytest.raises(ConfigError, match="runtime 'tflite'"):
        run.export(tmp_path, ["W4"], "tflite")  # type: ignore[arg-type]
