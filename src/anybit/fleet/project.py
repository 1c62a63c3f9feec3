"""`anybit fleet init`: a folder for the server and one for every device, ready to copy to their machines.

server/   start.sh  register.sh  flwr.sh  env.sh  connections.toml  app/ (what `flwr run` sends)  certificates/  keys/
node-0/   start.sh  node-config  ca.crt  key
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anybit import recipes
from anybit.config import from_recipe
from anybit.errors import ConfigError, RunError
from anybit.files.writing import write_bytes
from anybit.fleet.certificates import device_key, server_certificate
from anybit.quant.grid import Width, check_bits

NODE_PORT = 9094
"""The first device's local port; on one machine every device needs another."""


@dataclass(frozen=True)
class Project:
    """What `init` is told."""

    recipe: str
    overrides: Sequence[str]
    devices: Sequence[str]
    """The width of every device: bits of the variant's sites, a width, or 'any'."""
    host: str = "localhost"
    port: int = 9092
    imports: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", self.host):
            raise ConfigError(f"host = '{self.host}': write the server's name or address, as devices reach it")
        if not 0 < self.port < 65536 or not self.devices:
            raise ConfigError(f"port = {self.port}, devices = {list(self.devices)}: a port and at least one device, please")
        for width in self.devices:
            if width.isdigit():
                check_bits(int(width))
            elif width != "any":
                Width.parse(width)


def write_project(path: Path, project: Project) -> None:
    """Write all folders; a folder that has something in it is refused."""
    if path.exists() and any(path.iterdir()):
        raise RunError(f"{path} is not empty: choose another folder")
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)
    content = {"checkpoint_every": 1, **recipes.load(project.recipe, project.overrides)}
    from_recipe(project.recipe, project.overrides)
    certificate = server_certificate(project.host)
    for node, width in enumerate(project.devices):
        public = _write_node(path / f"node-{node}", node, width, project, certificate.authority)
        _write(path / f"server/keys/node-{node}.pub", public)
    server = path / "server"
    _write(server / "certificates/ca.crt", certificate.authority)
    _write(server / "certificates/server.crt", certificate.certificate)
    _write(server / "certificates/server.key", certificate.key, 0o600)
    _write(server / "connections.toml", CONFIG.format(host=project.host, port=project.port))
    _write(server / "env.sh", ENVIRONMENT)
    bind = "127.0.0.1" if project.host in ("localhost", "127.0.0.1") else "0.0.0.0"
    _write(server / "start.sh", SUPERLINK.format(bind=bind, port=project.port), 0o755)
    _write(server / "register.sh", REGISTER, 0o755)
    _write(server / "flwr.sh", FLWR, 0o755)
    _write(server / "app/pyproject.toml", APP.format(imports=" ".join(project.imports)))
    _write(server / "app/fleet_app/__init__.py", '"""A recipe on a fleet."""\n')
    _write(server / "app/fleet_app/server.py", SERVER)
    _write(server / "app/fleet_app/client.py", CLIENT)
    _write(server / "app/fleet_app/recipe.toml", recipes.as_toml(content))


def _write_node(path: Path, node: int, width: str, project: Project, authority: bytes) -> bytes:
    key = device_key()
    own = "" if width == "any" else f" bits={width}" if width.isdigit() else f' width="{width}"'
    _write(path / "node-config", f"partition-id={node}{own}\n")
    _write(path / "ca.crt", authority)
    _write(path / "key", key.private, 0o600)
    _write(path / "start.sh", SUPERNODE.format(host=project.host, port=project.port, own_port=NODE_PORT + node), 0o755)
    return key.public


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}): choose another folder") from None


ENVIRONMENT = """\
# No telemetry, no update check, no installing of packages at run time; Flower's own files stay in this folder.
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
# Flower wants absolute paths; this folder may move.
mkdir -p flower
sed "s|HERE|$PWD|" connections.toml > "flower/config.$$" && mv "flower/config.$$" flower/config.toml
"""

SUPERLINK = """\
#!/bin/sh
# The server of the fleet, until Ctrl-C. state.db keeps who is registered over a restart.
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec flower-superlink --host {bind} --port {port} --ssl-certfile certificates/server.crt \\
  --ssl-keyfile certificates/server.key --ssl-ca-certfile certificates/ca.crt --enable-supernode-auth \\
  --database state.db --disable-runtime-dependency-installation
"""

REGISTER = """\
#!/bin/sh
# Let the devices in: all public keys in keys/, or those given as arguments.
set -eu
cd "$(dirname "$0")"
. ./env.sh
[ $# -gt 0 ] || set -- keys/*.pub
for key in "$@"; do
  flwr supernode register "$key" fleet --name "$(basename "$key" .pub)"
done
"""

FLWR = """\
#!/bin/sh
# Flower's own command in this project: ./flwr.sh run app fleet · ./flwr.sh list fleet · ./flwr.sh log ID fleet
set -eu
cd "$(dirname "$0")"
. ./env.sh
exec flwr "$@"
"""

CONFIG = """\
[superlink]
default = "fleet"

[superlink.fleet]
address = "{host}:{port}"
root-certificates = "HERE/certificates/ca.crt"

# Flower's simulation runtime: ./flwr.sh run app simulation --federation-config "num-supernodes=20"
[superlink.simulation]
address = ":local:"
"""

APP = """\
[project]
name = "anybit-fleet"
version = "1.0.0"
description = "A recipe on a fleet"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "anybit"

[tool.flwr.app.components]
serverapp = "fleet_app.server:app"
clientapp = "fleet_app.client:app"

# flwr run app fleet -c 'run="runs/second" overrides="rounds=50 server.lr=0.01"'
[tool.flwr.app.config]
run = "run"                # the run's folder, beside start.sh; one that is there already is continued
overrides = ""             # settings of the recipe
imports = "{imports}"      # modules of yours that the recipe names; they lie in this folder
"""

SERVER = '''\
"""The server's side."""

from pathlib import Path

from anybit.fleet.server_app import server_app

app = server_app(Path(__file__).with_name("recipe.toml"))
'''

CLIENT = '''\
"""The device's side."""

from anybit.fleet.client_app import app

__all__ = ["app"]
'''

SUPERNODE = """\
#!/bin/sh
# One device of the fleet, until Ctrl-C. It needs this folder, anybit and its extra 'flower', and nothing else.
set -eu
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
exec flower-supernode --superlink {host}:{port} --port {own_port} --root-certificates ca.crt \\
  --auth-supernode-private-key key --node-config "$(cat node-config)"
"""
