"""The description of a device in its SuperNode's --node-config, read without importing torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from anybit.errors import ConfigError, printable

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


def is_bits(text: str) -> bool:
    """Say whether a text is a number of bits: one or two ASCII digits."""
    return re.fullmatch("[0-9]{1,2}", text) is not None


def check_width(text: str) -> str:
    """Return the text of a width if it can be one: a few ASCII letters and digits, or empty; else raise."""
    if not re.fullmatch("[A-Za-z0-9]{0,8}", text):
        raise ConfigError(f"width '{printable(text[:20])}': write the bits (4), or a width (W4A8)")
    return text


def read_node(config: Mapping[str, Any]) -> Node:
    """Read a node config, or raise ConfigError with the wrong entry."""
    client, role = config.get(CLIENT), config.get("role", "train")
    if type(client) is not int or client < 0:
        raise ConfigError(f"node config: {CLIENT} = {client!r}: every device needs its own whole number")
    if role not in ("train", "inference"):
        raise ConfigError(f"node config: role = {role!r}: must be 'train' or 'inference'")
    try:
        width = check_width(str(config.get("width", config.get("bits", ""))))
    except ConfigError as error:
        raise ConfigError(f"node config: {error}") from None
    return Node(client, width, role, str(config.get("data", "")), str(config.get("device", "auto")))
