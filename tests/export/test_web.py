"""The page in a real browser, from a plain static server: a drawn digit, an answer of every width, and what it downloads."""

from __future__ import annotations

import functools
import http.server
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anybit.config import Config
from anybit.errors import ConfigError, ModelError, Rejected
from anybit.export import web
from anybit.export.c import webassembly
from anybit.export.subject import Subject
from anybit.quant.grid import Width
from anybit.schema import read
from tests.export.browser import browse, complaints, requests_elsewhere
from tests.export.test_c import made, subject_of
from tests.export.user_net import TINY

WIDTHS = ("W8", "W6", "W4", "W3", "W2")
DRIVE = """
const pad = document.getElementById("pad"), box = pad.getBoundingClientRect();
const send = (to, type, x, y) => to.dispatchEvent(new PointerEvent(type,
  { clientX: box.left + x * box.width, clientY: box.top + y * box.height, bubbles: true }));
const until = (ready, then) => { const timer = setInterval(() => { if (ready()) { clearInterval(timer); then(); } }, 20); };
const answers = () => [...document.querySelectorAll("tr[data-answer]")].length;
until(() => document.body.dataset.ready, () => {
  document.body.dataset.answers = answers();
  const before = document.getElementById("small").toDataURL();
  send(pad, "pointerdown", 0.4, 0.2);
  for (let i = 0; i <= 20; i++) send(window, "pointermove", 0.5, 0.1 + 0.04 * i);
  send(window, "pointerup", 0.5, 0.9);
  until(() => document.getElementById("small").toDataURL() !== before, () => {
    document.body.dataset.drawn = "yes";
    document.querySelector("tr[data-width=FP32] button").click();
  });
});
"""
UPLOAD = """
const input = document.getElementById("file"), shown = () => document.getElementById("small").toDataURL();
const until = (ready, then) => { const timer = setInterval(() => { if (ready()) { clearInterval(timer); then(); } }, 20); };
until(() => document.body.dataset.ready, async () => {
  const canvas = new OffscreenCanvas(80, 40), context = canvas.getContext("2d");
  const files = new DataTransfer(), before = shown();
  context.fillStyle = "#fff";
  context.fillRect(0, 0, 80, 20);
  files.items.add(new File([await canvas.convertToBlob()], "half.png", { type: "image/png" }));
  input.files = files.files;
  input.dispatchEvent(new Event("change"));
  until(() => shown() !== before, () => {
    const pixels = document.getElementById("small").getContext("2d").getImageData(0, 0, 8, 8).data;
    document.body.dataset.rows = [0, 1, 2, 3, 4, 5, 6, 7].map(row => pixels[32 * row] > 127 ? 1 : 0).join("");
  });
});
"""
PHONE = """<!doctype html><iframe src="index.html" width="390" height="1400"></iframe><script src="phone.js"></script>"""
MEASURE = """
const timer = setInterval(() => {
  const page = document.querySelector("iframe").contentDocument;
  if (!page.body.dataset.ready) return;
  clearInterval(timer);
  document.body.dataset.wide = page.documentElement.scrollWidth;
}, 50);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ResNet-20 on digits; bytes and arithmetic do not depend on training."""
    subject = replace(made("resnet20", "full"), config=read(Config, TINY))
    return web.write_web(subject, tmp_path_factory.mktemp("export") / "web", map(Width.parse, WIDTHS))


class Server(http.server.ThreadingHTTPServer):
    """A static server that counts what it sends and adds a script to the page."""

    def __init__(self, page: Path, script: str = DRIVE) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(page)))
        self.sent: list[tuple[str, int]] = []
        self.added = {"/drive.js": script, "/phone.html": PHONE, "/phone.js": MEASURE,
                      "/drawn.html": (page / "index.html").read_text().replace(
                          "</body>", '<script type="module" src="drive.js"></script></body>')}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path not in self.server.added:
            super().do_GET()
            return
        content = self.server.added[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.path.endswith("html") else "text/javascript")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length":
            self.server.sent.append((self.path, int(value)))
        super().send_header(keyword, value)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(page: Path) -> Iterator[Server]:
    with Server(page) as server:
        yield server
        server.shutdown()


@pytest.mark.browser
def test_a_drawn_digit_is_answered_by_every_width(server: Server, tmp_path: Path) -> None:
    result = browse(f"{server.address}/drawn.html", tmp_path)
    assert complaints(result) == []
    assert requests_elsewhere(tmp_path, server.address) == []
    assert 'data-drawn="yes"' in result.stdout
    assert 'data-answers="5"' in result.stdout, "all but float, which waits for a click"
    rows = re.findall(r'<tr data-width="(\w+)" data-answer="(\d)">(.*?)</tr>', result.stdout)
    assert [width for width, _, _ in rows] == ["W2", "W3", "W4", "W6", "W8", "FP32"]
    assert all(row.count('<span class="bar') == 10 and " ms" in row for _, _, row in rows)
    modules = [path for path, _ in server.sent if path.endswith(".wasm")]
    assert modules == [f"/model.{width.lower()}.wasm" for width, _, _ in rows]
    second = [path for path, _ in server.sent].index(modules[1])
    assert sum(size for _, size in server.sent[:second]) <= 150_000, "before the first answer"
    assert sum(size for path, size in server.sent if path != modules[-1]) <= 1_000_000, "all widths"


@pytest.mark.browser
def test_the_page_fits_a_phone(server: Server, tmp_path: Path) -> None:
    result = browse(f"{server.address}/phone.html", tmp_path)
    assert complaints(result) == []
    assert int(re.findall(r'data-wide="(\d+)"', result.stdout)[0]) <= 390


@pytest.mark.browser
def test_other_images_are_chosen_or_uploaded(tmp_path: Path) -> None:
    page = web.write_web(made("lenet", "full"), tmp_path / "web", [Width.parse("W4")])
    with Server(page, UPLOAD) as server:
        result = browse(f"{server.address}/drawn.html", tmp_path)
        server.shutdown()
    assert complaints(result) == []
    assert 'data-rows="11110000"' in result.stdout, "the middle square of the image, white above"
    assert result.stdout.count("aria-pressed=") == 20
    assert re.search(r'<tr data-width="W4" data-answer="\d">', result.stdout)


@pytest.mark.browser
def test_nothing_is_written_unless_it_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In floats that may be added in any order the outputs differ in their last bits."""
    monkeypatch.setattr(webassembly, "FLAGS", (*webassembly.FLAGS, "-ffast-math"))
    with pytest.raises(Rejected, match=r"no page was written: W4: its outputs in WebAssembly are not those of the C"):
        web.write_web(made("resnet20", "full"), tmp_path / "web", [Width.parse("W4")])
    assert not (tmp_path / "web").exists()


@pytest.mark.browser
def test_a_layer_that_c_has_not(tmp_path: Path) -> None:
    network = nn.Sequential(nn.ConvTranspose2d(1, 4, 2), nn.Flatten(), nn.Linear(324, 10))
    with pytest.raises(ModelError, match=r"--web runs the C export of a model: layer '0': the C export has no operation"):
        web.write_web(subject_of(network), tmp_path / "web", [Width.parse("W4")])
    assert not (tmp_path / "web").exists()


def test_what_a_page_cannot_show(subject: Subject) -> None:
    numbers = replace(subject.data.test, y=torch.zeros(len(subject.data.test)))
    data = replace(subject.data, test=numbers)
    with pytest.raises(ConfigError, match="the targets are no labels"):
        web.check_web(replace(subject, evaluator=replace(subject.evaluator, data=data)))
    lines = replace(subject.evaluator, images=torch.zeros(2, 64))
    with pytest.raises(ConfigError, match=r"images of 1 or 3 channels, but the inputs have shape \(64,\)"):
        web.check_web(replace(subject, evaluator=lines))
