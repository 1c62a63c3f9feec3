"""The settings in which runs differ from the recipe of their column, and those that train them again."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anybit.config import Config, before_younger_settings, chosen, from_recipe
from anybit.config.compare import flatten
from anybit.errors import RunError
from anybit.quant.grid import SiteKinds
from anybit.recipes import toml_value
from anybit.schema import plain
from anybit.sweeps.results import Result
from anybit.training.build import Components, written_out

_FLEET = "fleet."
"""Settings of real devices, which a simulation does not have."""
_HOW = ("seed", "device", "engine", "threads", "checkpoint_every", "evaluation.", _FLEET)
"""Settings that do not change what is trained."""
_COMPUTED = "compute."
"""Settings of the computation: named below a table, and no other reading of the paper."""
_ACTIVATIONS = ("ranges.activations", "ranges.calibration_images", "sites.activation_grid", "sites.quantize_image",
                "model.round_shortcuts")
"""Settings without effect where no activation is rounded."""
_GROWING = ("client.", "server.", "ranges.", "sites.")
"""Tables whose settings were added to over time, all with defaults that change nothing."""
_CHOSEN = ("seed", "device", "engine", "threads", "compute.convolution", "compute.workers")
"""Settings that a machine chooses, or that a command names otherwise."""


@dataclass(frozen=True)
class Settings:
    """The settings of a recipe, and the ignored ones."""

    wanted: Mapping[str, Any]
    ignored: tuple[str, ...]

    @staticmethod
    def of(recipe: str, shown: SiteKinds) -> Settings:
        """Read the settings of a recipe for figures with the `shown` sites rounded."""
        config = from_recipe(recipe)
        rounds = "A" in shown or "A" in Components(config).build_variant().sites
        return Settings(flatten(plain(written_out(config))), () if rounds else _ACTIVATIONS)

    def readings(self, results: Sequence[Result]) -> list[list[Result]]:
        """Group the runs of a column by their reading of the paper, the nearest to the recipe first, short ones last."""
        runs: dict[tuple[str, ...], list[Result]] = {}
        for result in results:
            runs.setdefault(self.reading(result), []).append(result)
        return [runs[reading] for reading in sorted(runs, key=lambda reading: (short(reading), len(reading)))] or [[]]

    def deviations(self, results: Sequence[Result]) -> tuple[str, ...]:
        """List the settings in which these runs differ from the recipe; they must not differ among each other."""
        configs = [self._training(flatten(result.config)) for result in results]
        for key in {**self._training(self.wanted), **configs[0]}:
            names = {repr(config.get(key)): result.name for config, result in zip(configs, results, strict=True)}
            if len(names) > 1:
                raise RunError(f"{' and '.join(names.values())} differ in {key} ({', '.join(names)}): compare them with "
                               "the paper one at a time")
        return tuple(f"{key} = {value} instead of {self.wanted.get(key)}" for key, value in configs[0].items()
                     if value != self.wanted.get(key))

    def overrides(self, result: Result) -> tuple[str, ...]:
        """List the settings of a run beside the recipe, as on the command line."""
        return self._differing({key: value for key, value in flatten(result.config).items()
                                if key not in _CHOSEN and not key.startswith(_FLEET)})

    def reading(self, result: Result) -> tuple[str, ...]:
        """List the overrides that change what is trained."""
        training = self._training(flatten(result.config))
        return self._differing({key: value for key, value in training.items() if not key.startswith(_COMPUTED)})

    def _differing(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(shlex.quote(f"{key}={value if isinstance(value, str) else toml_value(value)}")
                     for key, value in settings.items() if value != self.wanted.get(key) and key not in self.ignored)

    def _training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Leave out what does not change the training; a setting that is younger than a run had its default there."""
        return {key: value for key, value in {**_younger(), **settings}.items()
                if not key.startswith(_HOW) and key not in self.ignored}


def short(reading: Sequence[str]) -> bool:
    """Tell if a reading is trained for other rounds than the paper's."""
    return any(setting.startswith("rounds=") for setting in reading)


@functools.cache
def _younger() -> Mapping[str, Any]:
    defaults = flatten(plain(chosen(before_younger_settings(Config()), {})))
    return {key: value for key, value in defaults.items() if key.startswith(_GROWING)}
