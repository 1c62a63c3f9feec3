"""`anybit fleet status`: what Flower says of a run, what the run's own folder says, and which of the two is true.

Flower's word alone is not enough: `flwr run --stream` ends well even when the ServerApp crashed, and a SuperLink that is
gone says nothing.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anybit.errors import RunError
from anybit.training.run_folder import RunFolder

State = Literal["waiting", "running", "completed", "failed", "unknown"]
PATIENCE = 60
"""Seconds for Flower's command to answer."""


@dataclass(frozen=True)
class Status:
    """Where a run is."""

    state: State
    reason: str
    round: int
    rounds: int
    devices: int
    """How many have said hello."""
    last: dict[str, Any]
    """The last round: asked, answered, missing, rejected, bytes, seconds."""


def fleet_status(server: Path, run: str = "run") -> Status:
    """The status of a run of the project whose server folder this is."""
    if not (server / "flwr.sh").is_file():
        raise RunError(f"{server} is not the server folder of a fleet: it has no flwr.sh ('anybit fleet init' writes one)")
    if not (server / run / "config.json").is_file():
        return Status("waiting", "no run has started: ./flwr.sh run app fleet", 0, 0, 0, {})
    folder = RunFolder.open(server / run)
    log, rounds = folder.lines("fleet"), int(folder.config()["rounds"])
    state, reason = _state(server, folder, log)
    turns = [entry for entry in log if entry["event"] == "round"]
    done = max((entry["round"] for entry in folder.lines("metrics")), default=0)
    greeted = {entry["client"] for entry in log if entry["event"] == "device"}
    return Status(state, reason, done, rounds, len(greeted), turns[-1] if turns else {})


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
    said, details = _flower(server, id)
    if said in ("pending", "starting", "running"):
        return "running", ""
    if said.startswith("finished"):
        return "failed", f"Flower ended the run ({details}); its log: ./flwr.sh log {id} fleet --show"
    if _held(folder):
        return "running", "the SuperLink does not answer, but the ServerApp is at work"
    return "unknown", f"the SuperLink does not answer ({details}): is it running? A new run continues from the checkpoint"


def _held(folder: RunFolder) -> bool:
    """Whether a process is training in the folder now."""
    try:
        with folder.locked():
            return False
    except RunError:
        return True


def _flower(server: Path, id: str) -> tuple[str, str]:
    """(status, details) of a run, by Flower's own command."""
    command = ["./flwr.sh", "list", "fleet", "--run-id", id, "--format", "json"]
    try:
        done = subprocess.run(command, cwd=server, capture_output=True, text=True, timeout=PATIENCE, check=False)
        answer = json.loads(done.stdout)
        if not answer.get("success"):
            return "", " ".join(str(answer.get("error-message", "no reason given")).split())[:200]
        (found,) = answer["runs"]
        return str(found["status"]), str(found["status-details"])
    except FileNotFoundError:
        return "", "flwr is not installed here"
    except subprocess.TimeoutExpired:
        return "", f"no answer within {PATIENCE} s"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return "", f"its answer cannot be read: {error}"
