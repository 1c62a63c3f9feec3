"""Processes that do not outlive their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel, where it can, to kill this process when its parent ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_torchrun() -> None:
    """Let a rank die with torchrun: in a session of its own it would go on training in the folder."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
