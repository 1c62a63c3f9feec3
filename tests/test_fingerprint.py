"""The paper's fingerprint on a trained model: QAT at 2 bits is good at 2 bits and collapses at all others."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import anybit
from anybit.data.sources import digits
from anybit.data.splits import dirichlet


def deep_network() -> nn.Module:
    """Six linear layers without normalization: nothing hides that the grid has moved."""
    torch.manual_seed(1)
    hidden = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), *hidden, nn.Linear(64, 10))


def test_qat_at_two_bits_collapses_at_every_other_width() -> None:
    data = digits()
    x, y = data.train.x.numpy(), data.train.y.numpy()
    clients = [(x[part], y[part]) for part in dirichlet(y, 1, clients=10)]
    result = anybit.fit(deep_network(), clients, (data.test.x, data.test.y), anybit.qat(2), rounds=60, cohort=10,
                        client=anybit.ClientOptions(lr=0.1, batch_size=32, batches="full"),
                        server=anybit.ServerOptions(lr=0.03), pipeline=data.pipeline, engine="stacked",
                        evaluation=anybit.EvaluationOptions(sites=("W",)))
    accuracy = {width: score.metric for width, score in result.scores.items()}
    assert accuracy["W2"] > 60
    others = np.array([accuracy[f"W{bits}"] for bits in (3, 4, 6, 8)])
    assert accuracy["W2"] - others.max() >= 20, accuracy
