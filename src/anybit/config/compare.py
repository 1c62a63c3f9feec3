"""Settings of several runs side by side, under the names that overrides have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"server": {"lr": 0.1}} as {"server.lr": 0.1}."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def compared(tables: Sequence[Mapping[str, Any]], missing: Any = None) -> dict[str, list[Any]]:
    """{dotted key: its value in each table}, `missing` in those without it.

    >>> compared([{"seed": 1, "server": {"lr": 0.1}}, {"seed": 2}])
    {'seed': [1, 2], 'server.lr': [0.1, None]}
    """
    flat = [flatten(table) for table in tables]
    keys = dict.fromkeys(key for table in flat for key in table)
    return {key: [table.get(key, missing) for table in flat] for key in keys}
