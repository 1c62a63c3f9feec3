"""A fleet of devices: the width and runtime of each class of devices, and the expected metric of the fleet.

[[device]]
name = "phone"
width = "W4A8"
runtime = "onnx"       # onnx, executorch, archive or c
count = 1200

[[device]]
name = "sensor"        # without a width: the best that fits
runtime = "c"
flash_kb = 100
ram_kb = 16
min_accuracy = 95
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
    width: str = ""
    """Its one width; empty: the best of `widths` that meets the limits below."""
    runtime: Runtime = "onnx"
    count: int = 1
    widths: tuple[str, ...] = ()
    """Widths to choose from; empty: the run's own sites at 8, 6, 4, 3 and 2 bits."""
    flash_kb: float | None = None
    """The most that it may take, in units of 1,024 bytes: its file; of C, code and constants as compiled here."""
    ram_kb: float | None = None
    """The most static memory; known of C alone."""
    min_accuracy: float | None = None
    """The worst metric that it takes, instead of the export's own floor."""

    def __post_init__(self) -> None:
        for width in (self.width, *self.widths) if self.width else self.widths:
            check_width(Width.parse(width))
        if self.width and self.widths:
            raise ConfigError("width and widths: give one of the two")
        if not self.width and not self.widths and {self.flash_kb, self.ram_kb, self.min_accuracy} == {None}:
            raise ConfigError("width is missing: name one, or what chooses it: flash_kb, ram_kb, min_accuracy")
        if self.ram_kb is not None and self.runtime != "c":
            raise ConfigError(f"ram_kb = {self.ram_kb:g}: what {self.runtime} takes in memory is the runtime's own affair; "
                              'leave it out, or use runtime = "c"')
        for name, limit in (("count", self.count), ("flash_kb", self.flash_kb), ("ram_kb", self.ram_kb)):
            if limit is not None and not limit >= (1 if name == "count" else 0):
                raise ConfigError(f"{name} = {limit}: must be at least {1 if name == 'count' else 0}")


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
    """Return the expected metric of a random device's model: Σ count · metric / Σ count, over devices that have one."""
    pairs = [(d.count, artifacts[str(Width.parse(d.width)), d.runtime].verdict.artifact) for d in fleet.device]
    return sum(count * value for count, value in pairs) / sum(count for count, _ in pairs)
