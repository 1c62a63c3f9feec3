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
from anybit.federated.variants import apqn, baseline, kure, mqat
from anybit.training.loop import Training
from anybit.training.machine import convolution
from anybit.training.task import Task


def main() -> None:
    name, variant, engine, kernels, threads = sys.argv[1:6]
    x, y = (torch.from_numpy(a).flatten(0, 1) for a in work.data())
    examples = Examples(x, y)
    task = Task(work.torch_model(name), {"baseline": baseline, "mqat": mqat, "kure": kure, "apqn": apqn}[variant](),
                Data(examples, Examples(x[:8], y[:8])), np.split(np.arange(len(x)), work.CLIENTS))
    options: Any = {"engine": engine, "compute": ComputeOptions(convolution=kernels)}  # type: ignore[arg-type]
    config = Config(cohort=work.CLIENTS, client=ClientOptions(lr=work.LR, batch_size=work.BATCH), threads=int(threads),
                    server=ServerOptions("sgd", lr=1.0), device="cpu", **options)
    training = Training(task, config)
    training.begin()
    state, program = training.state, training._round(training.client_step())
    timer = work.Timer()
    with convolution(config.compute.convolution):
        for round, _ in enumerate(work.rounds()):
            timer.start()
            cohort = training.cohort(round)
            state, _ = program(state, (training.table.steps, cohort, training.weighting(cohort)))
            timer.done(int(cohort.counts.sum()))
    training.engine.close()


work.quiet()
main()
