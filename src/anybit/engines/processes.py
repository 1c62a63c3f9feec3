"""Clients in worker processes, one core each: what a CPU does best, because a client's own operations are small.

Workers are forked at the first round, so the model, the data and the client step are theirs without a copy. Weights and
results pass through shared memory; a pipe to each worker carries the round's cohort and which client to train next. The
longest client goes first among those whose results have room; parts come in the order of the cohort all the same, so
sums do not depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from anybit import errors
from anybit.engines.base import Engine, Item
from anybit.engines.figures import shared_out
from anybit.engines.sharing import Layout, Shared
from anybit.engines.worker import (
    Done,
    Failed,
    Job,
    Worker,
    answer,
    client_message,
    cohort_message,
    how_it_ended,
    start,
    train_clients,
)
from anybit.environment import cores
from anybit.errors import AnybitError, EngineError
from anybit.tensors import Part, picked

RESULT_BYTES = 1 << 28
"""Shared memory for deltas that wait for their turn."""


class Processes(Engine):
    """`workers` processes of one thread; memory holds a bounded number of deltas, whatever the cohort."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._running: list[Worker] = []
        self._job: Job | None = None

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterator[Part]:
        """Give one part per client, as the sequential engine does."""
        job = self._ready(update, client_step, w, given, cohort)
        job.w.write(w)
        job.given.write(given)
        finished = False
        try:
            self._broadcast(cohort_message(cohort), cohort)
            yield from self._parts(job, cohort)
            finished = True
        finally:
            # Whoever stops in the middle leaves workers with results that nobody takes.
            if not finished:
                self.close()

    def each(self, figures: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[list[float]]:
        """Shared out among processes of one thread, so the figures do not depend on how many there are."""
        return shared_out(figures, items, self.workers, self._running)

    def close(self) -> None:
        """End the workers; the next round would start new ones."""
        while self._running:
            self._running.pop().end()
        self._job = None

    def _ready(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Job:
        """Have workers for this work: those that run, or new ones."""
        clients = len(cohort.clients)
        job, workers = self._job, min(self.workers, clients)
        if job and (job.update, job.client_step) == (update, client_step) and job.w.layout.fits(w) \
                and job.given.layout.fits(given) and len(self._running) >= workers:
            return job
        self.close()
        layout = Layout(w)
        places = max(2 * workers, min(clients, RESULT_BYTES // layout.size))
        self._job = Job(update, client_step, pytree.tree_structure(cohort), Shared(layout), Shared(Layout(given)),
                        Shared(layout, places))
        for _ in range(workers):
            self._running.append(start(partial(train_clients, self._job), self._running))
        return self._job

    def _broadcast(self, message: bytes, cohort: Any) -> None:
        for worker in self._running:
            try:
                worker.pipe.send_bytes(message)
            except OSError:
                raise self._died(worker, cohort) from None

    def _parts(self, job: Job, cohort: Any) -> Iterator[Part]:
        size, queue = len(cohort.clients), _Queue(cohort.counts.sum(1).tolist(), job.results.count)
        idle, losses = list(self._running), {}
        for front in range(size):
            while front not in losses:
                while idle and (client := queue.longest(front)) is not None:
                    self._send(idle.pop(), client, queue.place(client), cohort)
                for worker in self._with_news():
                    result = self._result(worker, cohort)
                    losses[result.client] = result.losses
                    idle.append(worker)
            deltas = picked(job.results.tensors(queue.placed[front]), None)
            each = losses.pop(front)
            yield slice(front, front + 1), deltas, pad(each, (0, cohort.local_steps - len(each)))[None]
            queue.release(front)

    def _send(self, worker: Worker, client: int, place: int, cohort: Any) -> None:
        worker.client = client
        try:
            worker.pipe.send_bytes(client_message(client, place))
        except OSError:
            raise self._died(worker, cohort) from None

    def _with_news(self) -> list[Worker]:
        ready = wait([worker.pipe for worker in self._running])
        return [worker for worker in self._running if worker.pipe in ready]

    def _result(self, worker: Worker, cohort: Any) -> Done:
        try:
            result = answer(worker.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._died(worker, cohort) from None
        worker.client = None
        if isinstance(result, Failed):
            raise _failure(result, cohort)
        return result

    def _died(self, worker: Worker, cohort: Any) -> EngineError:
        """What to say of a worker that is gone."""
        number = self._running.index(worker) + 1
        self._running.remove(worker)
        how = how_it_ended(worker.end())
        where = f" in round {cohort.round + 1}" if worker.client is None else \
            f" in round {cohort.round + 1}, training client {cohort.clients[worker.client]}"
        return EngineError(f"worker process {number} of {self.workers} {how}{where}")


class _Queue:
    """Which client is next, and where its result goes: the longest within a window that moves with the front.

    The window is as long as there are places, so the client that everybody waits for always has one.
    """

    def __init__(self, work: list[int], places: int) -> None:
        self.work, self.places = work, places
        self.free, self.placed = list(range(places)), dict[int, int]()
        self.waiting = set(range(len(work)))

    def longest(self, front: int) -> int | None:
        window = (i for i in range(front, min(front + self.places, len(self.work))) if i in self.waiting)
        return max(window, key=lambda i: (self.work[i], -i), default=None)

    def place(self, client: int) -> int:
        self.waiting.remove(client)
        self.placed[client] = self.free.pop()
        return self.placed[client]

    def release(self, client: int) -> None:
        self.free.append(self.placed.pop(client))


def _failure(failed: Failed, cohort: Any) -> AnybitError:
    """A client's error: anybit's own as it is, any other with the client, the round and the local step."""
    if failed.kind:
        own: type[AnybitError] = getattr(errors, failed.kind, AnybitError)
        return AnybitError(failed.text) if own is errors.MissingExtra else own(failed.text)
    error = EngineError(f"client {cohort.clients[failed.client]} failed in round {cohort.round + 1}, local step "
                        f"{failed.step}: {failed.text}")
    error.add_note(failed.trace)
    return error
