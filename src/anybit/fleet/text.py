"""Texts from devices, made harmless before they are logged or printed."""

from __future__ import annotations

from typing import Any

from anybit.errors import printable

LONGEST = 300
"""The characters of a text in the log."""


def brief(value: object, length: int = 60) -> str:
    """Return a text of bounded length without control characters and lone surrogates, whatever a device sent."""
    text = str(value)
    return printable(text[:length]) + ("…" if len(text) > length else "")


def harmless(value: Any) -> Any:
    """Return an entry of the log with all its texts brief."""
    if isinstance(value, str):
        return brief(value, LONGEST)
    if isinstance(value, dict):
        return {harmless(key): harmless(entry) for key, entry in value.items()}
    return [harmless(entry) for entry in value] if isinstance(value, list) else value
