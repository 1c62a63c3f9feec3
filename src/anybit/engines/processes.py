"""Clients in worker processes, one core each: the best use of a CPU, because a client's operations are small.

Workers are forked at the first round, so they have the model, the data and the client step without a copy. Weights and
results pass through shared memory; a pipe to each worker carries the round's cohort and the next client to train. The
longest client with room for its result goes first; parts come in the order of the cohort, so that sums do not depend on
the number of workers.
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
from anybit.engines.worker import Done, Failed, Job, Worker, answer, client_message, cohort_message, start, train_clients
from anybit.environment import cores
from anybit.errors import AnybitError, EngineError
from anybit.tensors import Part, picked

RESULT_BYTES = 1 << 28
"""Shared memory for deltas that wait to be summed."""


class Processes(Engine):
    """Engine of `workers` processes of one thread, with a bounded number of deltas in memory."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._running: list[Worker] = []
        self._job: Job | None = None

    def map_clients(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Iterator[Part]:
        """Give one part per client, as the sequential engine does."""
        job = self._ready(update, client_step, w, given, cohort)
        job.w.write(w)
        job.given.write(given)
        message = cohort_message(cohort)
        try:
            for worker in self._running:
                self._send(worker, message, cohort)
            yield from self._parts(job, cohort)
        except BaseException:
            # A round that stops in the middle leaves workers with results that nobody takes.
            self.close()
            raise

    def each(self, figures: Callable[[Item], Sequence[float]], items: Sequence[Item]) -> list[list[float]]:
        """Share the items out among processes of one thread, so that figures do not depend on their number."""
        return shared_out(figures, items, self.workers, self._running)

    def close(self) -> None:
        """End the workers; the next round starts new ones."""
        while self._running:
            self._running.pop().end()
        self._job = None

    def _ready(self, update: Callable[..., Any], client_step: Any, w: Any, given: Any, cohort: Any) -> Job:
        """Return the job of the running workers if it fits this round, else start new workers."""
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

    def _parts(self, job: Job, cohort: Any) -> Iterator[Part]:
        size, queue = len(cohort.clients), _Queue(cohort.counts.sum(1).tolist(), job.results.count)
        idle, losses = list(self._running), {}
        for front in range(size):
            while front not in losses:
                while idle and (client := queue.longest(front)) is not None:
                    worker = idle.pop()
                    worker.client = client
                    self._send(worker, client_message(client, queue.place(client)), cohort)
                ready = wait([worker.pipe for worker in self._running])
                for worker in [worker for worker in self._running if worker.pipe in ready]:
                    result = self._result(worker, cohort)
                    losses[result.client] = result.losses
                    idle.append(worker)
            deltas = picked(job.results.tensors(queue.placed[front]), None)
            loss = losses.pop(front)
            yield slice(front, front + 1), deltas, pad(loss, (0, cohort.local_steps - len(loss)))[None]
            queue.release(front)

    def _send(self, worker: Worker, message: bytes, cohort: Any) -> None:
        try:
            worker.pipe.send_bytes(message)
        except OSError:
            raise self._died(worker, cohort) from None

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
        number = self._running.index(worker) + 1
        self._running.remove(worker)
        client = "" if worker.client is None else f", training client {cohort.clients[worker.client]}"
        return EngineError(f"worker process {number} of {self.workers} {worker.end()} in round {cohort.round + 1}{client}")


class _Queue:
    """Order of the clients, and the places of their results: the longest client in a window at the front goes next.

    The window has as many clients as there are places, so the client at the front always gets one.
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
    """Return a client's error: anybit's as it was, any other with the client, the round and the local step."""
    if failed.kind:
        kind: type[AnybitError] = getattr(errors, failed.kind, AnybitError)
        return AnybitError(failed.text) if kind is errors.MissingExtra else kind(failed.text)
    error = EngineError(f"client {cohort.clients[failed.client]} failed in round {cohort.round + 1}, local step "
                        f"{failed.step}: {failed.text}")
    error.add_note(failed.trace)
    return error
