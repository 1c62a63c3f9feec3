"""Headless Chromium, and what it asked the network for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browse(address: str, work: Path) -> subprocess.CompletedProcess[str]:
    """The page's final DOM on stdout, its console on stderr, its network log in work/net.json."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.fail("this test needs Chromium: install it, e.g. 'apt-get install chromium' or 'brew install chromium'")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               # The browser's own errands find nobody; those of the page are in the log all the same.
               "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={work / 'profile'}",
               "--enable-logging=stderr", "--v=0", f"--log-net-log={work / 'net.json'}", "--virtual-time-budget=60000",
               "--dump-dom")
    return subprocess.run([program, *options, address], capture_output=True, text=True, timeout=240, check=True)


def requests_elsewhere(work: Path, address: str) -> list[str]:
    """What the page (not the browser on its own account, which has no origin) asked other servers for."""
    log = json.loads((work / "net.json").read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    jobs = [event["params"] for event in log["events"] if event["type"] == start and "url" in event.get("params", {})]
    asked = [job["url"] for job in jobs if job["initiator"] != "not an origin"]
    assert any(url.startswith(address) for url in asked), "the log holds the page's requests"
    return [url for url in asked if not url.startswith((f"{address}/", "data:"))]


def complaints(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
