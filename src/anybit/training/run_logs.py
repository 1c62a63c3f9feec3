"""The logs of a run: one JSON entry a line. metrics.jsonl is part of the result, and a resume rewinds it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anybit.errors import RunError
from anybit.files.digests import Digest
from anybit.files.holding import no_link
from anybit.files.reading import read_bytes
from anybit.files.writing import sync_folder, write_bytes
from anybit.training.ledger import METRICS, Ledger
from anybit.training.run_files import entry_of, lines_of, resume_with, rewound


class Logs(Ledger):
    """The files of a run that grow."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._running: Any = None
        self._length = 0

    def append(self, log: str, entry: Mapping[str, Any]) -> None:
        """Add a line to a log."""
        line = (json.dumps(entry, ensure_ascii=False) + "\n").encode()
        name = f"{log}.jsonl"
        with self.writing(name), open(self.file(name), "ab", opener=no_link) as file:
            file.write(line)
        if name == METRICS and self._running is not None:
            self._running.update(line)
            self._length += len(line)

    def synced_metrics(self) -> Digest:
        """Make the metrics survive a power cut, and return their digest; they are not read again for it."""
        with open(self.file(METRICS), "ab", opener=no_link) as metrics:
            os.fsync(metrics.fileno())
            length = metrics.tell()
        sync_folder(self.path)
        if self._running is None or self._length != length:
            self._running, self._length = hashlib.sha256(read_bytes(self.file(METRICS))), length
        return Digest(self._running.hexdigest(), length)

    def lines(self, log: str) -> list[dict[str, Any]]:
        """Read the entries of a log. A last line that a crash cut short is left out; any other damage is an error."""
        path = self.file(f"{log}.jsonl")
        entries = []
        for number, line in enumerate(lines_of(self._log(path.name)), 1):
            entry = entry_of(line)
            if entry is None:
                raise RunError(f"{path}, line {number}, is damaged: '{resume_with(self.path)}' writes anew what came "
                               "after the last checkpoint")
            entries.append(entry)
        return entries

    def _log(self, name: str) -> bytes | None:
        """Read a log; times and a fleet's events differ from run to run, and the manifest does not know them."""
        path = self.file(name)
        return self.checked(name) if name == METRICS else read_bytes(path) if path.exists() else None

    def clear_logs(self) -> None:
        """Drop what was logged before the first checkpoint."""
        self._running = None
        self.record({METRICS: None})
        for name in (METRICS, "timing.jsonl"):
            with self.writing(name):
                self.file(name).unlink(missing_ok=True)

    def rewind_to_round(self, round: int, length: int) -> None:
        """Cut the metrics to their length after a round, and drop later times."""
        self._running = None
        content = self.checked(METRICS) or b""
        if len(content) < length:
            raise self.too_short()
        # Recorded first: until they are cut, the metrics are longer than what is recorded, which is no damage.
        self.record({METRICS: (Digest.of(content[:length]),)})
        with self.writing(METRICS), open(self.file(METRICS), "ab", opener=no_link) as file:
            file.truncate(length)
        self._rewind_times(round)

    def rewind_to_former_end(self, round: int, evaluated: bool) -> None:
        """Make the metrics those of a run that was longer from the start, whose round this was not its last."""
        self._running = None
        try:
            content = rewound(self.checked(METRICS), round, evaluated)
        except ValueError:
            raise self.too_short() from None
        self.replace(METRICS, content)
        self._rewind_times(round)

    def _rewind_times(self, round: int) -> None:
        # Times are no part of the result: what is damaged of them does not keep a run from going on.
        timing = [entry for line in lines_of(self._log("timing.jsonl")) if (entry := entry_of(line)) is not None
                  and type(entry.get("round")) is int and entry["round"] <= round]
        with self.writing("timing.jsonl"):
            write_bytes(self.file("timing.jsonl"), "".join(json.dumps(entry) + "\n" for entry in timing).encode())
