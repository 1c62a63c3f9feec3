"""From a config to the objects it names: data, split, model, variant, loss and metric."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from anybit import models
from anybit.config import Component, Config
from anybit.data import sources, splits
from anybit.data.examples import Data
from anybit.errors import AnybitError, ConfigError, ModelError, did_you_mean
from anybit.federated import objective, variants
from anybit.federated.objective import PerExample
from anybit.federated.variants import Variant
from anybit.files.schema import plain, read_arguments
from anybit.randomness import key
from anybit.training.machine import pick_device, pick_engine
from anybit.training.task import Task

Registry = Mapping[str, Callable[..., Any]]

MODELS: Registry = {"lenet5": models.lenet5, "resnet20": models.resnet20, "resnet18": models.resnet18}
DATA: Registry = sources.SOURCES
SPLITS: Registry = splits.SPLITS
VARIANTS: Registry = {"baseline": variants.baseline, "kure": variants.kure, "apqn": variants.apqn, "qat": variants.qat,
                      "mqat": variants.mqat}
LOSSES: Registry = {"cross_entropy": objective.cross_entropy}
METRICS: Registry = {"accuracy": objective.accuracy}


def build_task(config: Config, trusted: Collection[str] = (), data: Data | None = None) -> Task:
    """Everything a config names. Code outside anybit is imported only from `trusted` modules; runs may share `data`."""
    data = data or build_data(config, trusted)
    return Task(build_model(config, trusted), build_variant(config, trusted), data, build_split(config, data, trusted),
                *build_functions(config, trusted))


def settled(config: Config, trusted: Collection[str] = ()) -> Config:
    """The config with nothing left open: every 'auto' decided for this machine, every default argument written out.

    A resume then repeats the same choices, also after a default has changed.
    """
    device = pick_device(config.device)
    return replace(written_out(config, trusted), device=device.type if device.index is None else str(device),
                   engine=pick_engine(config.engine, device), threads=config.threads or torch.get_num_threads())


def written_out(config: Config, trusted: Collection[str] = ()) -> Config:
    """The config with every default argument of its data, split, model and variant written out."""
    return replace(config, data=_with_defaults("data", config.data, DATA, trusted),
                   split=_with_defaults("split", config.split, SPLITS, trusted),
                   model=_with_defaults("model", config.model, MODELS, trusted),
                   variant=_with_defaults("variant", config.variant, VARIANTS, trusted))


def _with_defaults(what: str, component: Component, known: Registry, trusted: Collection[str]) -> Component:
    function = _function(what, component.name, known, trusted)
    defaults = {name: plain(p.default) for name, p in inspect.signature(function).parameters.items()
                if isinstance(p.default, bool | int | float | str | list | tuple)}
    return replace(component, arguments={**defaults, **component.arguments})


def build_data(config: Config, trusted: Collection[str] = ()) -> Data:
    return _expect("data", _call("data", config.data, DATA, trusted), Data)


def build_split(config: Config, data: Data, trusted: Collection[str] = ()) -> list[np.ndarray]:
    """The clients' examples, drawn by the run's seed."""
    function = _function("split", config.split.name, SPLITS, trusted)
    known = {"seed": config.seed, **data.labels()}
    given = {name: value for name, value in known.items() if name in inspect.signature(function).parameters}
    return list(_called("split", config.split, function,
                        {**given, **read_arguments(function, config.split.arguments, "split", given)}))


def build_model(config: Config, trusted: Collection[str] = ()) -> nn.Module:
    """The model with the initial weights that belong to the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(config.seed, "init"))
        return _expect("model", _call("model", config.model, MODELS, trusted), nn.Module)


def build_functions(config: Config, trusted: Collection[str] = ()) -> tuple[PerExample, PerExample]:
    """Loss and metric."""
    return _function("loss", config.loss, LOSSES, trusted), _function("metric", config.metric, METRICS, trusted)


def build_variant(config: Config, trusted: Collection[str] = ()) -> Variant:
    return _expect("variant", _call("variant", config.variant, VARIANTS, trusted), Variant)


def _call(what: str, component: Component, known: Registry, trusted: Collection[str]) -> Any:
    function = _function(what, component.name, known, trusted)
    return _called(what, component, function, read_arguments(function, component.arguments, what))


def _called(what: str, component: Component, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """What the function gives; sizes that cannot be are the config's fault."""
    try:
        return function(**arguments)
    except AnybitError:
        raise
    except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"{what} '{component.name}' with {dict(component.arguments)}: {reason}") from None


T = TypeVar("T")


def _expect(what: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ModelError(f"{what}: expected a {kind.__name__}, but got a {type(value).__name__}")
    return value


def _function(what: str, name: str, known: Registry, trusted: Collection[str]) -> Callable[..., Any]:
    """One of anybit's own by name, or 'module:function' from a module that the user said to import."""
    if name in known:
        return known[name]
    module, sign, attribute = name.partition(":")
    if not sign:
        raise ConfigError(f"unknown {what} '{name}': {did_you_mean(name, known)}, or write 'module:function'")
    if module not in trusted:
        raise ConfigError(f"{what} '{name}' is code outside anybit: allow it with --import {module}")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{what} '{name}': module '{module}' cannot be imported ({error})") from None
    except AttributeError:
        raise ConfigError(f"{what} '{name}': module '{module}' has no '{attribute}'") from None
    if not callable(found):
        raise ConfigError(f"{what} '{name}' cannot be called")
    return found  # type: ignore[no-any-return]


