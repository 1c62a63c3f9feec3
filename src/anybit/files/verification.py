"""Verifying what lies on a disk: run folders, sweeps, exports and single files of tensors, file by file.

Nothing is built or trusted: names, sizes and digests are compared, and signatures where a public key is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anybit.errors import RunError
from anybit.files.digests import MANIFEST, Digests, State, promised
from anybit.files.holding import own_folder
from anybit.files.reading import read_bytes, read_json
from anybit.files.safetensors import load
from anybit.files.signatures import SUFFIX, signed, write_signature
from anybit.files.writing import is_temporary

EXPORT = "export.json"
PAGE = "web"
"""The folder of an export in which its page lies."""
States = dict[str, State]
"""{file, by its name in the folder: ok, damaged, missing, unknown: nobody recorded it, or unchecked: nobody needs to}."""
APART = ("timing.jsonl", "fleet.jsonl")
"""Times and the events of a fleet, which are no part of a result."""


def verify(path: Path, key: Any = None) -> States:
    """Compare every file of a run, sweep or export, or one file of tensors, with what was recorded.

    key: a public key; each manifest, or the file itself, must then be signed with the private one.
    """
    if path.is_file():
        return {path.name: _file(path), **_signature(path, key)}
    states: States = {}
    for part in roots(path):
        prefix = "" if part.parent == path else f"{part.parent.relative_to(path)}/"
        own = _export(part.parent) if part.name == EXPORT else _recorded(part.parent)
        states |= {prefix + name: state for name, state in {**own, **_signature(part, key)}.items()}
    return states


def roots(path: Path) -> Iterator[Path]:
    """Yield the files that hold the digests of others, there or not: of a run, its exports, a sweep's runs, an export."""
    if (path / EXPORT).is_file():
        yield path / EXPORT
    elif (path / "config.json").is_file() or (path / "sweep.json").is_file():
        yield path / MANIFEST
        inner = sorted(config.parent for config in path.glob("*/config.json")) if (path / "sweep.json").is_file() else []
        for run in inner:
            yield from roots(own_folder(run))
        if (path / "export" / EXPORT).is_file():
            yield own_folder(path / "export") / EXPORT
    else:
        raise RunError(f"{path} is neither a run, a sweep nor an export: it has no config.json, sweep.json or {EXPORT}"
                       if path.exists() else f"{path} does not exist")


def _recorded(folder: Path) -> States:
    names = _names(folder, "checkpoints")
    if not (folder / MANIFEST).exists():
        lost: States = {MANIFEST: "missing"} if promised(folder) else {}
        return lost | {name: _tensors(folder / name) if name.endswith(".safetensors") else
                       "unchecked" if name in APART else "unknown" for name in names}
    digests, growing = Digests.read(folder) or Digests({}), not (folder / "evaluation.json").exists()
    return {name: "unchecked" if name in APART else digests.state(name, _content(folder / name), growing)
            for name in sorted({*digests.files, *names})}


def _export(folder: Path) -> States:
    content = read_json(folder / EXPORT)
    known = content.get("sha256") if isinstance(content, dict) else None
    if not isinstance(known, dict) or not all(isinstance(digest, str) and belongs(name) for name, digest in known.items()):
        raise RunError(f"{folder / EXPORT} records no digests: export again with this version of anybit")
    states: States = {}
    for name in sorted({*known, *_names(folder, PAGE)} - {EXPORT}):
        content = _content(folder / name)
        same = content is not None and hashlib.sha256(content).hexdigest() == known.get(name)
        states[name] = "unknown" if name not in known else "missing" if content is None else "ok" if same else "damaged"
    return states


def _file(path: Path) -> State:
    """Compare a file with the digest of the export that it lies in, or with the one that a file of tensors holds itself."""
    if path.suffix == ".safetensors":
        return _tensors(path)
    if (path.parent / EXPORT).is_file() and path.name != EXPORT:
        return _export(path.parent)[path.name]
    raise RunError(f"{path} holds no digest of its own: give the folder of the run, sweep or export")


def belongs(name: str) -> bool:
    """Tell whether a name is that of a file in an export's folder, or in its page's."""
    last = name.removeprefix(f"{PAGE}/")
    return last not in ("", "..") and Path(last).name == last


def _names(folder: Path, inner: str) -> list[str]:
    """List the files that may belong to a folder and one in it; not those that are only there while somebody writes."""
    found = [path for place in (folder, own_folder(folder / inner)) if place.is_dir() for path in place.iterdir()]
    return [str(path.relative_to(folder)) for path in found if path.is_file() and not is_temporary(path.name)
            and path.name not in ("lock", MANIFEST) and path.suffix != SUFFIX]


def _content(path: Path) -> bytes | None:
    return read_bytes(path) if path.exists() else None


def _tensors(path: Path) -> State:
    """Compare a file of tensors with the digest that it holds itself."""
    try:
        _, metadata = load(path)
    except RunError:
        return "damaged"
    return "ok" if "sha256" in metadata else "unknown"


def _signature(file: Path, key: Any) -> States:
    name = file.name + SUFFIX
    there = file.with_name(name).exists()
    if key is None:
        return {name: "unknown"} if there else {}
    return {name: "missing" if not there else "ok" if file.exists() and signed(file, key) else "damaged"}


def sign(path: Path, key: Any) -> list[Path]:
    """Sign each manifest of a folder, or a file of tensors, unless something in it is not as recorded."""
    targets = [path] if path.is_file() else list(roots(path))
    for target in targets:
        if not target.exists():
            raise RunError(f"{target} does not exist, and only what it records can be signed: an earlier version began it")
        if target.name == MANIFEST and _unfinished(target.parent):
            raise RunError(f"{target.parent} is not finished: its files will change; sign it when it is")
    for name, state in verify(path).items():
        if state in ("damaged", "missing"):
            raise RunError(f"{path}: {name} is {state}, and is not signed")
    return [write_signature(target, key) for target in targets]


def _unfinished(folder: Path) -> bool:
    return (folder / "config.json").exists() and not (folder / "evaluation.json").exists()
