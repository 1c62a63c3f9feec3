"""The machine of a run: device, engine, and settings of the whole process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anybit.config import Config, EngineName
from anybit.engines.base import Engine
from anybit.engines.processes import Processes
from anybit.engines.ranks import Ranks, world
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """Find the device that a config names; auto: the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        float(torch.zeros(1, device=device))
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(f"device = '{name}' cannot be used here ({str(error).splitlines()[0]}): try device=cpu") from None
    return device


def device_like(name: str) -> torch.device:
    """Find the device that a finished run was trained on, or the CPU where there is none: a laptop evaluates them all."""
    try:
        return pick_device(name)
    except ConfigError:
        return torch.device("cpu")


def pick_engine(name: EngineName, device: torch.device) -> EngineName:
    """Settle auto: stacked on a GPU, sequential on a CPU."""
    return name if name != "auto" else ("sequential" if device.type == "cpu" else "stacked")


COMPILED_FROM = 10**11
"""Rounds × clients of a round × weights from which the client step is compiled. That takes 200 to 280 s with empty caches,
and saves 0.9 to 4.6 ns of every weight of every client and round (docs/performance.md): at this product about as much."""


def open_engine(config: Config, device: torch.device, weights: int) -> Engine:
    """Open the engine that a config names, to train so many weights; under torchrun it has a share of every cohort."""
    engine = _local_engine(config, device, weights)
    if world() > 1 and config.server.mean != "mean":
        raise ConfigError(f"server.mean = '{config.server.mean}' under torchrun: no rank has all deltas, use "
                          "server.mean=mean")
    if world() > 1 and config.privacy.secret:
        raise ConfigError("privacy.secret under torchrun: each rank would draw its own noise and cohorts; use one process")
    return Ranks(engine, device) if world() > 1 else engine


def pays_to_compile(config: Config, weights: int) -> bool:
    """Return whether the client step is compiled on a GPU: as asked for, or if a run alone gets the time back."""
    work = config.rounds * config.places() * weights
    return config.compute.compile if config.compute.compile is not None else work >= COMPILED_FROM


def _local_engine(config: Config, device: torch.device, weights: int) -> Engine:
    name = pick_engine(config.engine, device)
    if name == "processes":
        if world() > 1:
            raise ConfigError("engine = 'processes' under torchrun: ranks are processes already, use engine=sequential")
        if device.type != "cpu":
            raise ConfigError(f"engine = 'processes' computes on a CPU, not on {device}: use device=cpu or engine=stacked")
        return Processes(config.compute.workers)
    if name == "sequential":
        return Sequential()
    chunk, on_gpu = config.compute.chunk or config.places(), device.type == "cuda"
    if config.privacy.sampling == "poisson":  # cohorts of every size, each of which would be a program of its own
        return Stacked(chunk)
    return Stacked(chunk, compiled=on_gpu and pays_to_compile(config, weights), captured=on_gpu)


@contextmanager
def computing(config: Config) -> Iterator[None]:
    """Set what belongs to the whole process as a run wants it, for as long as it computes: threads, precision, kernels.

    TF32 (10 bits of mantissa) lets a GPU's matrix units take float32, unless exact products are asked for. Convolutions
    on a CPU go with or without oneDNN; channels-last is up to whoever lays out the tensors.
    """
    threads, matmul, cudnn = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    one_dnn, *_ = _set_one_dnn(config.compute.convolution != "no-onednn")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.compute.precision != "fp32"
    try:
        yield
    finally:
        _set_one_dnn(one_dnn)
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


def _set_one_dnn(on: bool) -> tuple[bool, ...]:
    before: tuple[bool, ...] = torch.backends.mkldnn.set_flags(on, _fp32_precision=None)  # type: ignore[no-untyped-call]
    return before
