"""Folders that anybit grows: held by one process at a time, and never left through a link."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anybit.errors import RunError
from anybit.files.writing import writing


def no_link(path: str, flags: int) -> int:
    """Open a file that is grown or cut in place; through a link in a folder from elsewhere that could be any file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def own_folder(path: Path) -> Path:
    """Return a folder inside one from elsewhere, there or not yet, unless it is a link: that could lead to any folder."""
    if path.is_symlink():
        raise RunError(f"{path} is a link, and files are not written, deleted or read through it: put a folder in its place")
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a folder; the lock ends with the process, however it ends.

    The folder itself is locked, and a file in it: somebody may delete the file, and not every file system locks folders.
    """
    with writing(path / "lock", "the folder must be writable to train in it"):
        handles = [no_link(str(path / "lock"), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC)]
    try:
        handles.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(handles[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            with _folders_may_be_unlockable():
                fcntl.flock(handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(f"{path} is in use by another process") from None
        yield
    finally:
        for handle in handles:
            os.close(handle)


@contextmanager
def _folders_may_be_unlockable() -> Iterator[None]:
    """Let a file system do without locks of folders."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOTSUP, errno.EINVAL, errno.ENOLCK):
            raise
