"""devices.toml of a project's server: which key is which client, of which width and role.

A device proves its key with every request. Whatever else it says of itself is compared with this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from anybit.errors import ConfigError, RunError
from anybit.export.extras import need
from anybit.files.reading import read_bytes, read_toml
from anybit.files.writing import write_bytes, writing
from anybit.fleet.node import check_width
from anybit.recipes import as_toml
from anybit.schema import check_types, plain, read

FILE = "devices.toml"
KEY_BYTES = 4096
"""The most that a public key takes."""
HEAD = """# Which key is which device. The gate passes requests with these keys and no others, and the server refuses a
# device with another client number, width or role than its key stands for. 'anybit fleet add' adds one.

"""


@dataclass(frozen=True)
class Listed:
    """A device as its administrator knows it."""

    key: str
    """Its public key, in OpenSSH's format."""
    client: int
    width: str = ""
    """The width of its hardware, as in its node config; empty: drawn by the variant."""
    role: Literal["train", "inference"] = "train"

    def __post_init__(self) -> None:
        check_types(self)
        check_width(self.width)
        if self.client < 0:
            raise ConfigError(f"client = {self.client}: must not be negative")


Registry = Mapping[bytes, Listed]
"""The devices by their keys, which are PEM as Flower has them."""


def pem(public_key: str) -> bytes:
    """Return a public key of OpenSSH's format as Flower compares it; raise unless it is on a curve that Flower takes."""
    formats, curves = (need(f"cryptography.hazmat.primitives.{module}", "flower", "a device's key")
                       for module in ("serialization", "asymmetric.ec"))
    try:
        key = formats.load_ssh_public_key(public_key.strip().encode())
    except Exception as error:  # several classes, of another package
        raise ConfigError(f"a public key cannot be read ({error}): make one with ssh-keygen -t ecdsa -b 384") from None
    if not isinstance(key, curves.EllipticCurvePublicKey):
        raise ConfigError("a public key is not on an elliptic curve of NIST's: make one with ssh-keygen -t ecdsa -b 384")
    found: bytes = key.public_bytes(formats.Encoding.PEM, formats.PublicFormat.SubjectPublicKeyInfo)
    return found


def read_devices(path: Path) -> dict[str, Listed]:
    """Read the devices of a file by their names; every client and key occurs once."""
    devices: dict[str, Listed] = {name: read(Listed, entry, name) for name, entry in read_toml(path).items()}
    for what, values in (("client", [d.client for d in devices.values()]), ("key", [pem(d.key) for d in devices.values()])):
        if len(set(values)) < len(values):
            raise ConfigError(f"{path}: two devices have the same {what}")
    return devices


def registry(devices: Mapping[str, Listed]) -> dict[bytes, Listed]:
    return {pem(device.key): device for device in devices.values()}


def write_devices(path: Path, devices: Mapping[str, Listed]) -> None:
    tables: dict[str, Any] = {name: plain(device) for name, device in devices.items()}
    with writing(path, "choose another folder"):
        write_bytes(path, (HEAD + as_toml(tables)).encode())


def add_device(server: Path, key: Path, client: int, width: str | None = None, role: str | None = None) -> str:
    """List a key as a client's, in place of the one it had; return its name. A width or role not given stays as it was."""
    if not (server / FILE).is_file():
        raise RunError(f"{server} is not the server folder of a fleet: it has no {FILE} ('anybit fleet init' writes one)")
    devices = read_devices(server / FILE)
    text = read_bytes(key, KEY_BYTES).decode(errors="replace").strip()
    name = next((name for name, device in devices.items() if device.client == client), f"node-{client}")
    if not re.fullmatch("[A-Za-z0-9_-]{1,60}", name):
        raise ConfigError(f"{server / FILE}: the name '{name}' has characters other than letters, digits, - and _")
    changed = {what: value for what, value in (("width", width), ("role", role)) if value is not None}
    entry: dict[str, Any] = {**plain(devices.get(name, Listed(text, client))), "key": text, **changed}
    devices[name] = read(Listed, entry, name)
    if len({pem(device.key) for device in devices.values()}) < len(devices):
        raise ConfigError(f"{key} is another device's already: every device has its own")
    write_devices(server / FILE, devices)
    with writing(server / f"keys/{name}.pub", "choose another folder"):
        (server / "keys").mkdir(exist_ok=True)
        write_bytes(server / f"keys/{name}.pub", text.encode() + b"\n")
    return name


class Keys:
    """The registry in a file, read again when the file has changed."""

    def __init__(self, path: Path, say: Callable[[str], None] = lambda text: None) -> None:
        self.path, self.say = path, say
        self.current: Registry = registry(read_devices(path))
        self.stamp = self._stamp()

    def __call__(self) -> Registry:
        """Return the devices that are listed now; while the file is wrong, those that were."""
        if (stamp := self._stamp()) != self.stamp:
            self.stamp = stamp
            try:
                self.current = registry(read_devices(self.path))
            except (ConfigError, RunError) as error:
                self.say(f"{error}; the devices stay as they were")
        return self.current

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
