"""One way to open a run: what a config leaves open is settled and written down, and kept by whoever goes on."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import anybit
from anybit.config import OBJECT, Component, ComputeOptions, Config, before_younger_settings, chosen
from anybit.errors import RunError
from anybit.federated.variants import mqat
from anybit.schema import plain, read
from anybit.training.course import Watch
from anybit.training.machine import computing
from anybit.training.opening import open_run
from anybit.training.run_folder import RunFolder
from anybit.training.task import Task
from tests.trainings import begun, to_end

Arrays = tuple[np.ndarray, np.ndarray]


def test_fit_writes_down_what_it_was_computed_with(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                   tmp_path: Path) -> None:
    anybit.fit(mlp, clients, held_out, rounds=1, cohort=2, path=tmp_path / "run")
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["engine"], config["device"], config["threads"]) == ("sequential", "cpu", torch.get_num_threads())


def test_a_folder_that_says_auto_goes_on_as_it_is(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                  tmp_path: Path) -> None:
    """As version 0.1.0 wrote them from Python: nothing settled."""
    settings = {"rounds": 3, "cohort": 2, "checkpoint_every": 1}
    whole = anybit.fit(mlp, clients, held_out, **settings)  # type: ignore[arg-type]
    variant = Component(OBJECT, {"is": "mqat"})
    config = Config(data=Component(OBJECT), split=Component(OBJECT), model=Component(OBJECT), variant=variant,
                    **settings)  # type: ignore[arg-type]
    assert (config.device, config.threads, config.engine) == ("auto", None, "auto")
    folder = RunFolder.create(tmp_path / "run", plain(config), {}, whole.task.split)
    watch = Watch(stop=True)
    with pytest.raises(anybit.AnybitError, match="stopped after round 1"):
        to_end(begun(Task(mlp, mqat(), whole.task.data, whole.task.split), config, folder, watch=watch))
    resumed = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", resume=True, **settings)  # type: ignore[arg-type]
    assert resumed.evaluation == whole.evaluation
    assert json.loads((tmp_path / "run/config.json").read_text())["device"] == "auto"


def test_another_config_is_refused(mlp: nn.Module, clients: list[Arrays], held_out: Arrays, tmp_path: Path) -> None:
    result = anybit.fit(mlp, clients, held_out, rounds=1, cohort=2, path=tmp_path / "run")
    for change in ({"rounds": 2}, {"engine": "stacked"}, {"seed": 9}):
        with pytest.raises(RunError, match="holds a run with another config"):
            open_run(tmp_path / "run", replace(result.config, **change), lambda config: result.task,  # type: ignore[arg-type]
                     resume=True)
    assert open_run(tmp_path / "run", result.config, lambda config: result.task, resume=True).resumed


def test_a_run_from_before_a_setting_goes_on_without_it(mlp: nn.Module, clients: list[Arrays], held_out: Arrays,
                                                        tmp_path: Path) -> None:
    """Its config has no server.warmup and no client.batches, which runs choose now where a config leaves them open."""
    few: dict[str, Any] = {"variant": anybit.carousel(), "rounds": 40, "cohort": 2, "checkpoint_every": 1,
                           "evaluation": anybit.EvaluationOptions(every=40)}
    sizes = {"client": anybit.ClientOptions(batch_size=8)}

    def cut(progress: anybit.Progress) -> None:
        if progress.round == 2:
            raise KeyboardInterrupt

    before: dict[str, Any] = {"server": anybit.ServerOptions(warmup=0),
                              "client": anybit.ClientOptions(batch_size=8, batches="full")}
    with pytest.raises(KeyboardInterrupt):
        anybit.fit(mlp, clients, held_out, path=tmp_path / "run", on_round=cut, **before, **few)
    folder = RunFolder.open(tmp_path / "run")
    config = folder.config()
    assert config["server"].pop("warmup") == 0
    assert config["client"].pop("batches") == "full"
    stored = before_younger_settings(read(Config, config))
    assert (stored.server.warmup, stored.client.batches) == (0, "full")
    assert chosen(stored, few["variant"].choices) == stored, "nothing is open"
    resumed = anybit.fit(mlp, clients, held_out, path=tmp_path / "run", resume=True, **sizes, **few)
    assert resumed.metrics == anybit.fit(mlp, clients, held_out, **before, **few).metrics
    for now in (sizes, {**before, **sizes}, {"client": before["client"]}):
        assert resumed.metrics != anybit.fit(mlp, clients, held_out, **now, **few).metrics


def test_settings_of_the_process_hold_only_while_a_run_computes() -> None:
    threads, one_dnn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    tf32 = torch.backends.cuda.matmul.allow_tf32
    config = Config(threads=threads + 2, compute=ComputeOptions(precision="fp32", convolution="no-onednn"))
    with suppress(ZeroDivisionError), computing(config):
        assert torch.get_num_threads() == threads + 2
        assert not torch.backends.mkldnn.enabled
        assert not torch.backends.cuda.matmul.allow_tf32
        _ = 1 / 0
    assert (torch.get_num_threads(), torch.backends.mkldnn.enabled) == (threads, one_dnn)
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
