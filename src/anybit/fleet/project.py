"""`anybit fleet init`: a folder for the server and one for every device, ready to copy to their machines.

server/   start.sh  register.sh  flwr.sh  env.sh  connections.toml  devices.toml  app/ (sent by `flwr run`)  certificates/
          keys/
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
from anybit.files.writing import write_bytes, writing
from anybit.fleet.certificates import device_key, server_certificate
from anybit.fleet.node import check_width, is_bits
from anybit.fleet.registry import FILE, Listed, write_devices
from anybit.quant.grid import Width, check_bits

NODE_PORT = 9094
"""The local port of the first device; devices on one machine need different ones."""


@dataclass(frozen=True)
class Project:
    """The arguments of `init`."""

    recipe: str
    overrides: Sequence[str]
    devices: Sequence[str]
    """The width of every device: bits of the variant's sites, a width, or 'any'."""
    host: str = "localhost"
    port: int = 9092
    """The devices' port on the server."""
    imports: Sequence[str] = ()
    control_port: int | None = None
    """The SuperLink's own port, which only the server itself reaches; none: the next after the devices'."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", self.host):
            raise ConfigError(f"host = '{self.host}': write the server's name or address, as seen from the devices")
        if not 0 < self.port < 65536 or not self.devices:
            raise ConfigError(f"port = {self.port}, devices = {list(self.devices)}: give a port (1…65535) and at least one "
                              "device")
        for width in self.devices:
            if is_bits(width):
                check_bits(int(width))
            elif width != "any":
                Width.parse(check_width(width))
        if not 0 < self.control < 65536 or self.control == self.port:
            raise ConfigError(f"control-port = {self.control}: give a port (1…65535) other than the devices'")

    @property
    def control(self) -> int:
        return self.port + 1 if self.control_port is None else self.control_port


def write_project(path: Path, project: Project) -> None:
    """Write all folders of a project, or raise where the folder is not empty."""
    if path.exists() and any(path.iterdir()):
        raise RunError(f"{path} is not empty: choose another folder")
    with writing(path, "choose another folder"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
    content = {"checkpoint_every": 1, **recipes.load(project.recipe, project.overrides)}
    if from_recipe(project.recipe, project.overrides).fleet.minimum is None and len(project.devices) == 1:
        content["fleet"] = {**content.get("fleet", {}), "minimum": 1}
    certificate = server_certificate(project.host)
    server, listed = path / "server", dict[str, Listed]()
    for number, width in enumerate(project.devices):
        node, key = path / f"node-{number}", device_key()
        hardware = "" if width == "any" else f" bits={width}" if is_bits(width) else f' width="{width}"'
        _write(node / "node-config", f"partition-id={number}{hardware}\n")
        _write(node / "ca.crt", certificate.authority)
        _write(node / "key", key.private, 0o600)
        start = _template("supernode.sh", host=project.host, port=project.port, own_port=NODE_PORT + number)
        _write(node / "start.sh", start, 0o755)
        _write(server / f"keys/node-{number}.pub", key.public)
        listed[f"node-{number}"] = Listed(key.public.decode().strip(), number, "" if width == "any" else width)
    write_devices(server / FILE, listed)
    _write(server / "certificates/ca.crt", certificate.authority)
    _write(server / "certificates/server.crt", certificate.certificate)
    _write(server / "certificates/server.key", certificate.key, 0o600)
    _write(server / "connections.toml", _template("connections.toml", control=project.control))
    _write(server / "env.sh", _template("env.sh"))
    bind = "127.0.0.1" if project.host in ("localhost", "127.0.0.1") else "0.0.0.0"
    _write(server / "start.sh", _template("superlink.sh", bind=bind, port=project.port, control=project.control),
           0o755)
    _write(server / "register.sh", _template("register.sh"), 0o755)
    _write(server / "flwr.sh", _template("flwr.sh"), 0o755)
    _write(server / "app/pyproject.toml", _template("pyproject.toml", imports=" ".join(project.imports)))
    _write(server / "app/fleet_app/__init__.py", '"""A recipe on a fleet."""\n')
    _write(server / "app/fleet_app/server.py", _template("server.py.txt"))
    _write(server / "app/fleet_app/client.py", _template("client.py.txt"))
    _write(server / "app/fleet_app/recipe.toml", recipes.as_toml(content))


def _write(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    with writing(path, "choose another folder"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content.encode() if isinstance(content, str) else content)
        path.chmod(mode)


def _template(name: str, **values: object) -> str:
    """Return a file of templates/ with its values filled in; without values, unchanged."""
    text = files("anybit.fleet").joinpath("templates", name).read_text(encoding="utf-8")
    return text.format(**values) if values else text
