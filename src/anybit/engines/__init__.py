"""Engines: how a cohort is executed."""

from __future__ import annotations

from anybit.engines.base import Engine, Part
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked

__all__ = ["Engine", "Part", "Sequential", "Stacked"]
