"""Values of a wrong type, given from Python: one line that names the setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.config import Config, FleetOptions
from anybit.errors import AnybitError, ConfigError

OPTIONS: dict[str, Callable[..., Any]] = {
    "lr": anybit.ClientOptions, "eps": anybit.ServerOptions, "every": anybit.EvaluationOptions,
    "spread": anybit.RangeOptions,
    "chunk": anybit.ComputeOptions, "full_precision": anybit.SiteOptions, "deadline": FleetOptions, "rounds": Config}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_value_of_the_wrong_type_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} = 'high': must be a (whole )?(number|list)$"):
        OPTIONS[name](**{name: "high"})


def test_all_of_them_come_at_once_and_the_nearest_word_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^batch_size = 1\.5: .*; optimizer = 'adam': .*did you mean 'adamw'\?\)$"):
        anybit.ClientOptions(batch_size=1.5, optimizer="adam")  # type: ignore[arg-type]


def test_numbers_of_numpy_and_lists_are_good() -> None:
    assert anybit.ClientOptions(lr=np.float32(0.5), batch_size=np.int64(3)).batch_size == 3
    assert anybit.EvaluationOptions(bits=[2, 4]).bits == [2, 4]  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize("take", [anybit.prepare, anybit.replace_batchnorm])
def test_what_is_no_module_is_said(take: Callable[[Any], nn.Module]) -> None:
    with pytest.raises(AnybitError, match=r"model must be a torch\.nn\.Module, and is a NoneType"):
        take(None)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize(("wrap", "inside"), [(torch.compile, "_orig_mod"), (nn.DataParallel, "module")])
def test_a_wrapped_model_is_said(wrap: Callable[[nn.Module], nn.Module], inside: str, mlp: nn.Module, clients: list[Any],
                                 held_out: Any) -> None:
    with pytest.raises(AnybitError, match=rf"^the model is wrapped in a \w+: give what is inside, model\.{inside}$"):
        anybit.fit(wrap(mlp), clients, held_out, rounds=1)


def test_a_mean_without_a_deviation_is_said() -> None:
    with pytest.raises(AnybitError, match=r"mean and data\.std: give both"):
        anybit.Pipeline(mean=(0.5,))


def test_options_of_another_kind_are_said(mlp: nn.Module, clients: list[Any], held_out: Any) -> None:
    for given in (anybit.ServerOptions(), "fast", None):
        with pytest.raises(ConfigError, match=rf"^client is a {type(given).__name__}: give an anybit\.ClientOptions$"):
            anybit.fit(mlp, clients, held_out, client=given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^sites is a dict: give an anybit\.SiteOptions$"):
        anybit.fit(mlp, clients, held_out, sites=dataclasses.asdict(anybit.SiteOptions()))  # type: ignore[arg-type]
