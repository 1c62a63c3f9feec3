"""A worker process of the processes engine, one thread: trains clients until its pipe closes, or computes some figures."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """What all workers share by fork."""

    update: Callable[..., Any]
    client_step: Any
    form: Any
    """How a cohort is put together from its tensors (of the first one: who the clients are does not matter here)."""
    w: Shared
    given: Shared
    results: Shared


@dataclass(frozen=True)
class Done:
    """A client's delta lies in its place."""

    client: int
    losses: Tensor

    def message(self) -> bytes:
        return to_bytes({"losses": self.losses}, {"client": str(self.client)})


@dataclass(frozen=True)
class Failed:
    """A client's training raised."""

    client: int
    step: int
    """The local step, from 1; 0: before the first."""
    kind: str
    """The name of the error's class, if it is one of anybit's own."""
    text: str
    trace: str

    def message(self) -> bytes:
        return to_bytes({}, {"failed": json.dumps(asdict(self))})


def answer(message: bytes) -> Done | Failed:
    """What a worker sent."""
    tensors, facts = from_bytes(message, "a worker's answer")
    return Failed(**json.loads(facts["failed"])) if "failed" in facts else Done(int(facts["client"]), tensors["losses"])


def cohort_message(cohort: Any) -> bytes:
    """The tensors of a cohort; the workers know the rest."""
    return to_bytes({str(i): tensor for i, tensor in enumerate(pytree.tree_leaves(cohort))}, {})


def client_message(client: int, place: int) -> bytes:
    """Train this client of the cohort, and put its delta there."""
    return to_bytes({}, {"client": str(client), "place": str(place)})


@dataclass
class Worker:
    """The engine's end of a worker."""

    pid: int
    pipe: Connection
    client: int | None = None
    """The position in the cohort that it is training."""

    def end(self) -> int | None:
        """Kill the worker and collect it: its exit status, none if somebody else did."""
        self.pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        try:
            return os.waitpid(self.pid, 0)[1]
        except ChildProcessError:
            return None


def how_it_ended(status: int | None) -> str:
    """What the exit status of a worker says."""
    if status is None:
        return "ended"
    if not os.WIFSIGNALED(status):
        return f"ended with status {os.waitstatus_to_exitcode(status)}"
    killed = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"{killed} (out of memory? try fewer compute.workers)" if os.WTERMSIG(status) == signal.SIGKILL else killed


def start(serve: Callable[[Connection], None], siblings: Sequence[Worker]) -> Worker:
    """Fork a worker that serves a pipe. It dies with this process: by the kernel's signal, or when its pipe closes."""
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
    """Let no region be parallel: it would wait for OpenMP threads that a fork does not copy."""
    torch.set_num_threads(1)
    # Arm Compute Library asks for all cores whatever is set above; without a parallel level it gets one.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(torch._C.__file__).omp_set_max_active_levels(0)


def train_clients(job: Job, pipe: Connection) -> None:
    """Serve orders: a new cohort, or one of its clients to train."""
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
    taken = [0]
    try:
        local_step = job.client_step.alone(given, cohort.width_bits[client])
        delta, losses = job.update(w, _counted(cohort.batches(client), taken), local_step)
        for target, value in zip(pytree.tree_leaves(place), pytree.tree_leaves(delta), strict=True):
            target.copy_(value)
        return Done(client, losses)
    except Exception as error:
        kind = type(error).__name__ if isinstance(error, AnybitError) else ""
        text = str(error) if isinstance(error, AnybitError) else f"{type(error).__name__}: {error}"
        return Failed(client, taken[0], kind, text, traceback.format_exc())


def _counted(batches: Iterable[Any], taken: list[int]) -> Iterator[Any]:
    for batch in batches:
        taken[0] += 1
        yield batch
