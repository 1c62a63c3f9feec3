"""Settings of several runs side by side, named as in overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn {"server": {"lr": 0.1}} into {"server.lr": 0.1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def compared(tables: Sequence[Mapping[str, Any]], missing: Any = None) -> dict[str, list[Any]]:
    """Return {dotted key: its value in each table}, e.g. {"server.lr": [0.1, None]}, with `missing` in tables without it."""
    flat = [flatten(table) for table in tables]
    keys = dict.fromkeys(key for table in flat for key in table)
    return {key: [table.get(key, missing) for table in flat] for key in keys}
