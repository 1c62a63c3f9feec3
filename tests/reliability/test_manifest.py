"""The manifest of a run: no verb takes a flipped bit, a file of another run, or a missing manifest for the run's own."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from anybit.cli.main import run as command
from anybit.errors import RunError
from anybit.files.digests import Digests
from anybit.training.run_folder import RunFolder
from tests.reliability.killing import content
from tests.reliability.small_runs import OWN, flip
from tests.unrecorded import unrecorded


def verbs(run: Path) -> dict[str, list[str]]:
    return {"eval": ["eval", str(run), "--width", "W2", *OWN], "resume": ["resume", str(run), "--rounds", "4", *OWN],
            "report": ["report", str(run), "--out", str(run.parent / "report")],
            "collect": ["collect", str(run), "--out", str(run.parent / "all.json")],
            "export": ["export", str(run), "--width", "W2", "--runtime", "archive", "--out", str(run.parent / "e"), *OWN],
            "bound": ["bound", str(run), *OWN]}


@pytest.mark.parametrize("verb", ["eval", "resume", "report", "collect", "export", "bound"])
@pytest.mark.parametrize("name", ["steps.json", "evaluation.json", "metrics.jsonl", "config.json", "task.json",
                                  "environment.json"])
def test_a_flipped_bit_is_noticed_by_every_verb(two_runs: Path, verb: str, name: str) -> None:
    for at in (0.3, 0.5, 0.98):
        whole = (two_runs / "run1" / name).read_bytes()
        flip(two_runs / "run1" / name, at)
        with pytest.raises(RunError, match=f"{name} ") as error:
            command(verbs(two_runs / "run1")[verb])
        assert "\n" not in str(error.value)
        assert error.value.exit_code == 2
        (two_runs / "run1" / name).write_bytes(whole)


def test_every_single_bit_of_evaluation_and_metrics_counts(two_runs: Path) -> None:
    for name in ("evaluation.json", "metrics.jsonl", "steps.json"):
        whole, digests = (two_runs / "run1" / name).read_bytes(), Digests.read(two_runs / "run1")
        assert digests is not None
        assert digests.state(name, whole) == "ok"
        for bit in range(8 * len(whole)):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            assert digests.state(name, bytes(damaged)) == "damaged"


@pytest.mark.parametrize(("name", "verb"), [("model.safetensors", "eval"), ("model.safetensors", "export"),
                                            ("model.safetensors", "report"), ("split.safetensors", "export"),
                                            ("split.safetensors", "resume"), ("evaluation.json", "collect"),
                                            ("checkpoints/round-000003.safetensors", "resume")])
def test_a_file_of_another_run_is_refused(two_runs: Path, name: str, verb: str) -> None:
    shutil.copy(two_runs / "run2" / name, two_runs / "run1" / name)
    with pytest.raises(RunError, match=rf"{Path(name).name} .*is damaged, edited or another run's"):
        command(verbs(two_runs / "run1")[verb])


@pytest.mark.parametrize("verb", ["eval", "resume", "report", "collect", "export"])
def test_a_missing_manifest_is_an_error(two_runs: Path, verb: str) -> None:
    (two_runs / "run1/manifest.json").unlink()
    with pytest.raises(RunError, match=r"manifest\.json is missing"):
        command(verbs(two_runs / "run1")[verb])


@pytest.mark.filterwarnings("default:.*begun by an earlier version:UserWarning")
def test_a_run_of_an_earlier_version_is_read_with_one_line(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = unrecorded(two_runs / "run1")
    for verb in ("eval", "collect", "export", "resume"):
        assert command(verbs(run)[verb]) == 0
        said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line and "full precision" not in line]
        assert said == [f"warning: {run} was begun by an earlier version, which recorded no digests of its files: whether "
                        "these are the same is not checked"]


def test_lines_beyond_the_end_of_a_finished_run_are_no_metrics(two_runs: Path) -> None:
    with open(two_runs / "run1/metrics.jsonl", "a") as file:
        file.write('{"round": 4, "loss": 0.0}\n')
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged"):
        command(verbs(two_runs / "run1")["report"])


def test_a_damaged_result_is_made_anew_as_the_error_says(two_runs: Path) -> None:
    run = two_runs / "run1"
    before = {name: (run / name).read_bytes() for name in ("steps.json", "evaluation.json", "manifest.json")}
    flip(run / "steps.json", 0.5)
    with pytest.raises(RunError, match=r"delete it, and 'anybit resume .*' makes it anew from round-000003\.safetensors"):
        command(verbs(run)["export"])
    (run / "steps.json").unlink()
    assert command(["resume", str(run), "--quiet", *OWN]) == 0
    assert {name: (run / name).read_bytes() for name in before} == before


def test_a_damaged_checkpoint_gives_way_to_the_one_before(two_runs: Path) -> None:
    run = two_runs / "run1"
    before = content(run)
    (run / "evaluation.json").unlink()
    flip(run / "checkpoints/round-000003.safetensors", 0.9)
    with pytest.raises(RunError, match=r"delete it to resume from round-000002\.safetensors"):
        command(["resume", str(run), "--quiet", *OWN])
    (run / "checkpoints/round-000003.safetensors").unlink()
    assert command(["resume", str(run), "--quiet", *OWN]) == 0
    assert content(run) == before


def test_a_manifest_names_files_of_its_folder_alone(two_runs: Path) -> None:
    manifest = json.loads((two_runs / "run1/manifest.json").read_text())
    entry = manifest["files"]["config.json"]
    for files in ({"../x": entry}, {"/etc/passwd": entry}, {"a/../../x": entry}, {"": entry},
                  {"x": {"sha256": "0", "bytes": 1}}, {"x": {**entry, "bytes": -1}}, {"x": []}, {"x": None}, [], None):
        (two_runs / "run1/manifest.json").write_text(json.dumps({**manifest, "files": files}))
        with pytest.raises(RunError, match=r"manifest\.json is not a manifest"):
            RunFolder.open(two_runs / "run1")
    (two_runs / "run1/manifest.json").write_text(json.dumps({**manifest, "format": 3}))
    with pytest.raises(RunError, match="use a newer one"):
        RunFolder.open(two_runs / "run1")


@pytest.mark.parametrize("verb", ["report", "resume"])
def test_metrics_that_should_not_be_there_are_one_line(two_runs: Path, verb: str) -> None:
    manifest = json.loads((two_runs / "run1/manifest.json").read_text())
    manifest["files"]["metrics.jsonl"] = [None]
    (two_runs / "run1/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=r"metrics\.jsonl is damaged, edited or another run's"):
        command(verbs(two_runs / "run1")[verb])


def test_a_deleted_lock_lets_nobody_in(two_runs: Path) -> None:
    folder = RunFolder.open(two_runs / "run1")
    with folder.locked():
        folder.file("lock").unlink()
        with pytest.raises(RunError, match="in use by another process"), RunFolder(folder.path).locked():
            pass
    with RunFolder(folder.path).locked():
        pass


@pytest.mark.parametrize("earlier", [False, True])
def test_a_file_that_is_far_too_long_is_not_read(two_runs: Path, earlier: bool) -> None:
    run = unrecorded(two_runs / "run1") if earlier else two_runs / "run1"
    os.truncate(run / "steps.json", 65 << 20)
    with pytest.raises(RunError, match=r"steps\.json has 68,157,440 bytes: such a file has at most"):
        command(verbs(run)["export"])
