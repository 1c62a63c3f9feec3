"""With ca.crt alone, from a device's place in the network: no key is registered, no code is run.

The control arm is the same attack on the SuperLink's own port, which only the server itself reaches: there it works.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from anybit.fleet.certificates import device_key
from anybit.fleet.project import Project
from tests.fleet.deployment import TINY, Deployment, free_port, wait_for

pytestmark = pytest.mark.fleet

EVIL = '''
from pathlib import Path
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    Path({sign!r}).write_text(Path("certificates/server.key").read_text())
'''


class Network(NamedTuple):
    """A namespace with one way out: to the server's address."""

    inside: list[str]
    """The command that runs another in it."""
    server: str


@pytest.fixture
def network() -> Iterator[Network]:
    """Another machine, as far as the network goes; where nobody may make one, another address of this machine."""
    name, net = f"anybit{random.getrandbits(32):08x}", f"10.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    here, there = f"ab{name[-8:]}", f"bb{name[-8:]}"

    def ip(*words: str) -> bool:
        tool = shutil.which("ip")
        return tool is not None and subprocess.run([tool, *words], capture_output=True, check=False).returncode == 0

    made = (ip("netns", "add", name) and ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            and ip("address", "add", f"{net}.1/30", "dev", here) and ip("link", "set", here, "up")
            and ip("-n", name, "address", "add", f"{net}.2/30", "dev", there) and ip("-n", name, "link", "set", there, "up")
            and ip("-n", name, "link", "set", "lo", "up"))
    yield Network(["ip", "netns", "exec", name], f"{net}.1") if made else Network([], "127.0.0.2")
    ip("link", "del", here)
    ip("netns", "del", name)


class Attacker:
    """A folder with ca.crt, an own key and an own app."""

    def __init__(self, deployment: Deployment, path: Path, name: str, address: str, before: list[str]) -> None:
        self.deployment, self.path, self.before, self.sign = deployment, path / name, before, path / f"{name}.pwned"
        shutil.copytree(deployment.server / "app", self.path / "app")
        (self.path / "app/fleet_app/server.py").write_text(EVIL.format(sign=str(self.sign)))
        (self.path / "own.pub").write_bytes(device_key().public)
        (self.path / "flower").mkdir()
        (self.path / "flower/config.toml").write_text(
            f'[superlink]\ndefault = "it"\n[superlink.it]\naddress = "{address}"\n'
            f'root-certificates = "{deployment.path / "node-0/ca.crt"}"\n')

    def try_to(self, *arguments: str) -> str:
        return self.deployment.call(*self.before, "env", f"FLWR_HOME={self.path / 'flower'}", "FLWR_TELEMETRY_ENABLED=0",
                                    "FLWR_DISABLE_UPDATE_CHECK=1", "flwr", *arguments, check=False, cwd=self.path)

    def attack(self) -> tuple[bool, bool]:
        """Register an own key, and run own code; return what succeeded."""
        registered = "registered successfully" in self.try_to("supernode", "register", "own.pub", "it")
        return registered, "started run" in self.try_to("run", "app", "it")


def test_c1_whoever_has_ca_crt_alone_registers_no_key_and_runs_no_code(tmp_path: Path, network: Network) -> None:
    port, control = free_port(), free_port()
    project = Project("quickstart/mqat", TINY, ["4"], network.server, port, ["anybit_test_models"], control)
    deployment = Deployment(tmp_path / "project", project)
    try:
        deployment.superlink()
        outside = Attacker(deployment, tmp_path, "outside", f"{network.server}:{port}", network.inside)
        beside = Attacker(deployment, tmp_path, "beside", f"{network.server}:{control}", network.inside)
        within = Attacker(deployment, tmp_path, "within", f"127.0.0.1:{control}", [])
        assert outside.attack() == (False, False)
        assert "/v1/control/register-node: no request of a device (404)" in (deployment.server / "log").read_text()
        assert "/v1/control/start-run: no request of a device (404)" in (deployment.server / "log").read_text()
        assert beside.attack() == (False, False)

        deployment.call("./register.sh")
        deployment.node(0, *network.inside)
        wait_for(lambda: deployment.connected(0), 240, "a listed device connects through the gate")

        assert within.attack() == (True, True)
        wait_for(within.sign.exists, 240, "the control arm's code runs")
        assert within.sign.read_text() == (deployment.server / "certificates/server.key").read_text()
        assert not outside.sign.exists()
        assert not beside.sign.exists()
    finally:
        deployment.shut_down()
    assert deployment.processes() == []
