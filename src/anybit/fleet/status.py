"""`anybit fleet status`: the state of a run, by its folder and by Flower.

Flower's report alone is not enough: `flwr run --stream` ends well even when the ServerApp crashed, and a SuperLink that
is gone reports nothing.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from anybit.errors import RunError, printable
from anybit.fleet.text import harmless
from anybit.training.run_folder import RunFolder

State = Literal["waiting", "running", "completed", "failed", "unknown"]
PATIENCE = 60
"""Seconds until Flower's command must have answered."""


@dataclass(frozen=True)
class Status:
    """The status of a run."""

    state: State
    reason: str
    round: int
    rounds: int
    devices: int
    """The number of devices that have said hello."""
    last: dict[str, Any]
    """The last round: asked, answered, missing, rejected, bytes, seconds."""
    quarantined: dict[int, int] = field(default_factory=dict)
    """The round in which each client in quarantine is asked again."""


def fleet_status(server: Path, run: str = "run") -> Status:
    """Return the status of a run in a project's server folder."""
    if not (server / "flwr.sh").is_file():
        raise RunError(f"{server} is not the server folder of a fleet: it has no flwr.sh ('anybit fleet init' writes one)")
    if not (server / run / "config.json").is_file():
        return Status("waiting", "no run has started: ./flwr.sh run app fleet", 0, 0, 0, {})
    folder = RunFolder.open(server / run)
    log, rounds = folder.lines("fleet"), int(folder.config()["rounds"])
    state, reason = _state(server, folder, log)
    last: dict[str, Any] = next((entry for entry in reversed(log) if entry["event"] == "round"), {})
    done = max((entry["round"] for entry in folder.lines("metrics")), default=0)
    greeted = {entry["client"] for entry in log if entry["event"] == "device"}
    quarantined = {} if folder.finished else _quarantined(log, done)
    if state == "running":
        reason = "; ".join(filter(None, [reason, *(f"client {client} is in quarantine until round {until}"
                                                   for client, until in quarantined.items())]))
    return Status(state, printable(reason), done, rounds, len(greeted), harmless(last), quarantined)


def _quarantined(log: list[dict[str, Any]], done: int) -> dict[int, int]:
    """Return {client: the round in which it is asked again} of those in quarantine after `done` rounds."""
    until: dict[int, int] = {}
    for entry in log:
        if entry["event"] == "quarantine":
            until[entry["client"]] = entry["until"]
        for device in entry.get("devices", []):
            until.pop(device["client"], None)
    return {client: round for client, round in sorted(until.items()) if round > done + 1}


def _state(server: Path, folder: RunFolder, log: list[dict[str, Any]]) -> tuple[State, str]:
    if folder.finished:
        return "completed", ""
    started = [entry for entry in log if entry["event"] == "run"]
    if not started:
        return "unknown", "the folder holds no fleet's run"
    id = started[-1]["id"]
    reasons = [entry["reason"] for entry in log if entry["event"] == "failed" and entry["id"] == id]
    if reasons:
        return "failed", reasons[-1]
    flower_status, details = _flower(server, id)
    if flower_status in ("pending", "starting", "running"):
        return "running", ""
    if flower_status.startswith("finished"):
        return "failed", f"Flower ended the run ({details}); its log: ./flwr.sh log {id} fleet --show"
    try:
        with folder.locked():
            return "unknown", (f"the SuperLink does not answer ({details}): is it running? A new run continues from the "
                               "checkpoint")
    except RunError:  # a process is training in the folder
        return "running", "the SuperLink does not answer, but the ServerApp is at work"


def _flower(server: Path, id: str) -> tuple[str, str]:
    """Ask Flower's command for (status, details) of a run; the status is empty where there is no answer."""
    command = ["./flwr.sh", "list", "fleet", "--run-id", id, "--format", "json"]
    try:
        done = subprocess.run(command, cwd=server, capture_output=True, text=True, timeout=PATIENCE, check=False)
        answer = json.loads(done.stdout)
        if not answer.get("success"):
            return "", " ".join(str(answer.get("error-message", "no reason given")).split())[:200]
        (run,) = answer["runs"]
        return str(run["status"]), str(run["status-details"])
    except FileNotFoundError:
        return "", "flwr is not installed here"
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PATIENCE} s"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return "", f"its answer cannot be read: {error}"
