"""`anybit fleet init`: a folder for the server and one for every device, ready to copy to their machines.

server/   start.sh  register.sh  flwr.sh  env.sh  connections.toml  app/ (what `flwr run` sends)  certificates/  keys/
node-0/   start.sh  node-config  ca.crt  key
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
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
    _write(server / "connections.toml", _template("connections.toml", host=project.host, port=project.port))
    _write(server / "env.sh", _template("env.sh"))
    bind = "127.0.0.1" if project.host in ("localhost", "127.0.0.1") else "0.0.0.0"
    _write(server / "start.sh", _template("superlink.sh", bind=bind, port=project.port), 0o755)
    _write(server / "register.sh", _template("register.sh"), 0o755)
    _write(server / "flwr.sh", _template("flwr.sh"), 0o755)
    _write(server / "app/pyproject.toml", _template("pyproject.toml", imports=" ".join(project.imports)))
    _write(server / "app/fleet_app/__init__.py", '"""A recipe on a fleet."""\n')
    _write(server / "app/fleet_app/server.py", _template("server.py.txt"))
    _write(server / "app/fleet_app/client.py", _template("client.py.txt"))
    _write(server / "app/fleet_app/recipe.toml", recipes.as_toml(content))


def _write_node(path: Path, node: int, width: str, project: Project, authority: bytes) -> bytes:
    key = device_key()
    own = "" if width == "any" else f" bits={width}" if width.isdigit() else f' width="{width}"'
    _write(path / "node-config", f"partition-id={node}{own}\n")
    _write(path / "ca.crt", authority)
    _write(path / "key", key.private, 0o600)
    start = _template("supernode.sh", host=project.host, port=project.port, own_port=NODE_PORT + node)
    _write(path / "start.sh", start, 0o755)
    return key.public


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}): choose another folder") from None


def _template(name: str, **values: object) -> str:
    """Fill in one of the files that lie in templates/; one without values is taken as it is."""
    text = files("anybit.fleet").joinpath("templates", name).read_text(encoding="utf-8")
    return text.format(**values) if values else text
