"""A process that does not outlive the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """SIGKILL when the parent ends, where the kernel can do that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_torchrun() -> None:
    """torchrun puts its ranks into sessions of their own: killed itself, it would leave them training in the folder."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
