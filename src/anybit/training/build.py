"""From a config to the objects it names: data, split, model, variant, loss and metric."""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from anybit import models
from anybit.config import OBJECT, Component, Config, chosen
from anybit.data import sources, splits
from anybit.data.examples import Data
from anybit.errors import AnybitError, ConfigError, ModelError, did_you_mean, option
from anybit.federated import metrics, variants
from anybit.federated.metrics import PerExample
from anybit.federated.server import ServerOptimizer
from anybit.federated.variants import Variant
from anybit.inputs import called, selected
from anybit.randomness import key
from anybit.schema import plain, read_arguments
from anybit.tensors import picked
from anybit.training.machine import pick_device, pick_engine
from anybit.training.task import Task

Registry = Mapping[str, Callable[..., Any]]

MODELS: Registry = {name: getattr(models, name) for name in models.__all__}
DATA: Registry = sources.SOURCES
SPLITS: Registry = splits.SPLITS
VARIANTS: Registry = {"baseline": variants.baseline, "kure": variants.kure, "apqn": variants.apqn, "qat": variants.qat,
                      "mqat": variants.mqat, "carousel": variants.carousel}
MOST_PARAMETERS = 100_000_000
"""Of a model that a recipe names and sizes: 0.4 GB of weights, nine times ResNet-18."""
LOSSES: Registry = metrics.LOSSES
METRICS: Registry = metrics.METRICS


@dataclass(frozen=True)
class Named:
    """A part of a config by name, and the function behind the name."""

    what: str
    component: Component
    function: Callable[..., Any]

    def written_out(self) -> Component:
        """Return the component with every default argument in it."""
        defaults = {name: plain(p.default) for name, p in inspect.signature(self.function).parameters.items()
                    if isinstance(p.default, bool | int | float | str | list | tuple)}
        return replace(self.component, arguments={**defaults, **self.component.arguments})

    def arguments(self, given: Collection[str] = ()) -> dict[str, Any]:
        """Read the config's arguments, checked against the function's own; `given` ones come from elsewhere."""
        taken = [name for name in given if name in inspect.signature(self.function).parameters]
        return read_arguments(self.function, self.component.arguments, self.what, taken)

    def call(self, **given: Any) -> Any:
        """Call the function; sizes that cannot be are the config's fault."""
        parameters = inspect.signature(self.function).parameters
        arguments = {**{name: value for name, value in given.items() if name in parameters}, **self.arguments(given)}
        try:
            return self.function(**arguments)
        except AnybitError:
            raise
        except (TypeError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            asked = f"'{self.component.name}' with {dict(self.component.arguments)}"
            raise ConfigError(f"{self.what} {asked}: {reason}") from None


class Components:
    """The functions that a config names. Code outside anybit is imported only from `trusted` modules."""

    def __init__(self, config: Config, trusted: Collection[str] = ()) -> None:
        def named(what: str, component: Component, known: Registry) -> Named:
            return Named(what, component, _function(what, component.name, known, trusted))

        self.config = config
        self.data, self.split = named("data", config.data, DATA), named("split", config.split, SPLITS)
        self.model, self.variant = named("model", config.model, MODELS), named("variant", config.variant, VARIANTS)
        self.loss: PerExample = _function("loss", config.loss, LOSSES, trusted)
        self.metric: PerExample = _function("metric", config.metric, METRICS, trusted)

        own = {setting: None if ":" not in (name or "") else _function(setting, str(name), {}, trusted)
               for setting, name in (("server.optimizer", config.server.optimizer),
                                     ("sampling.policy", config.sampling.policy),
                                     ("server.schedule", config.server.schedule))}
        self.optimizer, self.sampler, self.schedule = own.values()

    def written_out(self) -> Config:
        """Return the config with every default argument of its data, split, model and variant, and the variant's choices."""
        config = chosen(self.config, self.build_variant().choices)
        clients = splits.clients_of(config.split.name, self.split.written_out().arguments)
        if isinstance(clients, int) and clients > 0:
            config = replace(config, cohort=config.places(clients))
        return replace(config, data=self.data.written_out(), split=self.split.written_out(),
                       model=self.model.written_out(), variant=self.variant.written_out())

    def build_data(self) -> Data:
        return _expect("data", self.data.call(), Data)

    def build_split(self, data: Data) -> list[np.ndarray]:
        """Draw the clients' examples by the run's seed."""
        return list(self.split.call(seed=self.config.seed, **data.labels()))

    def build_model(self) -> nn.Module:
        """Make the model with the initial weights that belong to the run's seed."""
        self._check_parameters()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(self.config.seed, "init"))
            return _expect("model", self.model.call(), nn.Module)

    def _check_parameters(self) -> None:
        """Raise for one of anybit's models that a setting makes huge, before any memory is taken."""
        if self.config.model.name not in MODELS:
            return
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            number = sum(p.numel() for p in _expect("model", self.model.call(), nn.Module).parameters())
        if number > MOST_PARAMETERS:
            raise ConfigError(f"model '{self.config.model.name}' with {dict(self.config.model.arguments)} has {number:,} "
                              f"parameters: at most {MOST_PARAMETERS:,}; lower its sizes")

    def build_variant(self) -> Variant:
        return _expect("variant", self.variant.call(), Variant)

    def build_server(self) -> ServerOptimizer | None:
        """Make the server optimizer of the user's own, if the config names one."""
        return _expect("server.optimizer", self.optimizer(self.config.server), ServerOptimizer) if self.optimizer else None


def build_task(config: Config, trusted: Collection[str] = (), data: Data | None = None) -> Task:
    """Make everything a config names; runs may share `data`."""
    named = Components(config, trusted)
    data = data or named.build_data()
    return Task(named.build_model(), named.build_variant(), data, named.build_split(data), named.loss, named.metric,
                config.output, named.build_server(), named.sampler, named.schedule)


def loss_and_metric(loss: PerExample | str, metric: PerExample | str | None, model: nn.Module, data: Data,
                    output: str | int | None = None) -> tuple[PerExample, PerExample]:
    """Find loss and metric by name where they are names; without a metric, choose the one that suits the outputs."""
    def found(what: str, given: Any, known: Registry) -> PerExample:
        if isinstance(given, str):
            if ":" in given:
                raise ConfigError(f"{what} {given!r} is code outside anybit: import it, and give the function itself")
            return _function(what, given, known, ())
        if not callable(given):
            raise ConfigError(f"{what} is a {type(given).__name__}: give a function of (outputs, targets) that returns one "
                              f"value per example, or a name: {', '.join(known)}")
        return given  # type: ignore[no-any-return]

    loss = found("loss", loss, LOSSES)
    return loss, found("metric", metric, METRICS) if metric is not None else _suitable(loss, model, data, output)


@torch.no_grad()
def _suitable(loss: PerExample, model: nn.Module, data: Data, output: str | int | None) -> PerExample:
    if loss is metrics.cross_entropy:
        return metrics.accuracy
    try:
        outputs = called(copy.deepcopy(model).cpu().eval(), data.pipeline(picked(data.test.x, slice(1))))
        return metrics.default_metric(loss, selected(outputs, output), data.test.y[:1])
    except (ModelError, RuntimeError, TypeError, AttributeError):  # the checks before the first round say what is wrong
        return metrics.accuracy


def settled(config: Config, trusted: Collection[str] = ()) -> Config:
    """Return the config with nothing left open: every 'auto' decided for this machine, every default argument in it.

    A resume then repeats the same choices, also after a default has changed.
    """
    device = pick_device(config.device)
    return replace(written_out(config, trusted), device=device.type if device.index is None else str(device),
                   engine=pick_engine(config.engine, device), threads=config.threads or torch.get_num_threads())


def written_out(config: Config, trusted: Collection[str] = ()) -> Config:
    """Return the config with every default argument in it; one of Python objects names no functions."""
    return config if config.model.name == OBJECT else Components(config, trusted).written_out()


T = TypeVar("T")


def _expect(what: str, value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ModelError(f"{what}: expected a {kind.__name__}, but got a {type(value).__name__}")
    return value


def _function(what: str, name: str, known: Registry, trusted: Collection[str]) -> Callable[..., Any]:
    """Find one of anybit's own by name, or 'module:function' from a module that the user said to import."""
    if name in known:
        return known[name]
    module, sign, attribute = name.partition(":")
    if not sign:
        raise ConfigError(f"unknown {what} '{name}': {did_you_mean(name, known)} (your own: 'module:function')")
    if module not in trusted:
        raise ConfigError(f"{what} '{name}' is code outside anybit: allow it with "
                          + option("import", module, python=f"trusted=[{module!r}]"))
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise ConfigError(f"{what} '{name}': module '{module}' cannot be imported ({error})") from None
    except AttributeError:
        raise ConfigError(f"{what} '{name}': module '{module}' has no '{attribute}'") from None
    if not callable(function):
        raise ConfigError(f"{what} '{name}' cannot be called")
    return function  # type: ignore[no-any-return]
