"""The three machines of docs/deployment.md, their commands as printed, in three folders of this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.deployment import Marked, free_port, wait_for

pytestmark = pytest.mark.fleet

PAGE = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
SMALLER = "model.name=anybit_test_models:tiny --import anybit_test_models"
"""The only thing that is not as printed, besides the names of the machines: a model of a second."""


class Machine:
    """A folder and a shell that stays in it from block to block."""

    def __init__(self, home: Path, processes: Marked) -> None:
        self.home, self.processes, self.cwd = home, processes, home
        home.mkdir()

    def type(self, line: str) -> str:
        """Run a line; a script that stays (start.sh) is left running."""
        if line.startswith("cd "):
            self.cwd = self.home / line.removeprefix("cd ")
            return ""
        if line == "./start.sh":
            with open(self.cwd / "log", "wb") as log:
                self.processes.spawned.append(subprocess.Popen([line], cwd=self.cwd, env=self.processes.environment(),
                                                               stdout=log, stderr=log, start_new_session=True))
            return ""
        done = subprocess.run(shlex.split(line), cwd=self.cwd, env=self.processes.environment(), capture_output=True,
                              text=True, timeout=240, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture
def processes() -> Iterator[Marked]:
    marked = Marked()
    try:
        yield marked
    finally:
        marked.shut_down()
        assert marked.processes() == []


@pytest.mark.usefixtures("own_models")
def test_the_walk_through_works_as_printed(tmp_path: Path, processes: Marked) -> None:
    port = free_port()
    server = Machine(tmp_path / "server", processes)
    devices = [Machine(tmp_path / f"device-{i}", processes) for i in range(2)]
    blocks = re.findall(r"```sh (\w+)\n(.*?)```", PAGE, re.DOTALL)
    assert [where for where, _ in blocks] == ["server", "copy", "server", "device", "server"]
    out = ""
    for where, block in blocks:
        for line in block.strip().splitlines():
            line = line.replace("fleet.example", f"localhost --port {port} {SMALLER}" if "init" in line else "localhost")
            if where == "copy":
                source, target = line.split()[-2:]
                server.type(f"cp -r {server.home / source} {tmp_path / target.partition('.')[0]}/")
            elif where == "device":
                for i, device in enumerate(devices):
                    _other_port(device.home / f"node-{i}/start.sh")
                    device.type(line.replace("node-0", f"node-{i}"))
            else:
                if line.startswith("anybit fleet status"):
                    wait_for((server.cwd / "run/evaluation.json").exists, 400, "the run completes")
                line = line.replace("RUN-ID", (re.findall(r"started run (\d+)", out) or [""])[0])
                line += " --import anybit_test_models" if line.startswith("anybit fleet classes") else ""
                if line == "./register.sh":
                    wait_for(lambda: "Uvicorn running" in (server.cwd / "log").read_text(), 240, "the SuperLink listens")
                out += server.type(line)
                if "init" in line:
                    _own_model(server.home / "trial/server/app", tmp_path)
                    _own_model(server.home / "trial/server", tmp_path)
    assert "completed, round 5 of 5, 2 devices" in out
    assert "worst class" in out
    assert "round 5/5" in out


def _own_model(folder: Path, source: Path) -> None:
    (folder / "anybit_test_models.py").write_bytes((source / "anybit_test_models.py").read_bytes())


def _other_port(script: Path) -> None:
    """Both devices are on one machine here."""
    if script.exists():
        script.write_text(re.sub(r"--port \d+ --root", f"--port {free_port()} --root", script.read_text()))
