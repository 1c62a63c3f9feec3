"""What must not move unnoticed: bytes that every run depends on, names that people rely on, folders of earlier versions."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import anybit
from anybit.cli.main import run as command
from anybit.quant.grid import BITS, FLOAT
from tests.net import fingerprints, public_names

ROOT = Path(__file__).parents[2]
RUNS = Path(__file__).parent / "runs"
RENEW = "if that is meant: 'make net-renew', and a line in the changelog"


def test_draws_splits_weights_and_steps_are_those_of_earlier_versions() -> None:
    assert fingerprints.fingerprints() == json.loads(fingerprints.FILE.read_text()), RENEW


def test_public_names_are_those_of_earlier_versions() -> None:
    assert public_names.public_names() == json.loads(public_names.FILE.read_text()), RENEW


def test_the_recipe_of_the_net_names_every_setting() -> None:
    """Settings whose default is none cannot be written in TOML; all others must be, so that their defaults may change."""
    named = tomllib.loads((ROOT / "tools/net/base.toml").read_text())

    def missing(defaults: Any, table: dict[str, Any], where: str) -> list[str]:
        out = []
        for field in dataclasses.fields(defaults):
            value, place = getattr(defaults, field.name), f"{where}{field.name}"
            if dataclasses.is_dataclass(value) and not field.metadata.get("rest"):
                out += missing(value, table.get(field.name, {}), f"{place}.")
            elif value is not None and not field.metadata.get("rest") and field.name not in table:
                out.append(place)
        return out

    assert missing(anybit.Config(), named, "") == []


@pytest.fixture
def old_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of run folders that version 0.1 wrote: MQAT with learned steps, finished, and stopped after round 2 of 3."""
    monkeypatch.syspath_prepend(str(ROOT / "tools/net"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RUNS, tmp_path / "runs")
    return tmp_path / "runs"


def test_a_run_that_an_earlier_version_left_is_resumed_to_the_same_end(old_runs: Path) -> None:
    assert command(["resume", str(old_runs / "stopped"), "--quiet", "--import", "net_models"]) == 0
    ends = [anybit.Run.load(old_runs / name, trusted=["net_models"]) for name in ("stopped", "finished")]
    now, then = (dict(run.model().named_parameters()) for run in ends)
    for name, expected in then.items():  # a round moves a weight by 0.006; one number rounded the other way, by 0.0002
        assert float((now[name] - expected).detach().abs().mean()) < 5e-4, name
    # In three rounds nobody trained at 3 and 6 bits, whose step sizes now lie between those of 2, 4 and 8.
    trained = [BITS.index(bits) for bits in ends[1].config.evaluation.bits if bits != FLOAT]
    for site, steps in ends[1].steps().steps.items():
        torch.testing.assert_close(ends[0].steps().steps[site][trained], steps[trained], rtol=1e-2, atol=0)
    assert [entry["round"] for entry in ends[0].metrics] == [1, 2, 3]


def test_what_an_earlier_version_trained_is_evaluated_reported_and_exported(old_runs: Path,
                                                                           capsys: pytest.CaptureFixture[str]) -> None:
    run = old_runs / "finished"
    recorded = json.loads((run / "evaluation.json").read_text())["grid"]["table"]["WA2"]["metric"]
    assert command(["eval", str(run), "--width", "WA2", "--json", "--import", "net_models"]) == 0
    assert json.loads(capsys.readouterr().out)["WA2"]["metric"] == pytest.approx(recorded, abs=0.5)
    assert command(["eval", str(run), "--width", "W4", "--steps", "rule", "--import", "net_models"]) == 0
    assert command(["report", str(run), str(old_runs / "stopped"), "--out", str(old_runs / "report")]) == 0
    assert "stopped" in (old_runs / "report/index.html").read_text()
    assert command(["collect", str(run), "--out", str(old_runs / "results.json")]) == 0
    assert command(["export", str(run), "--width", "W2", "--runtime", "archive", "--out", str(old_runs / "export"),
                    "--import", "net_models"]) == 0
    assert (old_runs / "export/model.w2.safetensors").is_file()
