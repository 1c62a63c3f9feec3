"""Figures of independent items, such as a model's scores at every width, in forked processes of one thread each."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from anybit.engines.base import Item
from anybit.engines.worker import Worker, start
from anybit.errors import EngineError


def shared_out(figures: Callable[[Item], Sequence[float]], items: Sequence[Item], workers: int,
               siblings: Sequence[Worker]) -> list[list[float]]:
    """Return figures(item) of every item, in order; siblings: running workers, whose pipes the new ones must close."""
    shares = [range(first, len(items), workers) for first in range(min(workers, len(items)))]
    results: list[list[float]] = [[] for _ in items]
    running: list[Worker] = []
    try:
        for share in shares:
            running.append(start(partial(_compute, figures, [items[i] for i in share]), [*siblings, *running]))
        for worker, share in zip(running, shares, strict=True):
            for i, result in zip(share, _answer(worker), strict=True):
                results[i] = result
    finally:
        while running:
            running.pop().end()
    return results


def _compute(figures: Callable[[Item], Sequence[float]], items: Sequence[Item], pipe: Connection) -> None:
    try:
        answer: dict[str, Any] = {"figures": [list(figures(item)) for item in items]}
    except Exception as error:
        answer = {"failed": [f"{type(error).__name__}: {error}", traceback.format_exc()]}
    pipe.send_bytes(json.dumps(answer).encode())


def _answer(worker: Worker) -> list[list[float]]:
    try:
        answer = json.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError):
        raise EngineError(f"a worker process of the evaluation {worker.end()}") from None
    if "failed" in answer:
        error = EngineError(f"the evaluation failed: {answer['failed'][0]}")
        error.add_note(answer["failed"][1])
        raise error
    return list(answer["figures"])
