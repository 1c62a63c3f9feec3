"""Limits of devices choose their widths, from artifacts that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anybit.errors import AnybitError, RunError
from anybit.export.fleet import read_fleet
from tests.export.command import TRUSTED, run

OWN = ["--import", TRUSTED[0]]


def export(run_path: Path, folder: Path, content: str) -> int:
    (folder / "fleet.toml").write_text(content)
    return run(["export", str(run_path), "--fleet", str(folder / "fleet.toml"), "--out", str(folder / "out"),
                "--min-accuracy", "0", *OWN])


def test_every_device_gets_the_best_that_fits(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """2,388 weights: about 9.6, 3.7 and 2.2 KB of archive at 32, 8 and 4 bits."""
    limits = '[[device]]\nname = "{name}"\nruntime = "archive"\nwidths = ["W8", "W4", "W2"]\ncount = {count}\n{limit}\n'
    sizes = {}
    for width in ("W8", "W4", "W2"):
        assert run(["export", str(run_path), "--width", width, "--runtime", "archive", "--out", str(tmp_path / width),
                    "--min-accuracy", "0", *OWN]) == 0
        (artifact,) = json.loads((tmp_path / width / "export.json").read_text())["artifacts"]
        sizes[width] = artifact["bytes"], artifact["verdict"]["evaluation"]
    room = sizes["W4"][0] / 1024 + 0.01
    assert export(run_path, tmp_path, limits.format(name="large", count=1, limit="flash_kb = 100")
                  + limits.format(name="small", count=3, limit=f"flash_kb = {room}")) == 0
    report = json.loads((tmp_path / "out/export.json").read_text())
    best = max(sizes, key=lambda w: sizes[w][1])
    fits = max(("W4", "W2"), key=lambda w: sizes[w][1])
    assert [d["width"] for d in report["fleet"]["devices"]] == [best, fits]
    assert report["fleet"]["expected"] == pytest.approx((sizes[best][1] + 3 * sizes[fits][1]) / 4)
    kept = {f"model.{w.lower()}.safetensors" for w in (best, fits)}
    written = {p.name for p in (tmp_path / "out").iterdir()}
    assert written == {*kept, "export.json", "README.md"}, "what nobody gets is not left"
    assert "small" in capsys.readouterr().out


def test_a_device_that_nothing_fits_is_told_why(run_path: Path, tmp_path: Path) -> None:
    device = '[[device]]\nname = "watch"\nruntime = "archive"\nwidths = ["W8", "W4"]\nflash_kb = 1\n'
    with pytest.raises(RunError, match=r"^device 'watch': no width fits \(W\d: \d\.\d KB, more than flash_kb = 1; "
                                       r"W\d: \d\.\d KB, more than flash_kb = 1\)$") as error:
        export(run_path, tmp_path, device)
    assert error.value.exit_code == 2
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(RunError, match=r"W4: its accuracy is .*, below min_accuracy 101"):
        export(run_path, tmp_path, device.replace("flash_kb = 1\n", "min_accuracy = 101\n")
               + '[[device]]\nname = "phone"\nwidth = "W4"\nruntime = "archive"\n')
    report = json.loads((tmp_path / "out/export.json").read_text())
    assert [d["name"] for d in report["fleet"]["devices"]] == ["phone"]
    assert "watch" in report["refused"]


def test_microcontrollers_have_memory(run_path: Path, tmp_path: Path) -> None:
    device = '[[device]]\nname = "sensor"\nruntime = "c"\nwidths = ["W8", "W2"]\nflash_kb = 1000\nram_kb = {ram}\n'
    assert export(run_path, tmp_path, device.format(ram=64)) == 0
    (artifact,) = json.loads((tmp_path / "out/export.json").read_text())["artifacts"]
    least = artifact["footprint"]["ram"] / 1024
    with pytest.raises(RunError, match=r"W\d: \d+\.\d KB, more than ram_kb = 0\.5; W\d: \d+\.\d KB, more than ram_kb"):
        export(run_path, tmp_path, device.format(ram=0.5))
    assert least > 0.5


@pytest.mark.parametrize(("content", "message"), [
    ('name = "a"\nwidth = "W4"\nram_kb = 5', "what onnx takes in memory is the runtime's own affair"),
    ('name = "a"\nwidth = "W4"\nwidths = ["W2"]', "give one of the two"),
    ('name = "a"\nflash_kb = -1', "flash_kb = -1"), ('name = "a"', "width is missing: name one, or what chooses it")])
def test_limits_that_cannot_be(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "fleet.toml").write_text(f"[[device]]\n{content}")
    with pytest.raises(AnybitError, match=message):
        read_fleet(tmp_path / "fleet.toml")
