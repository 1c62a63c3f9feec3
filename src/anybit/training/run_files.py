"""Parts of a run folder: whether a folder is free for a run, how a run goes on, the lines of its logs, its split."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anybit.config import OBJECT
from anybit.errors import AnybitError, RunError
from anybit.files.digests import MANIFEST
from anybit.files.reading import bounded, read_json
from anybit.files.safetensors import to_bytes
from anybit.files.writing import is_temporary

CHECKPOINT = re.compile(r"round-([0-9]+)\.safetensors")
_BEFORE_CONFIG = ("lock", "checkpoints", "split.safetensors", "environment.json", "task.json", MANIFEST)
"""What a run that was killed before its config was written can leave."""


def resume_with(path: Path) -> str:
    """Say how the run at `path` goes on: one of Python objects needs them again."""
    try:
        model = read_json(path / "config.json")["model"]["name"]
    except (AnybitError, OSError, KeyError, TypeError):
        model = ""
    return f"anybit.fit(…, path={str(path)!r}, resume=True)" if model == OBJECT else f"anybit resume {path}"


def check_free(path: Path) -> None:
    """Raise for a folder with a run, or with a file that no run left here before its config was written."""
    # Listed once: a start beside this one goes on meanwhile.
    names = sorted(part.name for part in path.iterdir()) if path.is_dir() else []
    if "config.json" in names:
        raise RunError(f"{path} already holds a run: resume it with '{resume_with(path)}', or choose another folder")
    for name in names:
        half = is_temporary(name) and not (path / name).is_dir()
        if not half and name not in _BEFORE_CONFIG:
            raise RunError(f"{path} is not empty (it has {name}): choose a new folder")


def lines_of(content: bytes | None) -> list[bytes]:
    """Split a log into lines, without a last one that has no end."""
    return (content or b"").split(b"\n")[:-1]


def entry_of(line: bytes) -> dict[str, Any] | None:
    try:
        entry = bounded(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def rewound(content: bytes | None, round: int, evaluated: bool) -> bytes:
    """Return a log of metrics up to a round; not `evaluated`: without the evaluation that this one had as the last.

    Raises ValueError for a log that is damaged, or ends before.
    """
    kept = []
    for line in lines_of(content):
        entry = entry_of(line)
        if entry is None or type(entry.get("round")) is not int:
            raise ValueError("damaged")
        if entry["round"] == round and not evaluated:
            line = json.dumps({key: value for key, value in entry.items() if key != "evaluation"},
                              ensure_ascii=False).encode()
        kept.append(line)
        if entry["round"] == round:
            return b"".join(line + b"\n" for line in kept)
    raise ValueError("shorter")


def split_bytes(split: Sequence[np.ndarray]) -> bytes:
    """Return the content of split.safetensors."""
    sizes = torch.tensor([len(index) for index in split])
    every = torch.from_numpy(np.concatenate([np.asarray(index, np.int64) for index in split]))
    return to_bytes({"sizes": sizes, "examples": every}, {})


def split_of(tensors: Mapping[str, Tensor], path: Path) -> list[np.ndarray]:
    """Return the examples of every client, from the tensors that the file at `path` holds."""
    every, sizes = (tensors.get(name, torch.zeros(0)).numpy() for name in ("examples", "sizes"))
    whole = all(values.dtype == np.int64 and values.ndim == 1 for values in (every, sizes))
    if not whole or not len(sizes) or sizes.min() < 0 or sizes.max() > len(every) or sizes.sum() != len(every):
        raise RunError(f"{path} is damaged (its sizes are not those of its examples)")
    return np.split(every, np.cumsum(sizes)[:-1])
