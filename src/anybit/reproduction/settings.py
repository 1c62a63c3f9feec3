"""How runs stand to the recipe of their column: what they train otherwise, and what to say to train them again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anybit.config import from_recipe
from anybit.config.compare import flatten
from anybit.errors import RunError
from anybit.files.schema import plain
from anybit.quant.grid import SiteKinds
from anybit.recipes import toml_value
from anybit.sweeps.results import Result
from anybit.training.build import Components, written_out

_HOW = ("seed", "device", "engine", "threads", "checkpoint_every", "evaluation.")
"""Settings that do not change what is trained."""
_COMPUTED = "compute."
"""Settings of how it is computed: said below a table, and no other reading of the paper."""
_ACTIVATIONS = ("ranges.activations", "ranges.calibration_images", "sites.activation_grid", "sites.quantize_image")
"""Settings without effect where no activation is rounded."""
_CHOSEN = ("seed", "device", "engine", "threads", "compute.convolution", "compute.workers")
"""Settings that a machine chooses, or that are said otherwise."""


@dataclass(frozen=True)
class Settings:
    """The settings of a recipe, and those that are left out of account."""

    wanted: Mapping[str, Any]
    ignored: tuple[str, ...]

    @staticmethod
    def of(recipe: str, shown: SiteKinds) -> Settings:
        """For figures with the `shown` sites rounded."""
        config = from_recipe(recipe)
        rounds = "A" in shown or "A" in Components(config).build_variant().sites
        return Settings(flatten(plain(written_out(config))), () if rounds else _ACTIVATIONS)

    def readings(self, results: Sequence[Result]) -> list[list[Result]]:
        """The runs of a column by what they do otherwise than the recipe, the nearest to it first."""
        found: dict[tuple[str, ...], list[Result]] = {}
        for result in results:
            found.setdefault(self.reading(result), []).append(result)
        return [found[reading] for reading in sorted(found, key=len)] or [[]]

    def deviations(self, results: Sequence[Result]) -> tuple[str, ...]:
        """What these runs do otherwise than the recipe; runs that are computed in different ways are not averaged."""
        every = [self._training(flatten(result.config)) for result in results]
        for key in {**self._training(self.wanted), **every[0]}:
            found = {repr(each.get(key)): result.name for each, result in zip(every, results, strict=True)}
            if len(found) > 1:
                raise RunError(f"{' and '.join(found.values())} differ in {key} ({', '.join(found)}): compare them with "
                               "the paper one at a time")
        return tuple(f"{key} = {value} instead of {self.wanted.get(key)}" for key, value in every[0].items()
                     if value != self.wanted.get(key))

    def overrides(self, result: Result) -> tuple[str, ...]:
        """What a run was told beside the recipe, as the command line takes it."""
        return self._said({key: value for key, value in flatten(result.config).items() if key not in _CHOSEN})

    def reading(self, result: Result) -> tuple[str, ...]:
        """Those of the overrides that change what is trained."""
        training = self._training(flatten(result.config))
        return self._said({key: value for key, value in training.items() if not key.startswith(_COMPUTED)})

    def _said(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(shlex.quote(f"{key}={value if isinstance(value, str) else toml_value(value)}")
                     for key, value in settings.items() if value != self.wanted.get(key) and key not in self.ignored)

    def _training(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if not key.startswith(_HOW) and key not in self.ignored}
