"""What anybit says when something is wrong: one line that names what, where, and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AnybitError(Exception):
    """Something the user can mend. The command line prints it as one line and exits with `exit_code`."""

    exit_code = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class ConfigError(AnybitError):
    """A recipe, an override or an argument is wrong."""


class DataError(AnybitError):
    """The data cannot be trained on."""


class ModelError(AnybitError):
    """The model cannot be quantized or trained as it is."""


class RunError(AnybitError):
    """A run folder cannot be used as asked."""


class EngineError(AnybitError):
    """A client, a worker process or a rank failed while a round was computed."""


class MissingExtra(AnybitError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'anybit[{extra}]'")


class Diverged(AnybitError):
    """A client's loss is no longer finite; the last good checkpoint is kept."""

    exit_code = 3


class Rejected(AnybitError):
    """An exported artifact does not compute what was evaluated; it is kept with the suffix '.rejected'."""

    exit_code = 4


class RunsFailed(AnybitError):
    """Some runs of a sweep failed; the others went on."""

    exit_code = 1


class Interrupted(AnybitError):
    """The run was asked to stop and has saved its state."""

    exit_code = 130


_LONGEST = 2000


def printable(text: str) -> str:
    """Text that may hold names from files, as one line: what would steer a terminal is written out, the rest cut.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:_LONGEST])
    return f"{safe} …" if len(text) > _LONGEST else safe


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that ends an error message: the nearest known name, or the list of all.

    >>> did_you_mean("mqta", ["qat", "mqat"])
    "did you mean 'mqat'?"
    >>> did_you_mean("zzz", ["qat", "mqat"])
    'known: mqat, qat'
    """
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    return "known: " + ", ".join(names)
