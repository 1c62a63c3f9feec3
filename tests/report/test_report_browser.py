"""The page in a real browser: it draws, asks for nothing, complains about nothing, and fits a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib.image
import pytest

pytestmark = pytest.mark.browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE = 390


def browse(page: Path, work: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page in headless Chromium; its network log goes to work/net.json."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail("this test needs Chromium: install it, e.g. 'apt-get install chromium' or 'brew install chromium'")
    quiet = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             # The browser's own errands find nobody; those of the page are in the log all the same.
             "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={work / 'profile'}", "--enable-logging=stderr",
             "--v=0", f"--log-net-log={work / 'net.json'}", "--virtual-time-budget=2000")
    return subprocess.run([program, *quiet, *options, page.as_uri()], capture_output=True, text=True, timeout=240,
                          check=True)


def requests_of_the_page(work: Path) -> list[str]:
    """What the page (not the browser on its own account, which has no origin) asked the network for."""
    log = json.loads((work / "net.json").read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event["params"] for event in log["events"] if event["type"] == start and "url" in event.get("params", {})]
    return [job["url"] for job in jobs if job["initiator"] != "not an origin" and not job["url"].startswith("file:")]


def complaints(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize(("width", "height"), [(1280, 1600), (500, 1600)])
def test_the_page_draws_without_requests_or_complaints(page: Path, tmp_path: Path, width: int, height: int) -> None:
    shot = tmp_path / "shot.png"
    result = browse(page, tmp_path, f"--screenshot={shot}", f"--window-size={width},{height}")
    assert complaints(result) == []
    assert requests_of_the_page(tmp_path) == []
    image = matplotlib.image.imread(shot)
    assert image.shape[:2] == (height, width)
    assert image[..., :3].std() > 0.05, "the screenshot is blank"


def test_only_tables_and_wide_plots_scroll_on_a_phone(page: Path, tmp_path: Path) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(f"""<!doctype html>
        <iframe src="{page.as_uri()}" width="{PHONE}" height="800" style="border:0"></iframe>
        <script>onload = () => {{
        document.title = document.querySelector("iframe").contentDocument.documentElement.scrollWidth }}</script>""")
    result = browse(frame, tmp_path, "--dump-dom", "--allow-file-access-from-files")
    title = re.search(r"<title>(\d+)</title>", result.stdout)
    assert title is not None, result.stdout[:500]
    assert int(title[1]) == PHONE


def test_a_page_that_does_ask_and_complain_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<!doctype html><img src="http://127.0.0.1:9/x.png"><script>console.error("broken")</script>')
    result = browse(page, tmp_path, f"--screenshot={tmp_path / 'shot.png'}")
    assert requests_of_the_page(tmp_path) == ["http://127.0.0.1:9/x.png"]
    assert any("broken" in line for line in complaints(result))
