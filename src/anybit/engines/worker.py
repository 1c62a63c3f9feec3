"""Worker processes of one thread: forked, told by messages which clients to train, and collected when they end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anybit.engines.parent import die_with_parent
from anybit.engines.sharing import Shared
from anybit.errors import AnybitError
from anybit.files.safetensors import from_bytes, to_bytes


@dataclass(frozen=True)
class Job:
    """Objects that all workers share by fork."""

    update: Callable[..., Any]
    client_step: Any
    form: Any
    """Tree structure of a cohort: of the first one, as a worker needs no other facts of a cohort than its tensors."""
    w: Shared
    given: Shared
    results: Shared


@dataclass(frozen=True)
class Done:
    """Answer of a worker whose client's delta lies in its place."""

    client: int
    losses: Tensor

    def message(self) -> bytes:
        return to_bytes({"losses": self.losses}, {"client": str(self.client)})


@dataclass(frozen=True)
class Failed:
    """Answer of a worker whose client's training raised."""

    client: int
    step: int
    """Local step, from 1; 0: before the first."""
    kind: str
    """Name of the error's class, if it is one of anybit's."""
    text: str
    trace: str

    def message(self) -> bytes:
        return to_bytes({}, {"failed": json.dumps(asdict(self))})


def answer(message: bytes) -> Done | Failed:
    """Read a worker's answer."""
    tensors, facts = from_bytes(message, "a worker's answer")
    return Failed(**json.loads(facts["failed"])) if "failed" in facts else Done(int(facts["client"]), tensors["losses"])


def cohort_message(cohort: Any) -> bytes:
    """Write the tensors of a cohort."""
    return to_bytes({str(i): tensor for i, tensor in enumerate(pytree.tree_leaves(cohort))}, {})


def client_message(client: int, place: int) -> bytes:
    """Write the order to train a client of the cohort and to put its delta at a place."""
    return to_bytes({}, {"client": str(client), "place": str(place)})


@dataclass
class Worker:
    """The engine's end of a worker."""

    pid: int
    pipe: Connection
    client: int | None = None
    """Position in the cohort of the client that it trains."""

    def end(self) -> str:
        """Kill the worker and collect it; return the manner of its end, e.g. "ended with status 1"."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        try:
            status = os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return "ended"
        if not os.WIFSIGNALED(status):
            return f"ended with status {os.waitstatus_to_exitcode(status)}"
        killed = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"{killed} (out of memory? try fewer compute.workers)" if os.WTERMSIG(status) == signal.SIGKILL else killed


def start(serve: Callable[[Connection], None], siblings: Sequence[Worker]) -> Worker:
    """Fork a worker that serves a pipe. It dies with this process, by the kernel's signal or when its pipe closes."""
    ours, theirs = Pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Worker(pid, ours)
    status = 1
    try:
        _stay_in_one_thread()  # first of all
        die_with_parent()
        if os.getppid() != parent:
            os._exit(0)
        for pipe in (ours, *(s.pipe for s in siblings)):
            pipe.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        gc.freeze()
        serve(theirs)
        status = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _stay_in_one_thread() -> None:
    """Forbid parallel regions, which would wait for OpenMP threads that a fork does not copy."""
    torch.set_num_threads(1)
    # Arm Compute Library ignores the line above and asks for all cores; without a parallel level it gets one.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(torch._C.__file__).omp_set_max_active_levels(0)


def train_clients(job: Job, pipe: Connection) -> None:
    """Serve the engine's messages until the pipe closes: a new cohort, or one of its clients to train."""
    w, given, cohort = job.w.tensors(), job.given.tensors(), None
    places = [job.results.tensors(i) for i in range(job.results.count)]
    while True:
        tensors, order = from_bytes(pipe.recv_bytes(), "the engine's message")
        if tensors:
            cohort = pytree.tree_unflatten([tensors[str(i)] for i in range(len(tensors))], job.form)
            continue
        client, place = int(order["client"]), places[int(order["place"])]
        pipe.send_bytes(_train(job, w, given, cohort, client, place).message())


def _train(job: Job, w: Any, given: Any, cohort: Any, client: int, place: Any) -> Done | Failed:
    step = 0

    def counted_batches() -> Iterator[Any]:
        nonlocal step
        for step, batch in enumerate(cohort.batches(client), 1):  # noqa: B007 (read where training failed)
            yield batch

    try:
        local_step = job.client_step.alone(given)
        change, losses = job.update(job.client_step.begin(w), counted_batches(), local_step)
        delta = job.client_step.end(change)
        for target, value in zip(pytree.tree_leaves(place), pytree.tree_leaves(delta), strict=True):
            target.copy_(value)
        return Done(client, losses)
    except Exception as error:
        kind = type(error).__name__ if isinstance(error, AnybitError) else ""
        text = str(error) if isinstance(error, AnybitError) else f"{type(error).__name__}: {error}"
        return Failed(client, step, kind, text, traceback.format_exc())
