"""Digests of a folder's files, kept in its manifest.json: damage, and files of another folder, are noticed.

{"format": 2, "files": {NAME: {"sha256": …, "bytes": …}}}: SHA-256 and size of the whole file, of a log (.jsonl) those of its
beginning, as long as it was when that was written down. A file that is just being replaced has a list: what it may be,
null for nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from anybit.errors import RunError
from anybit.files.reading import read_json
from anybit.files.writing import to_json, write_bytes

MANIFEST = "manifest.json"
FORMAT = 2
"""Of folders with a manifest. Those of the versions before have none."""
_MARK = "format"
"""In environment.json: that the folder has a manifest, so that a missing one is noticed."""
State = Literal["ok", "damaged", "missing", "unknown", "unchecked"]
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"(?!\.)[^/\\\0]+(/(?!\.)[^/\\\0]+)?")
"""A file of the folder, or of a folder in it: nothing that leads elsewhere."""


class Digest(NamedTuple):
    """What is known of a file's content."""

    sha256: str
    size: int

    @staticmethod
    def of(content: bytes) -> Digest:
        return Digest(hashlib.sha256(content).hexdigest(), len(content))


Accepted = tuple[Digest | None, ...]
"""What a file may be: one digest; more while it is replaced; none stands for a file that is not there."""


@dataclass(frozen=True)
class Digests:
    """The digests of a folder's files."""

    files: Mapping[str, Accepted]

    @staticmethod
    def read(folder: Path) -> Digests | None:
        """Read a folder's manifest; none in folders of the versions before, and where a run was killed before its first."""
        path = folder / MANIFEST
        if not path.exists():
            if promised(folder) and (folder / "config.json").exists():
                raise RunError(f"{path} is missing: restore it; without it nobody knows whether the other files are those "
                               "that the run wrote")
            return None
        content = read_json(path)
        try:
            format = content["format"]
            if type(format) is int and format > FORMAT:
                raise RunError(f"{path} has format {format}, and this version of anybit knows {FORMAT}: use a newer one")
            if format != FORMAT:
                raise ValueError(f"format {format!r}")
            return Digests({_name(name): _accepted(entry) for name, entry in content["files"].items()})
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is not a manifest ({type(error).__name__}: {error})") from None

    def to_bytes(self) -> bytes:
        """Return the manifest's content: equal digests give equal bytes."""
        files = {name: _plain(self.files[name]) for name in sorted(self.files)}
        return to_json({"format": FORMAT, "files": files})

    def write(self, folder: Path) -> None:
        write_bytes(folder / MANIFEST, self.to_bytes())

    def changed(self, changes: Mapping[str, Accepted | None]) -> Digests:
        """Return these digests with others for some files; none: without that file."""
        return Digests({name: entry for name, entry in {**self.files, **changes}.items() if entry is not None})

    def state(self, name: str, content: bytes | None, growing: bool = False) -> State:
        """Compare a file's content, none where there is no file; growing: a log may be longer than its beginning."""
        accepted = self.files.get(name)
        if accepted is None:
            return "unknown"
        if content is None:
            return "ok" if None in accepted else "missing"
        return "ok" if any(d is not None and _same(d, content, growing and name.endswith(".jsonl")) for d in accepted) \
            else "damaged"


def marked(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what environment.json says in a folder that has a manifest."""
    return {**environment, _MARK: FORMAT}


def unmarked(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what environment.json says of software and machine."""
    return {key: value for key, value in environment.items() if key != _MARK}


def promised(folder: Path) -> bool:
    """Tell whether a folder must have a manifest."""
    path = folder / "environment.json"
    environment = read_json(path) if path.exists() else {}
    return isinstance(environment, dict) and _MARK in environment


def _same(digest: Digest, content: bytes, growing: bool) -> bool:
    if len(content) < digest.size or (len(content) > digest.size and not growing):
        return False
    return hashlib.sha256(memoryview(content)[:digest.size]).hexdigest() == digest.sha256


def _plain(accepted: Accepted) -> Any:
    each = [None if digest is None else {"sha256": digest.sha256, "bytes": digest.size} for digest in accepted]
    return each[0] if len(each) == 1 else each


def _accepted(entry: Any) -> Accepted:
    return tuple(_digest(each) for each in entry) if isinstance(entry, list) and entry else (_digest(entry, False),)


def _digest(entry: Any, replaced: bool = True) -> Digest | None:
    if entry is None and replaced:
        return None
    sha256, size = entry["sha256"], entry["bytes"]
    if not isinstance(sha256, str) or not _HEX.fullmatch(sha256) or type(size) is not int or size < 0:
        raise ValueError(f"{str(entry)[:200]} is no digest")
    return Digest(sha256, size)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"'{name[:60]}' is no file of the folder")
    return name
