"""Run folders as earlier versions left them: without a manifest, so that tests can look behind its digests."""

from __future__ import annotations

import json
from pathlib import Path

from anybit.files.digests import unmarked


def unrecorded(run: Path) -> Path:
    """Take the manifest from a run, and the mark that it has one."""
    (run / "manifest.json").unlink()
    environment = run / "environment.json"
    environment.write_text(json.dumps(unmarked(json.loads(environment.read_text()))))
    return run
