"""The documentation site: its references cover the code, and every link of a page leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import reference_pages
import settings_page

import anybit
from anybit.config import Config


def test_every_setting_has_a_meaning_and_its_default() -> None:
    listed = [*settings_page.settings(), *(s for name, options in settings_page.tables().items()
                                      for s in settings_page.settings(options, f"{name}."))]
    assert [s.name for s in listed if not s.meaning] == []
    found = {s.name: s.default for s in listed}
    assert found["client.lr"] == str(Config().client.lr)
    assert found["server.lr"] == "none"
    assert found["evaluation.bits"] == "[32, 8, 6, 4, 3, 2]"
    rows = [line for line in settings_page.page().splitlines() if line.startswith("| `text` ")]
    assert [row.endswith(" |") for row in rows] == [True], "a default of several lines would end the row"


def test_every_name_and_verb_is_in_the_reference() -> None:
    assert set(re.findall(r"^### (\w+)$", reference_pages.names(), re.MULTILINE)) == set(anybit.__all__)
    assert "anybit.apqn(bits: int = 4, sites: SiteKinds = 'W')" in reference_pages.names()
    assert "    *,\n    rounds: int = 100,\n" in reference_pages.names()
    assert "## anybit fleet init\n" in reference_pages.commands()
    assert "| `Diverged` | 3 |" in reference_pages.failures()


def test_links_are_led_into_the_site_and_broken_ones_are_named() -> None:
    text = ("[a](../../results/quickstart/accuracy.csv) [b](../../SECURITY.md#x) [c](../reference/errors.md) [d](none.md) "
            "`[e](f.md)` [g](../../src/anybit/config/__init__.py#client)")
    moved, wanted, broken = pages.relinked("docs/how-to/choose.md", text, {"reference/errors.md"})
    assert moved == ("[a](../files/results/quickstart/accuracy.csv) [b](../security.md#x) [c](../reference/errors.md) "
                     "[d](none.md) `[e](f.md)` [g](../reference/settings.md#client)")
    assert wanted == {"results/quickstart/accuracy.csv"}
    assert pages.relinked("docs/deployment.md", "```sh server\nls\n```\n", set())[0] == "```sh\nls\n```\n"
    assert broken == ["docs/how-to/choose.md links to none.md, which is not there"]


def test_the_pages_are_laid_out_without_broken_links(tmp_path: Path) -> None:
    assert pages.lay_out(tmp_path / "pages") == []
    navigation = (pages.ROOT / "zensical.toml").read_text()
    named = set(re.findall(r'"([\w/-]+\.md)"', navigation))
    assert [page for page in sorted(named) if not (tmp_path / "pages" / page).exists()] == []
    there = {page.relative_to(tmp_path / "pages").as_posix() for page in (tmp_path / "pages").rglob("*.md")
             if "files" not in page.parts}
    assert sorted(there - named) == [], "pages that no menu leads to"
