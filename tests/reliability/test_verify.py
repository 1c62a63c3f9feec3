"""anybit verify, sign and keys: every file by name, and whose it is."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anybit.cli.main import run as command
from anybit.errors import AnybitError, ConfigError, RunError
from anybit.files.safetensors import save
from anybit.sweeps.plan import SweepFolder, plan
from tests.reliability.small_runs import OWN, flip


def verified(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """What verify prints; the exit code must say the same."""
    capsys.readouterr()
    try:
        command(["verify", str(path), "--json", *options])
        failed = False
    except RunError as error:
        failed = error.exit_code == 2
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["ok"] is not failed
    return found


def test_every_file_of_a_run_has_a_state(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = two_runs / "run1"
    files = verified(run, capsys)["files"]
    assert files.pop("timing.jsonl") == "unchecked"
    assert files == dict.fromkeys(("config.json", "task.json", "environment.json", "split.safetensors", "metrics.jsonl",
                                   "model.safetensors", "steps.json", "evaluation.json",
                                   "checkpoints/round-000002.safetensors", "checkpoints/round-000003.safetensors"), "ok")
    flip(run / "model.safetensors", 0.5)
    (run / "task.json").unlink()
    (run / "notes.txt").write_text("mine")
    shutil.copy(two_runs / "run2/split.safetensors", run)
    changed = verified(run, capsys)["files"]
    assert {name: state for name, state in changed.items() if state != "ok"} == {
        "model.safetensors": "damaged", "task.json": "missing", "split.safetensors": "damaged", "notes.txt": "unknown",
        "timing.jsonl": "unchecked"}
    with pytest.raises(RunError, match=r"model\.safetensors is damaged, .*task\.json is missing"):
        command(["verify", str(run)])


def test_a_run_that_is_not_finished_may_have_grown(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = two_runs / "run1"
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"round": 4')
    assert verified(run, capsys)["files"]["metrics.jsonl"] == "damaged"
    (run / "evaluation.json").unlink()
    assert verified(run, capsys)["files"]["metrics.jsonl"] == "ok"
    (run / "manifest.json").unlink()
    assert verified(run, capsys)["files"]["manifest.json"] == "missing"


def test_exports_and_archives(two_runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = two_runs / "run1"
    assert command(["export", str(run), "--width", "W2", "--runtime", "archive", *OWN]) == 0
    archive = run / "export/model.w2.safetensors"
    assert verified(run / "export", capsys)["files"] == {"README.md": "ok", "model.w2.safetensors": "ok"}
    assert verified(archive, capsys)["files"] == {"model.w2.safetensors": "ok"}
    assert verified(run, capsys)["files"]["export/model.w2.safetensors"] == "ok"
    flip(archive, 0.1)
    (run / "export/README.md").unlink()
    assert verified(run / "export", capsys)["files"] == {"README.md": "missing", "model.w2.safetensors": "damaged"}
    assert verified(archive, capsys)["files"] == {"model.w2.safetensors": "damaged"}
    with pytest.raises(RunError, match=r"is neither a run, a sweep nor an export"):
        command(["verify", str(two_runs)])


def test_a_sweep_and_its_runs(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = SweepFolder.begin(tmp_path / "sweep", plan(["quickstart/mqat"], ["rounds=3"]))
    shutil.copytree(two_runs / "run1", sweep.run_path(sweep.runs[0]))
    name = sweep.runs[0].name
    files = verified(sweep.path, capsys)["files"]
    assert (files["sweep.json"], files[f"{name}/steps.json"]) == ("ok", "ok")
    flip(sweep.path / "sweep.json", 0.5)
    flip(sweep.run_path(sweep.runs[0]) / "steps.json", 0.5)
    files = verified(sweep.path, capsys)["files"]
    assert (files["sweep.json"], files[f"{name}/steps.json"]) == ("damaged", "damaged")
    with pytest.raises(RunError, match=r"sweep\.json is damaged, edited or another sweep's"):
        SweepFolder.open(sweep.path)


def test_a_signature_tells_whose_run_it_is(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, mine, theirs = two_runs / "run1", tmp_path / "mine", tmp_path / "theirs"
    for key in (mine, theirs):
        assert command(["keys", "new", str(key)]) == 0
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    public = ("--key", f"{mine}.pub")
    assert verified(run, capsys, *public)["files"]["manifest.json.sig"] == "missing"
    assert command(["sign", str(run), "--key", str(mine)]) == 0
    assert verified(run, capsys, *public)["ok"]
    assert verified(run, capsys, "--key", f"{theirs}.pub")["files"]["manifest.json.sig"] == "damaged"
    # Whoever can write the folder can make its manifest fit; not its signature.
    shutil.copy(two_runs / "run2/steps.json", run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["files"]["steps.json"] = json.loads((two_runs / "run2/manifest.json").read_text())["files"]["steps.json"]
    (run / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    assert verified(run, capsys)["ok"]
    assert verified(run, capsys, *public)["files"]["manifest.json.sig"] == "damaged"


def test_exports_and_archives_are_signed_too(two_runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["export", str(two_runs / "run1"), "--width", "W2", "--runtime", "archive", "--out", str(tmp_path / "e"),
                    *OWN]) == 0
    command(["keys", "new", str(tmp_path / "key")])
    for path, signature in ((tmp_path / "e", "export.json.sig"), (tmp_path / "e/model.w2.safetensors",
                                                                "model.w2.safetensors.sig")):
        assert command(["sign", str(path), "--key", str(tmp_path / "key")]) == 0
        assert verified(path, capsys, "--key", str(tmp_path / "key.pub"))["files"][signature] == "ok"
    flip(tmp_path / "e/export.json", 0.3)
    with pytest.raises(AnybitError):
        command(["verify", str(tmp_path / "e"), "--key", str(tmp_path / "key.pub")])


def test_what_is_not_signed(two_runs: Path, tmp_path: Path) -> None:
    key, run = tmp_path / "key", two_runs / "run1"
    command(["keys", "new", str(key)])
    with pytest.raises(ConfigError, match="so that no key is lost"):
        command(["keys", "new", str(key)])
    key.with_name("key.pub").chmod(0o600)
    with pytest.raises(ConfigError, match="is no Ed25519PrivateKey in PEM"):
        command(["sign", str(run), "--key", f"{key}.pub"])
    flip(run / "steps.json", 0.5)
    with pytest.raises(RunError, match=r"steps\.json is damaged, and is not signed"):
        command(["sign", str(run), "--key", str(key)])
    (run / "evaluation.json").unlink()
    with pytest.raises(RunError, match="is not finished"):
        command(["sign", str(run), "--key", str(key)])
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others: chmod 600"):
        command(["sign", str(run), "--key", str(key)])


def test_without_cryptography_the_package_is_named(tmp_path: Path) -> None:
    code = "import sys; sys.modules['cryptography'] = None; from anybit.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "keys", "new", str(tmp_path / "key")], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert done.stderr == "anybit: a signature needs the package 'cryptography': pip install 'anybit[sign]'\n"
    assert not (tmp_path / "key").exists()


def test_tensors_without_a_digest_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "x.safetensors", {}, {})
    assert verified(tmp_path / "x.safetensors", capsys)["files"] == {"x.safetensors": "ok"}
    head = b'{"__metadata__":{"format":"pt"}}'
    (tmp_path / "x.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    assert verified(tmp_path / "x.safetensors", capsys)["files"] == {"x.safetensors": "unknown"}
