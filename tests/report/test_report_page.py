from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from anybit.config import from_recipe
from anybit.errors import MissingExtra, RunError
from anybit.report import accuracy_table, read_runs, write_report
from anybit.report.again import commands
from anybit.schema import plain

Copied = Callable[[str, str], Path]
VOID = {"meta", "br", "link", "img", "hr"}


class Reader(HTMLParser):
    """Checks that tags close, and collects what a page could load and what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.best: list[str] = []
        self._in_best = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action", "xlink:href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        self._in_best = ("class", "best") in attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self._in_best:
            self.best.append(data)
            self._in_best = False

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    assert reader.open == []
    return reader


def test_the_page_is_self_contained(page: Path) -> None:
    reader = read(page)
    local = {"accuracy.csv", "grid.csv"}
    assert all(link.startswith("#") or link in local for link in reader.links)
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(reader.tags)
    text = page.read_text()
    assert not re.search(r"url\(\s*['\"]?(?!#)", text)
    assert "@import" not in text
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)


def test_the_page_shows_the_table(page: Path, trained: Path) -> None:
    table = accuracy_table(read_runs([trained / name for name in ("baseline", "mqat", "qat", "stopped")]))
    best = [c for cells, marks in zip(table.cells(), table.marks(), strict=True)
            for c, mark in zip(cells, marks, strict=True) if mark]
    assert read(page).best[:len(best)] == best
    assert (page.parent / "accuracy.csv").read_text() == table.as_csv()


def test_every_plot_is_there_as_svg_and_png(page: Path) -> None:
    svg = {p.stem for p in page.parent.glob("*.svg")}
    assert svg == {p.stem for p in page.parent.glob("*.png")} == {
        "accuracy-W", "accuracy-A", "accuracy-WA", "loss", "score", "layers-weights",
        "weights-1", "weights-2", "weights-3", "weights-4"}
    assert not list(page.parent.glob(".*")), "no temporary file is left"


def test_an_unfinished_run_is_marked_and_can_be_resumed(page: Path, trained: Path) -> None:
    text = page.read_text()
    assert text.count("not finished</span>") == 1
    assert f"anybit resume {os.path.relpath(trained / 'stopped', page.parent)}\n" in text


def test_the_same_runs_give_the_same_bytes(page: Path, trained: Path) -> None:
    """Also in another folder, as long as it sees the runs under the same paths."""
    again = write_report([trained / name for name in ("baseline", "mqat", "qat", "stopped")], page.parent.with_name("again"))
    first, second = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in (page.parent, again.parent))
    assert first == second


def test_a_single_run(trained: Path, tmp_path: Path) -> None:
    page = write_report([trained / "mqat"], tmp_path)
    assert "<h1>mqat</h1>" in page.read_text()
    assert "the best of each row" not in page.read_text()


def test_a_run_that_has_only_begun(copied: Copied, tmp_path: Path) -> None:
    path = copied("stopped", "begun")
    (path / "metrics.jsonl").unlink()
    for checkpoint in (path / "checkpoints").iterdir():
        checkpoint.unlink()
    page = write_report([path], tmp_path / "out")
    assert "Not evaluated yet." in page.read_text()
    read(page)


def test_names_are_escaped(copied: Copied, tmp_path: Path) -> None:
    name = "<script>alert('&')<⁄script>"
    page = write_report([copied("mqat", name), copied("qat", '"><img onerror=x>')], tmp_path / "out")
    reader = read(page)
    assert not {"script", "img"} & set(reader.tags)
    assert "&lt;script&gt;" in page.read_text()


def test_the_recipes_beside_the_page_are_the_configs(page: Path, trained: Path) -> None:
    for name in ("mqat", "qat"):
        config = from_recipe(str(page.parent / f"{name}.toml"))
        assert plain(config) == json.loads((trained / name / "config.json").read_text())


def edited(path: Path, **settings: object) -> Path:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **settings}))
    return path


def unfinished(path: Path) -> Path:
    """As if it had only begun: a checkpoint belongs to the config it was trained with."""
    for file in (path / "evaluation.json", *(path / "checkpoints").iterdir()):
        file.unlink()
    return path


def test_commands_quote_import_and_start_in_the_folder_of_the_page(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(copied("mqat", "my run"), model={"name": "mine.nets:small"}, loss="others:loss")
    edited(copied("qat", "objects"), model={"name": "<python object>"})
    monkeypatch.chdir(path.parent)
    given = [path, Path("objects")]
    own = "--import mine.nets --import others"
    expected = [f"anybit run my-run.toml {own}", "# objects was trained from Python objects: call anybit.fit again"]
    assert commands(read_runs(given), given, Path("my run/report")) == [*expected, "anybit report .. ../../objects --out ."]
    assert commands(read_runs(given), given, path.parent) == [*expected, "anybit report 'my run' objects --out ."]
    page = write_report(given, Path("my run/report")).read_text()
    assert "Modules of your own (<code>mine.nets</code>, <code>others</code>) must be installed" in page
    for cut in given:
        unfinished(cut)
    assert commands(read_runs(given), given, path.parent)[1:-1] == [
        f"{expected[1]} with its path and resume=True", f"anybit resume 'my run' {own}"]
    (path / "fleet.jsonl").write_text("")
    assert "# my run is trained by a fleet: run its app again" in commands(read_runs(given), given, path)[2]


def test_a_sweep_is_continued_as_a_whole(copied: Copied, tmp_path: Path) -> None:
    home = edited(copied("mqat", "-a"), metric="mine:metric").parent
    (home / "sweep.json").write_text("{}")
    unfinished(copied("baseline", "b"))
    assert commands(read_runs([home]), [home], home / "report")[2:] == [
        "anybit sweep .. --import mine", "anybit report .. --out ."]
    assert commands(read_runs([home / "-a"]), [home / "-a"], home)[1:] == ["anybit report ./-a --out ."]


def test_a_folder_that_cannot_be_written_is_named(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        write_report([trained / "mqat"], tmp_path / "file")


def test_without_jinja2_the_error_says_what_to_install(trained: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match="jinja2"):
        write_report([trained / "mqat"], tmp_path)
