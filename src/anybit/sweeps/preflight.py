"""What can be known to be wrong with runs before data are read: a dry run of a sweep says it.

Every check is the run's own, so that both say the same.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any

from anybit.config import Config
from anybit.data import sources, splits
from anybit.federated.sampling import check_cohort
from anybit.files.schema import plain, read_arguments
from anybit.kernels.native import check_compiler
from anybit.quant.sites import prepare
from anybit.training.build import DATA, SPLITS, Registry, build_functions, build_model, build_variant, written_out
from anybit.training.checks import check_ranges
from anybit.training.machine import open_engine, pick_device

_OF_THE_DATA = ("seed", "labels", "coarse", "ids")
"""Arguments of a split that no recipe sets."""


def check_without_data(configs: Iterable[Config], trusted: Collection[str] = ()) -> None:
    """Raise what the first run that cannot start would raise; what runs have in common is looked at once."""
    passed = set[str]()
    for config in configs:
        content = plain(config)
        for check, parts in _CHECKS.items():
            key = json.dumps([check.__name__, *(content[part] for part in parts)], sort_keys=True)
            if key not in passed:
                check(config, trusted)
                passed.add(key)


def _data(config: Config, trusted: Collection[str]) -> None:
    settings = read_arguments(_function(config.data.name, DATA), config.data.arguments, "data")
    if config.data.name in DATA:
        sources.check_settings(settings)


def _model(config: Config, trusted: Collection[str]) -> None:
    prepare(build_model(config, trusted), options=config.sites)


def _ranges(config: Config, trusted: Collection[str]) -> None:
    check_ranges(config, build_variant(config, trusted))


def _split(config: Config, trusted: Collection[str]) -> None:
    function = _function(config.split.name, SPLITS)
    given = [name for name in _OF_THE_DATA if name in inspect.signature(function).parameters]
    settings = read_arguments(function, config.split.arguments, "split", given)
    if config.split.name in SPLITS:
        splits.check_settings(config.split.name, settings)


def _machine(config: Config, trusted: Collection[str]) -> None:
    device = pick_device(config.device)
    if device.type == "cpu" and config.compute.convolution == "native":
        check_compiler()
    open_engine(config, device).close()


def _cohort(config: Config, trusted: Collection[str]) -> None:
    clients = splits.clients_of(config.split.name, written_out(config, trusted).split.arguments)
    if clients is not None:
        check_cohort(config.cohort, clients)


_CHECKS: dict[Callable[[Config, Collection[str]], object], tuple[str, ...]] = {
    written_out: ("data", "split", "model", "variant"), _data: ("data",), _model: ("model", "sites"),
    _ranges: ("variant", "ranges"), _split: ("split",), build_functions: ("loss", "metric"),
    _machine: ("device", "engine", "compute", "server", "cohort", "rounds"), _cohort: ("split", "cohort")}
"""Each with the settings it looks at; the first finds (and imports) what the others call."""


def _function(name: str, known: Registry) -> Callable[..., Any]:
    """One that `written_out` has found."""
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = known[name] if name in known else getattr(sys.modules[module], attribute)
    return function
