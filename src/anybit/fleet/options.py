"""How the server deals with real devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anybit.errors import ConfigError

UPLINK_BITS = (4, 8, 32)


@dataclass(frozen=True)
class FleetOptions:
    """A run on one process ignores all of it."""

    deadline: float = 600.0
    """Seconds after which a round goes on without the devices that have not answered."""
    minimum: int = 1
    """Answers that a round needs; with fewer it is tried again."""
    tries: int = 3
    """How often a round is tried before the run stops, with a checkpoint."""
    wait: float = 600.0
    """Seconds that the server waits for enough devices to connect."""
    poll: float = 0.5
    """Seconds between two looks for answers."""
    norm_bound: float | None = None
    """The largest L2 norm of a delta; none: unbounded."""
    norm_rule: Literal["clip", "reject"] = "clip"
    """What happens to a delta beyond it."""
    max_examples: int = 1_000_000
    """The most examples that a device may claim; matters with weighting = "examples"."""
    uplink_bits: int = 32
    """Deltas travel in 32 bits as they are, or in 8 or 4 bits, stochastically rounded."""
    calibration: Literal["devices", "server"] = "devices"
    """Who measures activation ranges: sampled devices on their data, or the server on the training data it has."""
    calibration_devices: int = 10
    """How many devices measure them."""

    def __post_init__(self) -> None:
        for name in ("deadline", "wait", "poll", "minimum", "tries", "max_examples", "calibration_devices", "norm_bound"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} = {value}: must be above 0")
        if self.uplink_bits not in UPLINK_BITS:
            raise ConfigError(f"uplink_bits = {self.uplink_bits}: must be 4, 8 or 32")
