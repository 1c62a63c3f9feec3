"""A fleet of devices: the width and runtime of each class of devices, and the expected metric of the fleet.

[[device]]
name = "phone"
width = "W4A8"
runtime = "onnx"       # onnx, executorch or archive
count = 1200
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anybit.errors import ConfigError
from anybit.export.artifact import Artifact, Runtime
from anybit.export.subject import check_width
from anybit.files.reading import read_toml
from anybit.quant.grid import Width
from anybit.schema import read


@dataclass(frozen=True)
class Device:
    """A class of devices."""

    name: str
    width: str
    runtime: Runtime = "onnx"
    count: int = 1

    def __post_init__(self) -> None:
        check_width(Width.parse(self.width))
        if self.count < 1:
            raise ConfigError(f"count = {self.count}: must be at least 1")


@dataclass(frozen=True)
class Fleet:
    """All classes of devices."""

    device: tuple[Device, ...]

    def __post_init__(self) -> None:
        names = [device.name for device in self.device]
        if not names:
            raise ConfigError("device is empty: write one [[device]] table per class of devices")
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise ConfigError(f"device '{repeated}' appears twice: add up the counts, or choose another name")


def read_fleet(path: Path) -> Fleet:
    """Read a fleet from a TOML file."""
    content = read_toml(path)
    try:
        fleet: Fleet = read(Fleet, content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return fleet


def expected(fleet: Fleet, artifacts: Mapping[tuple[str, Runtime], Artifact]) -> float:
    """Return the expected metric of a random device's model: Σ count · metric / Σ count."""
    pairs = [(d.count, artifacts[str(Width.parse(d.width)), d.runtime].verdict.artifact) for d in fleet.device]
    return sum(count * value for count, value in pairs) / sum(count for count, _ in pairs)
