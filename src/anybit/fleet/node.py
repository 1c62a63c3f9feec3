"""What a device says of itself, in its SuperNode's --node-config. Light: it is read before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anybit.errors import ConfigError

CLIENT = "partition-id"
"""Flower's own name for the number of a client; its simulation runtime gives it to every node."""


@dataclass(frozen=True)
class Node:
    """One device. Node ids change with every deployment; the client number is what draws and cohorts are keyed on."""

    client: int
    width: str = ""
    """The width it has: bits of the variant's sites (4), or a width (W4A8); empty: any, drawn by the variant."""
    role: Literal["train", "inference"] = "train"
    """inference: it only receives the trained model at its width."""
    data: str = ""
    """'module:function' that returns its own data; empty: its part of the recipe's data, for trials."""
    device: str = "auto"


def read_node(config: Mapping[str, Any]) -> Node:
    """The device that a node config describes."""
    client, role = config.get(CLIENT), config.get("role", "train")
    if type(client) is not int or client < 0:
        raise ConfigError(f"node config: {CLIENT} = {client!r}: every device needs its own whole number")
    if role not in ("train", "inference"):
        raise ConfigError(f"node config: role = {role!r}: must be 'train' or 'inference'")
    return Node(client, str(config.get("width", config.get("bits", ""))), role, str(config.get("data", "")),
                str(config.get("device", "auto")))
