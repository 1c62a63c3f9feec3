"""Processes that are killed right before their nth file operation: a rename, or a deletion."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def killed(work: Callable[[], object], at: int | None = None) -> bool:
    """Do some work in a process of its own, and kill that before operation `at`; false if it came to its end before."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _count_to(at)
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True
    assert status == 0, "it failed by itself"
    return False


def _count_to(at: int | None) -> None:
    done = 0

    def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            if done == at:
                os.kill(os.getpid(), signal.SIGKILL)
            done += 1
            return operation(*arguments, **named)
        return run

    os.replace, os.unlink = counted(os.replace), counted(os.unlink)


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the times."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.name != "timing.jsonl"}
