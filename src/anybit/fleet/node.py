"""The description of a device in its SuperNode's --node-config, read without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anybit.errors import ConfigError

CLIENT = "partition-id"
"""Flower's name for the number of a client; its simulation runtime gives it to every node."""


@dataclass(frozen=True)
class Node:
    """One device. Draws and cohorts are keyed on the client number: node ids change with every deployment."""

    client: int
    width: str = ""
    """The width of its hardware: bits of the variant's sites (4), or a width (W4A8); empty: drawn by the variant."""
    role: Literal["train", "inference"] = "train"
    """The role in a run; inference: it only receives the trained model at its width."""
    data: str = ""
    """The 'module:function' that returns its own data; empty: its part of the recipe's data, for trials."""
    device: str = "auto"


def read_node(config: Mapping[str, Any]) -> Node:
    """Read a node config, or raise ConfigError with the wrong entry."""
    client, role = config.get(CLIENT), config.get("role", "train")
    if type(client) is not int or client < 0:
        raise ConfigError(f"node config: {CLIENT} = {client!r}: every device needs its own whole number")
    if role not in ("train", "inference"):
        raise ConfigError(f"node config: role = {role!r}: must be 'train' or 'inference'")
    return Node(client, str(config.get("width", config.get("bits", ""))), role, str(config.get("data", "")),
                str(config.get("device", "auto")))
