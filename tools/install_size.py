"""Measure what an installation downloads, and what it takes on disk and in time: python tools/install_size.py demo all,dev

Each argument is a layer, extras of anybit that are installed over the layers before it, into a new environment under the
pinned constraints and without pip's cache. The files are those that pip itself reports (`pip install --report`); the seconds
are this machine's and this line's, the bytes are not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def size(url: str) -> int:
    """Return the bytes of a file on the disk or on a server, which is asked for the length alone."""
    if url.startswith("file:"):
        path = Path(urllib.request.url2pathname(urllib.parse.urlparse(url).path))
        return path.stat().st_size if path.is_file() else 0  # anybit itself is a folder
    request = urllib.request.Request(url, method="HEAD")
    with urllib.request.urlopen(request, context=ssl.create_default_context(), timeout=60) as answer:
        return int(answer.headers["Content-Length"])


def files(report: dict[str, Any]) -> dict[str, int]:
    """Return {name and version: bytes} of what pip's report says it took."""
    return {f"{item['metadata']['name']} {item['metadata']['version']}": size(item["download_info"]["url"])
            for item in report["install"] if item["metadata"]["name"] != "anybit"}


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def measure(layers: list[str], home: Path) -> list[dict[str, Any]]:
    """Install layer after layer into a new environment, and return what each brought."""
    subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
    found, before = [], on_disk(home / "venv")
    for extras in layers:
        report, start = home / "report.json", time.perf_counter()
        subprocess.run([str(home / "venv/bin/pip"), "install", "-qq", "--no-cache-dir", "--report", str(report),
                        "--constraint", "constraints.txt", "--editable", f".[{extras}]"], cwd=ROOT, check=True)
        seconds, after = time.perf_counter() - start, on_disk(home / "venv")
        parts = files(json.loads(report.read_text()))
        largest = sorted(parts.items(), key=lambda part: -part[1])[:8]
        found.append({"extras": extras, "packages": len(parts), "download_bytes": sum(parts.values()),
                      "installed_bytes": after - before, "seconds": round(seconds, 1), "largest": dict(largest)})
        before = after
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="+", help="extras of a layer, e.g. demo")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        layers = measure(options.layers, Path(home))
    text = json.dumps({"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "python": platform.python_version(),
                       "system": f"{platform.system()} {platform.machine()}", "layers": layers}, indent=1) + "\n"
    if options.out:
        options.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
