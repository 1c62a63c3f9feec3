"""Write requirements.lock: python tools/lock.py

pip resolves anybit[all] under constraints.txt without installing it, and says the SHA-256 of every file it would take.
torch and its own companions are left out: their builds differ by platform and index (see SECURITY.md).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = """# anybit[all] without torch, for Linux x86-64 and CPython {version}, with the SHA-256 of every file.
# Made by 'make lock'; how to install from it: SECURITY.md
"""
_OF_TORCH = re.compile(r"torch|triton|(nvidia|cuda)[-_].*")


def lock(report: dict[str, Any], version: str) -> str:
    """The lines of the lock, from what pip reports."""
    lines = []
    for item in report["install"]:
        name, hashes = item["metadata"]["name"], item["download_info"].get("archive_info", {}).get("hashes", {})
        if name != "anybit" and not _OF_TORCH.fullmatch(name):
            lines.append(f"{name}=={item['metadata']['version']} --hash=sha256:{hashes['sha256']}")
    return HEAD.format(version=version) + "\n".join(sorted(lines, key=str.lower)) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report",
                        f"{folder}/report.json", "--constraint", "constraints.txt", ".[all]"], cwd=ROOT, check=True)
        report = json.loads(Path(folder, "report.json").read_text())
    version = ".".join(map(str, sys.version_info[:2]))
    (ROOT / "requirements.lock").write_text(lock(report, version))


if __name__ == "__main__":
    main()
