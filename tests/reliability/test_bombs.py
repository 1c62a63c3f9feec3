"""Small files that ask for much, and text that means something to a terminal, a spreadsheet or an encoder."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from anybit.cli.console import print_json, print_lines, print_table
from anybit.cli.main import run as command
from anybit.errors import AnybitError, ConfigError
from anybit.export.fleet import read_fleet
from anybit.files.reading import read_toml
from anybit.files.sheets import as_csv
from anybit.recipes import load, parse_override

FINISHED = Path(__file__).parents[1] / "net/runs/finished"
HALF = '"\\ud800"'
DEEP = "a." * 32_000 + "a"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FINISHED, tmp_path / "run"))


@pytest.mark.parametrize("text", [f"{DEEP} = 1", f"[{DEEP}]", f"x = {{{DEEP} = 1}}", '"a" . ' * 16_000 + "a = 1",
                                  f"x = {{y = '''a'''', {DEEP} = 1}}", f'x = {{y = """a""""", {DEEP} = 1}}',
                                  f"x = \"#\" # '\n{DEEP} = 1"])
def test_a_long_dotted_key_never_reaches_the_parser(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose time grows with the square of the parts."""
    (tmp_path / "recipe.toml").write_text(text)
    monkeypatch.setattr(tomllib, "loads", None)
    with pytest.raises(ConfigError, match="a key has more than 16 parts"):
        load(str(tmp_path / "recipe.toml"))
    assert parse_override(f"a={{{DEEP}=1}}") == {"a": f"{{{DEEP}=1}}"}


def test_text_with_many_dots_is_no_key(tmp_path: Path) -> None:
    dots = ".".join("abcdefghijklmnopqrstuvwxyz")
    (tmp_path / "x.toml").write_text(f"# {dots}\nx = '{dots}'\ny = \"{dots}\"\nz = '''\n{dots}'''\nw = [{'1.5, ' * 40}]\n")
    assert read_toml(tmp_path / "x.toml")["y"] == dots


def test_toml_files_are_small(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = 1\n" * 100_000)
    with pytest.raises(ConfigError, match="such a file has at most"):
        read_toml(tmp_path / "x.toml")


def test_a_dry_run_takes_no_memory_for_a_huge_model() -> None:
    # VmHWM, because ru_maxrss also counts what the process had before exec: a copy of this one.
    code = ("import sys\nfrom anybit.__main__ import main\ntry:\n main()\nfinally:\n"
            " print(*(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code, "run", "quickstart/mqat", "--dry-run", "model.classes=3000000"],
                          capture_output=True, text=True, check=False, timeout=240)
    line, memory = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert "parameters: at most 100,000,000" in line
    assert int(memory) < 1_000_000


@pytest.mark.parametrize("text", ["rounds = 0x" + "f" * 20_000, "rounds = " + "9" * 4_000, "rounds = " + "9" * 5_000])
def test_overlong_numbers_in_recipes_and_fleet_files_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    (tmp_path / "fleet.toml").write_text(f"[[device]]\nname = 'a'\nwidth = 'W4'\n{text.replace('rounds', 'count')}")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        command(["show", str(tmp_path / "recipe.toml")])
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_fleet(tmp_path / "fleet.toml")


@pytest.mark.parametrize("width", ["W²", "W٣", "WA" + "9" * 5_000, "W4A٣", "Ⅷ"])
def test_widths_have_few_digits_and_plain_ones(run: Path, tmp_path: Path, width: str) -> None:
    (tmp_path / "fleet.toml").write_text(f"[[device]]\nname = 'a'\nwidth = '{width}'")
    with pytest.raises(AnybitError, match="write W4"):
        command(["eval", str(run), "--width", width, "--import", "net_models"])
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["grid"][evaluation["own"]][width] = {"loss": 1.0, "metric": 1.0}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    with pytest.raises(AnybitError, match=r"write W4|at most 1,000"):
        command(["collect", str(run), "--out", str(tmp_path / "all.json")])
    with pytest.raises(ConfigError, match="write W4"):
        read_fleet(tmp_path / "fleet.toml")


@pytest.mark.parametrize("value", [HALF, "9" * 4_000, "9" * 5_000, f"[{HALF}]", f"{{{HALF}: 1}}"])
@pytest.mark.parametrize("name", ["environment.json", "evaluation.json"])
def test_halves_of_characters_and_overlong_numbers_in_a_run_are_one_line(run: Path, name: str, value: str) -> None:
    content = (run / name).read_text()
    (run / name).write_text(content.replace("{", f'{{"more": {value}, ', 1))
    for verb in (["collect", str(run), "--out", str(run / "out.json")], ["report", str(run), "--out", str(run / "out")]):
        with pytest.raises(AnybitError, match=f"{name} is not readable as JSON") as error:
            command(verb)
        assert "\n" not in str(error.value)


def test_an_override_with_half_a_character_is_one_line() -> None:
    with pytest.raises(ConfigError, match="half a character"):
        command(["show", "quickstart/mqat", "model.name=\udcff"])


def test_cells_are_no_formulas(run: Path, tmp_path: Path) -> None:
    bad = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\tx", "\rx", "\n=1"]
    fine: list[object] = ["-1", "+2.5e-3", "a=b", -1.5, None, "W4"]
    cells = next(csv.reader(io.StringIO(as_csv([[*bad, *fine]]), newline="")))
    assert cells[:7] == [f"'{text}".replace("\r", " ") for text in bad]
    assert cells[7:] == ["-1", "+2.5e-3", "a=b", "-1.5", "", "W4"]
    assert as_csv([["a\r=1+1"]]) == "a =1+1\n"
    for name in ("evaluation.json", "config.json"):
        (run / name).write_text((run / name).read_text().replace('"variant": "mqat"', '"variant": "=cmd|x"'))
    (run / "environment.json").write_text('{"cpu": "@SUM(1)"}')
    assert command(["collect", str(run), "--out", str(tmp_path / "all.csv")]) == 0
    assert command(["report", str(run), "--out", str(tmp_path / "report")]) == 0
    collected, reported = (tmp_path / "all.csv").read_text(), (tmp_path / "report/grid.csv").read_text()
    assert ",'=cmd|x," in collected
    assert ",'@SUM(1)" in collected
    assert ",'=cmd|x," in reported


def test_a_loss_that_overflowed_does_not_keep_a_run_from_being_collected(run: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["loss"] = float("inf")
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command(["collect", str(run), "--out", str(tmp_path / "all.json")]) == 0
    assert command(["collect", str(tmp_path / "all.json"), "--out", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text())["runs"][0]["curve"][-1]["loss"] is None


def test_nothing_from_a_file_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\x1b[2J\x9b1m\u202e\ud800\x07[bold]"
    print_json({evil: evil})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {evil: evil}
    print_lines(f"{evil}\nb")
    print_table([evil, "b"], [[evil, "1"]])
    shown += capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "[bold]" in shown
