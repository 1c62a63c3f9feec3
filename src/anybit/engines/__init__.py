"""Engines: how a cohort is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from anybit.engines.sequential import map_clients as _sequential
from anybit.engines.stacked import map_clients as _stacked

Engine = Callable[[Callable[..., Any], Mapping[str, Tensor], Any], tuple[dict[str, Tensor], Tensor]]

ENGINES: Mapping[str, Engine] = {"sequential": _sequential, "stacked": _stacked}
