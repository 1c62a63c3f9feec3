"""Hashes of what is the same on every CPU: draws, cohorts, widths, splits, initial weights, start steps.

A change of any of them changes every run after it. `make net-renew` writes them anew; say in the changelog why.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anybit import models
from anybit.data.splits import SPLITS
from anybit.federated import variants
from anybit.federated.client import ClientOptions
from anybit.federated.cohort import build_cohort, sample_clients
from anybit.federated.sampling import SamplingOptions, sample_cohort
from anybit.quant.ranges import weight_steps
from anybit.randomness import generator, key, uniform

FILE = Path(__file__).parent / "fingerprints.json"
SPLIT_SETTINGS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 7}, "dirichlet": {"clients": 7, "alpha": 0.3}, "dirichlet_free": {"clients": 7, "alpha": 0.3},
    "pachinko": {"clients": 7}, "by_id": {"least": 2}, "shards": {"clients": 7}}


def sha(arrays: Iterable[Any]) -> str:
    """SHA-256 of the arrays' types, shapes and bytes."""
    digest = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def fingerprints() -> dict[str, str]:
    """{what: its hash}."""
    found = {"keys": sha([[key(1, "init"), key(2, "order", 3, 4)]]),
             "host draws": sha([generator(1, "order", 2, 3).permutation(100), generator(1, "width").integers(6, size=50)]),
             "device draws": sha([uniform(torch.tensor(key(1, "client", 2, 3)), torch.tensor(4), 5, (6, 7)).numpy()])}
    return found | _cohorts() | _widths() | _splits() | _weights()


def _cohorts() -> dict[str, str]:
    split = [np.arange(start, start + size) for start, size in ((0, 5), (5, 12), (17, 1), (18, 20))]
    cohort = build_cohort(1, 2, sample_clients(1, 2, 4, 3), variants.mqat().widths_of(1, 2, range(3)), split,
                          ClientOptions(batch_size=4, epochs=2, batches="full"))
    fixed = variants.mqat(fixed=True)
    drawn = {policy: sample_cohort(options, 1, 2, 30, 8, lambda clients: fixed.widths_of(1, 2, clients))
             for policy, options in (("stratified", SamplingOptions("stratified")),
                                     ("weighted", SamplingOptions("weighted", {"W2": 3.0})))}
    return {"cohort": sha([cohort.clients, cohort.index, cohort.rows, cohort.keys, torch.tensor(cohort.widths)]),
            **{f"cohort {policy}": sha([clients]) for policy, clients in drawn.items()}}


def _widths() -> dict[str, str]:
    made = {"mqat": variants.mqat(sites="WA"), "mqat*": variants.mqat(fixed=True), "qat": variants.qat(3)}
    return {f"widths {name}": sha([variant.widths_of(1, round, range(20)) for round in range(3)])
            for name, variant in made.items()}


def _splits() -> dict[str, str]:
    draw = np.random.default_rng(0)
    labels, ids = draw.integers(20, size=700), draw.integers(9, size=700)
    known = {"seed": 1, "labels": labels, "coarse": labels // 4, "ids": ids}
    out = {}
    for name, settings in SPLIT_SETTINGS.items():
        wanted = inspect.signature(SPLITS[name]).parameters
        given = {argument: value for argument, value in known.items() if argument in wanted}
        out[f"split {name}"] = sha(SPLITS[name](**given, **settings))
    return out


def _weights() -> dict[str, str]:
    """Uniform draws and quotients of extremes: what rounds alike everywhere. (Normal draws, as He's, do not.)"""
    out = {}
    for name, make in (("lenet5", models.lenet5), ("resnet20", models.resnet20)):
        for init in ("torch", "xavier"):
            torch.manual_seed(key(1, "init"))
            parameters = dict(make(init=init).named_parameters())  # type: ignore[operator]
            out[f"weights {name} {init}"] = sha(p.detach().numpy() for p in parameters.values())
        matrices = [p.detach() for p in parameters.values() if p.dim() > 1][:4]
        for rule in ("minmax", "cover", "mse"):
            for channels in (False, True):
                steps = [weight_steps(w, rule, "full", channels).numpy() for w in matrices]  # type: ignore[arg-type]
                out[f"steps {name} {rule}{' per channel' * channels}"] = sha(steps)
    return out


if __name__ == "__main__":
    FILE.write_text(json.dumps(fingerprints(), indent=1) + "\n")
    print(f"wrote {FILE.name}: say in the changelog what changed, and why")
