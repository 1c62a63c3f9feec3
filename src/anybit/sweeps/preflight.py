"""Checks of runs before data are read, for a dry run of a sweep.

Every check is the run's own, so that both say the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable

from anybit.config import Config
from anybit.data import sources, splits
from anybit.federated.sampling import check_cohort
from anybit.kernels.native import check_compiler
from anybit.quant.sites import prepare
from anybit.schema import plain
from anybit.training.build import DATA, SPLITS, Components
from anybit.training.checks import check_ranges
from anybit.training.machine import open_engine, pick_device

_OF_THE_DATA = ("seed", "labels", "coarse", "ids")
"""Arguments of a split that no recipe sets."""


def check_without_data(configs: Iterable[Config], trusted: Collection[str] = ()) -> None:
    """Raise what the first run that cannot start would raise; what runs have in common is looked at once."""
    passed = set[str]()
    for config in configs:
        content, named = plain(config), Components(config, trusted)
        for check, parts in _CHECKS.items():
            key = json.dumps([check.__name__, *(content[part] for part in parts)], sort_keys=True)
            if key not in passed:
                check(named)
                passed.add(key)


def _data(named: Components) -> None:
    settings = named.data.arguments()
    if named.config.data.name in DATA:
        sources.check_settings(settings)


def _model(named: Components) -> None:
    prepare(named.build_model(), options=named.config.sites)


def _ranges(named: Components) -> None:
    check_ranges(named.config, named.build_variant())


def _split(named: Components) -> None:
    settings = named.split.arguments(_OF_THE_DATA)
    if named.config.split.name in SPLITS:
        splits.check_settings(named.config.split.name, settings)


def _machine(named: Components) -> None:
    config = named.config
    device = pick_device(config.device)
    if device.type == "cpu" and config.compute.convolution == "native":
        check_compiler()
    open_engine(config, device, 0).close()


def _cohort(named: Components) -> None:
    clients = splits.clients_of(named.config.split.name, named.split.written_out().arguments)
    if clients is not None:
        check_cohort(named.config.places(clients), clients)


_CHECKS: dict[Callable[[Components], object], tuple[str, ...]] = {
    _data: ("data",), _model: ("model", "sites"), _ranges: ("variant", "ranges"), _split: ("split",),
    _cohort: ("split", "cohort"), _machine: ("device", "engine", "compute", "server", "cohort", "rounds")}
"""Each with the settings it looks at."""
