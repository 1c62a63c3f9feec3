"""A fleet of real processes on this machine, and the certainty that none of them is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anybit.fleet.project import Project, write_project
from tests.fleet.conftest import MODELS

MOODY = '''
"""Devices that misbehave where their node config says so."""

import time
from pathlib import Path

from anybit.fleet.client_app import app as honest
from anybit.fleet.flower import Array, ArrayRecord, ClientApp


class Moody(ClientApp):
    def __call__(self, message, context):
        mood, kind = context.node_config.get("mood"), message.metadata.message_type
        if kind == "train" and mood == "hang" and message.content["order"]["round"] == 1:
            Path(context.node_config["sign"]).touch()
            time.sleep(600)
        reply = honest(message, context)
        if kind == "train" and mood == "garbage":
            reply.content["delta"] = ArrayRecord({"tensors": Array("float32", (3,), "safetensors", b"garbage")})
        return reply


app = Moody()
'''

TINY = ["model.name=anybit_test_models:tiny", "cohort=4", "split.clients=4", "evaluation.every=100",
        "client.batch_size=64", "evaluation.sites=[\"W\"]", "engine=sequential", "fleet.minimum=2"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], Any], seconds: float, what: str, logs: Callable[[], str] = str) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.3)
    raise AssertionError(f"{what}: not within {seconds} s\n{logs()}")


@dataclass
class Marked:
    """Processes that carry a mark in their environment, by which they are found and ended."""

    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    spawned: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "PYTEST_"))}
        return {**own, "PATH": f"{Path(sys.executable).parent}:{own['PATH']}", "OMP_NUM_THREADS": "1", "NO_COLOR": "1",
                "COLUMNS": "200", "ANYBIT_TEST_MARK": self.mark}

    def processes(self) -> list[int]:
        """All that carry the mark: also those that left their session or lost their parent."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def shut_down(self) -> None:
        """Ask, wait, insist."""
        for how in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            for pid in self.processes():
                _signal(pid, how)
            for _ in range(20):
                if not self.processes():
                    break
                time.sleep(0.2)
        for process in self.spawned:
            process.wait()


class Deployment(Marked):
    """One project, its processes and their logs."""

    def __init__(self, path: Path, project: Project) -> None:
        super().__init__()
        self.path, self.project = path, project
        self.nodes: dict[int | str, tuple[subprocess.Popen[bytes], int]] = {}
        """The process of every device that was started, and the length of its log before that."""
        write_project(self.path, self.project)
        (self.server / "app/anybit_test_models.py").write_text(MODELS)

    @property
    def server(self) -> Path:
        return self.path / "server"

    def spawn(self, script: Path, *before: str) -> subprocess.Popen[bytes]:
        """Start a script of the project, behind a command; its output goes to NAME.log beside it."""
        with open(script.parent / "log", "ab") as log:
            process = subprocess.Popen([*before, str(script)], stdout=log, stderr=log, env=self.environment(),
                                       start_new_session=True)
        self.spawned.append(process)
        return process

    def superlink(self) -> None:
        self.link = process = self.spawn(self.server / "start.sh")

        def answers() -> bool:
            assert process.poll() is None, (self.server / "log").read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.project.port)) == 0

        self.wait_for(answers, 240, "the gate listens")

    def wait_for(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait, and if it was in vain, show the ends of all logs."""
        def logs() -> str:
            paths = [*self.path.glob("*/log"), *self.server.glob("*/fleet.jsonl")]
            return "\n".join(f"--- {path}\n{path.read_text()[-4000:]}" for path in paths)

        return wait_for(condition, seconds, what, logs)

    def node(self, name: int | str, *before: str) -> subprocess.Popen[bytes]:
        folder = self.path / f"node-{name}"
        start = folder / "start.sh"
        own = next(word for word in start.read_text().split("--port ")[1:2]).split()[0]
        start.write_text(start.read_text().replace(f"--port {own} --root", f"--port {free_port()} --root"))
        log = folder / "log"
        before_it = log.stat().st_size if log.exists() else 0
        process = self.spawn(start, *before)
        self.nodes[name] = process, before_it
        return process

    def connect(self, *names: int) -> None:
        """Start devices until all are connected, as an init system would.

        Flower refuses a killed one for a minute, since it may still be there.
        """
        def all_connected() -> bool:
            for name in names:
                if name not in self.nodes or self.nodes[name][0].poll() is not None:
                    self.node(name)
            return all(self.connected(name) for name in names)

        self.wait_for(all_connected, 240, f"devices {names} connect")

    def connected(self, name: int) -> bool:
        with open(self.path / f"node-{name}/log", "rb") as log:
            log.seek(self.nodes[name][1])
            return b"SuperNode ID" in log.read()

    def call(self, *arguments: str, check: bool = True, cwd: Path | None = None) -> str:
        done = subprocess.run(arguments, cwd=cwd or self.server, env=self.environment(), capture_output=True, text=True,
                              timeout=240, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def run(self, *arguments: str) -> str:
        """`flwr run`: the id of the new run."""
        answer = json.loads(self.call("./flwr.sh", "run", "app", "fleet", "--format", "json", *arguments))
        assert answer["success"], answer
        return str(answer["run-id"])

    def anybit(self, *arguments: str, check: bool = True) -> str:
        return self.call(sys.executable, "-m", "anybit", *arguments, check=check)

    def status(self, run: str = "run") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.anybit("fleet", "status", ".", "--run", run, "--json", check=False))
        return found

    def finish(self, run: str, seconds: float) -> dict[str, Any]:
        """Wait for the end of a run, and insist that it is a good one."""
        def over() -> bool:
            failed = [entry for entry in self.log(run) if entry["event"] == "failed"]
            assert not failed, self.log(run)
            return (self.server / run / "evaluation.json").exists()

        self.wait_for(over, seconds, f"{run} completes")
        return self.status(run)

    def log(self, run: str) -> list[dict[str, Any]]:
        path = self.server / run / "fleet.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As a power cut would: the process and all that descend from it, at once."""
        for pid in [process.pid, *_descendants(process.pid)]:
            _signal(pid, signal.SIGKILL)
        process.wait()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        queue += (more := children.get(queue.pop(), []))
        found += more
    return found
