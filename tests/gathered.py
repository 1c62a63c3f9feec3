"""All deltas of a cohort at once, from an engine that gives them in parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anybit.engines.base import Engine
from anybit.engines.processes import Processes
from anybit.engines.sequential import Sequential
from anybit.engines.stacked import Stacked
from anybit.federated.algorithm import client_update
from anybit.federated.cohort import Cohort
from anybit.federated.state import Given, Trainable
from anybit.training.course import Training

ENGINES: dict[str, Engine] = {"sequential": Sequential(), "stacked": Stacked(1000), "stacked in chunks": Stacked(3),
                              "processes": Processes(2)}


def gathered(engine: Engine, client_step: Any, w: Trainable, given: Given,
             cohort: Cohort) -> tuple[dict[str, Tensor], Tensor]:
    """Return (deltas by name, losses), client first; the parts must come in order and leave nobody out."""
    parts = [(c, {n: d.clone() for n, d in deltas.named().items()}, losses.clone())
             for c, deltas, losses in engine.map_clients(client_update, client_step, w, given, cohort)]
    assert [i for clients, *_ in parts for i in range(*clients.indices(len(cohort.clients)))] == \
        list(range(len(cohort.clients)))
    return {n: torch.cat([deltas[n] for _, deltas, _ in parts]) for n in w.named()}, torch.cat([p[2] for p in parts])


def deltas_of(engine: Engine, training: Training, cohort: Cohort) -> tuple[dict[str, Tensor], Tensor]:
    """Return the same of a training that has begun."""
    computation, table = training.computation, training.table
    return gathered(engine, computation.client_step(table), training.state.trainable, computation.given(table), cohort)
