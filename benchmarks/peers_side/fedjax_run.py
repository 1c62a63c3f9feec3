"""FedJAX: python fedjax_run.py MODEL jit|pmap. pmap uses one XLA device per core."""

from __future__ import annotations

import os
import sys
from typing import Any

if sys.argv[2] == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={os.cpu_count()}"

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import work
from fedjax.algorithms import fed_avg

SAMPLE = {"x": np.zeros((1, 32, 32, 3), np.float32), "y": np.zeros(1, np.int32)}


def lenet(batch: Any, wide: bool) -> Any:
    first, second, dense = (20, 50, (500,)) if wide else (6, 16, (120, 84))
    x = batch["x"]
    for channels in (first, second):
        x = jax.nn.relu(hk.Conv2D(channels, 5, padding="VALID")(x))
        x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = hk.Flatten()(x)
    for width in dense:
        x = jax.nn.relu(hk.Linear(width)(x))
    return hk.Linear(10)(x)


def resnet20(batch: Any) -> Any:
    def conv(x: Any, channels: int, stride: int) -> Any:
        return hk.GroupNorm(2)(hk.Conv2D(channels, 3, stride, with_bias=False)(x))

    x = jax.nn.relu(conv(batch["x"], 16, 1))
    for stage, channels in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            y = conv(jax.nn.relu(conv(x, channels, stride)), channels, 1)
            if stride > 1:
                x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (channels // 4, channels // 4)))
            x = jax.nn.relu(x + y)
    return hk.Linear(10)(x.mean((1, 2)))


def main() -> None:
    forward = {"lenet": lambda b: lenet(b, False), "lenet5": lambda b: lenet(b, True), "resnet20": resnet20}[sys.argv[1]]
    model = fedjax.create_model_from_haiku(
        hk.transform(forward), SAMPLE, lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out))
    fedjax.set_for_each_client_backend(sys.argv[2])
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model), fedjax.optimizers.sgd(work.LR), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.BATCH, num_epochs=1))
    x, y = work.data()
    datasets = [fedjax.ClientDataset({"x": np.ascontiguousarray(x[i].transpose(0, 2, 3, 1)), "y": y[i].astype(np.int32)})
                for i in range(work.CLIENTS)]
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    timer = work.Timer()
    for round, _ in enumerate(work.rounds()):
        timer.start()
        keys = jax.random.split(jax.random.PRNGKey(round), work.CLIENTS)
        state, _ = algorithm.apply(state, [(b"%d" % i, datasets[i], keys[i]) for i in range(work.CLIENTS)])
        jax.block_until_ready(state.params)
        timer.done(sum(len(d) for d in datasets))


work.quiet()
main()
