"""Ctrl-C ends a run after its round, with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Stoppable(Protocol):
    """Something that ends after its current round once `stop` is set."""

    stop: bool


@contextmanager
def stoppable(watch: Stoppable, say: Callable[[str], None],
              signals: Collection[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> Iterator[None]:
    """Let Ctrl-C or SIGTERM end the run after the current round, with a checkpoint; a second one ends it at once.

    Signals within a second count once: a terminal and a launcher such as torchrun both pass on the same Ctrl-C. Only the
    main thread is told of signals: in another one nothing changes.
    """
    first = [0.0]

    def stop(number: int, frame: Any) -> None:
        if watch.stop and time.monotonic() - first[0] > 1:
            raise KeyboardInterrupt
        if not watch.stop:
            watch.stop, first[0] = True, time.monotonic()
            say("\nstopping when this round or evaluation is done (once more to stop at once)")

    if threading.current_thread() is not threading.main_thread():
        signals = ()
    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
