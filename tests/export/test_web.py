"""The page in a real browser, from a plain static server: every width classifies, and nothing else is asked for."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from anybit.errors import ConfigError
from anybit.export import web
from anybit.export.exporting import Exporter, Options
from anybit.export.subject import Subject
from anybit.quant.grid import Width
from tests.export.browser import browse, complaints, requests_elsewhere


@pytest.fixture(scope="module")
def page(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Path:
    exporter = Exporter(subject, tmp_path_factory.mktemp("web"), Options(operands="uint8"))
    return web.write_web(exporter, [exporter.export(Width.parse(w)) for w in ("WA8", "W4A8", "W3A8", "W2")])


@pytest.fixture
def address(page: Path) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=str(page))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.browser
def test_every_width_runs_in_the_browser(address: str, subject: Subject, tmp_path: Path) -> None:
    result = browse(f"{address}/index.html#all", tmp_path)
    assert complaints(result) == []
    assert requests_elsewhere(tmp_path, address) == []
    assert 'role="status">done<' in result.stdout
    rows = re.findall(r'<tr data-width="(\w+)">(.*?)</tr>', result.stdout)
    assert [width for width, _ in rows] == ["WA8", "W4A8", "W3A8", "W2"]
    for _, row in rows:
        cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
        sample, whole = float(cells[3]), float(cells[4])
        assert abs(sample - whole) < 12, "200 of 360 images: about the accuracy of the whole test set"
    assert len(re.findall(r"<figure>", result.stdout)) == 18


def test_what_a_page_cannot_show(exporter: Exporter) -> None:
    with pytest.raises(ConfigError, match="there is none"):
        web.write_web(exporter, [exporter.export(Width(4, 32), "archive")])


def test_without_npm(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"with npm, which is not installed: install Node\.js"):
        web.write_web(exporter, [exporter.export(Width(4, 32))])
