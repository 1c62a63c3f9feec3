"""What strangers hand over: runs whose parts are links, manifests, and devices that say who they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, cast

from fuzz import Reader
from fuzz_runs import recorded, trained
from mutate import mutate_json

from anybit.errors import RunError
from anybit.files.reading import read_json
from anybit.files.verification import verify
from anybit.report import read_runs
from anybit.training.run_folder import RunFolder

_PARTS = ("checkpoints", "lock", "metrics.jsonl", "timing.jsonl", "steps.json", "evaluation.json", "config.json")


def digests(home: Path) -> Reader:
    """The manifest of a run."""
    _, folder = recorded(home)

    def look() -> None:
        verify(folder.path)
        read_runs([folder.path])
    return Reader(folder.file("manifest.json"), mutate_json, look)


def hello(home: Path) -> Reader:
    """What the server does with a device that says who it is."""
    from anybit.fleet.exchange import Exchange, Reply
    from anybit.fleet.flower import ConfigRecord, RecordDict
    from anybit.fleet.roster import Roster
    from anybit.fleet.text import harmless

    file = home / "hello/values.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"client": 3, "width": "W4", "role": "train"}))

    def look() -> None:
        logged: list[dict[str, Any]] = []
        try:
            record = ConfigRecord(dict(json.loads(file.read_bytes())))
        except (TypeError, ValueError, RecursionError):
            raise RunError("Flower does not make a message of it") from None
        roster = Roster(Exchange(cast(Any, None), 0.1, lambda entry: logged.append(harmless(entry))), "W", 1.0)
        roster._welcome(7, Reply(-1, RecordDict({"answer": record}), "", False, 0))
        json.dumps(logged, ensure_ascii=False).encode()
        if not roster.members:
            raise RunError(logged[0]["reason"])
    return Reader(file, mutate_json, look)


def links(home: Path) -> Reader:
    """A run in which folders and files are links that lead out of it."""
    _, folder = trained(home)
    precious, file = home / "precious", home / "plan/links.json"
    shutil.copytree(folder.path / "checkpoints", precious)
    (precious / ".notes.txt.abcd1234").write_text("mine")
    file.parent.mkdir()
    file.write_text(json.dumps(dict.fromkeys(_PARTS, False)))
    before = {path.name: path.read_bytes() for path in precious.iterdir()}

    def look() -> None:
        plan = read_json(file)
        shutil.rmtree(home / "copy", ignore_errors=True)
        copy = Path(shutil.copytree(folder.path, home / "copy"))
        for name in _PARTS:
            if isinstance(plan, dict) and (target := plan.get(name)):
                _remove(copy / name)
                (copy / name).symlink_to(precious if isinstance(target, str) else precious / ".notes.txt.abcd1234")
        try:
            opened = RunFolder.open(copy)
            with opened.locked():
                opened.tidy()
                opened.append("metrics", {"round": 5, "loss": 1.0})
            read_runs([copy])
        finally:
            if {path.name: path.read_bytes() for path in precious.iterdir()} != before:
                raise AssertionError("a link led out of the folder")
    return Reader(file, mutate_json, look)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
