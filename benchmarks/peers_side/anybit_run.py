"""anybit: python anybit_run.py MODEL VARIANT ENGINE CONVOLUTION THREADS."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import work

from anybit.config import ClientOptions, ComputeOptions, Config
from anybit.data.examples import Data, Examples
from anybit.federated.server import ServerOptions
from anybit.federated.variants import apqn, baseline, carousel, kure, mqat
from anybit.training.computation import open_computation
from anybit.training.machine import computing
from anybit.training.task import Task

VARIANTS = {"baseline": baseline, "mqat": mqat, "carousel": carousel, "kure": kure, "apqn": apqn}


def main() -> None:
    name, variant, engine, kernels, threads = sys.argv[1:6]
    x, y = (torch.from_numpy(a).flatten(0, 1) for a in work.data())
    examples = Examples(x, y)
    task = Task(work.torch_model(name), VARIANTS[variant](),
                Data(examples, Examples(x[:8], y[:8])), np.split(np.arange(len(x)), work.CLIENTS))
    options: Any = {"engine": engine, "compute": ComputeOptions(convolution=kernels)}  # type: ignore[arg-type]
    config = Config(cohort=work.CLIENTS, client=ClientOptions(lr=work.LR, batch_size=work.BATCH), threads=int(threads),
                    server=ServerOptions("sgd", lr=1.0), device="cpu", **options)
    timer = work.Timer()
    with computing(config):
        computation = open_computation(task, config)
        state, table = computation.start()
        given, program = computation.given(table), computation.round_program(computation.client_step(table))
        for round, _ in enumerate(work.rounds()):
            timer.start()
            inputs = computation.inputs(given, round)
            state, _ = program(state, inputs)
            timer.done(int(inputs.cohort.counts.sum()))
    computation.engine.close()


work.quiet()
main()
