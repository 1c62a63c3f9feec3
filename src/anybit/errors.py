"""Errors of anybit: one line each, which names the problem, its place and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar


class AnybitError(Exception):
    """An error that the user can fix. The command line prints it as one line and exits with `exit_code`."""

    exit_code = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class AnybitWarning(UserWarning):
    """Something that works, and perhaps not as meant: one line, through Python's `warnings`."""


class ConfigError(AnybitError):
    """Wrong recipe, override or argument."""


class DataError(AnybitError):
    """Data that cannot be trained on."""


class ModelError(AnybitError):
    """A model that cannot be quantized or trained as it is."""


class RunError(AnybitError):
    """A run folder that cannot be used as asked."""


class EngineError(AnybitError):
    """Failure of a client, a worker process or a rank while a round was computed."""


class MissingExtra(AnybitError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package '{package}': pip install 'anybit[{extra}]'")


class MissingProgram(AnybitError):
    """A program of the system that is not installed."""


class Diverged(AnybitError):
    """A loss that is no longer finite; the last good checkpoint is kept."""

    exit_code = 3


class Rejected(AnybitError):
    """An exported artifact whose results differ from the evaluation; it is kept with the suffix '.rejected'."""

    exit_code = 4


class RunsFailed(AnybitError):
    """Failed runs of a sweep; the others went on."""

    exit_code = 1


class Interrupted(AnybitError):
    """End of a run that was asked to stop and has saved its state."""

    exit_code = 130


_LONGEST = 2000


def printable(text: str) -> str:
    """Escape control characters, which names from files may hold, and cut the text to one line of bounded length."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[:_LONGEST])
    return f"{safe} …" if len(text) > _LONGEST else safe


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the hint "did you mean 'mqat'?" with the nearest known name, or "known: mqat, qat" with all."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else "known: " + ", ".join(names)


_COMMANDED: ContextVar[bool] = ContextVar("commanded", default=False)


@contextmanager
def on_command_line() -> Iterator[None]:
    """Have messages name options of the command line, which are arguments in Python."""
    before = _COMMANDED.set(True)
    try:
        yield
    finally:
        _COMMANDED.reset(before)


def option(name: str, value: str | float | None = None, python: str | None = None) -> str:
    """Name an option as it is given where we are: "--min-accuracy 0", or in Python "min_accuracy=0".

    python: what is said there instead, where the argument is another or does not exist.
    """
    if _COMMANDED.get():
        words = "" if value is None else f" {value}" if isinstance(value, str) else f" {value:g}"
        return f"--{name.replace('_', '-')}{words}"
    words = "…" if value is None else repr(value) if isinstance(value, str) else f"{value:g}"
    return f"{name}={words}" if python is None else python


def listed(names: Sequence[str], most: int = 3) -> str:
    """Write "'a', 'b', 'c' and 12 more": the first few names, and how many others there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


def at_least(least: float, **values: float | None) -> None:
    """Raise for a setting below `least`; one that is left open is none."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} = {value}: must be at least {least}")


def positive(**values: float | None) -> None:
    """Raise for a setting that is not above 0; one that is left open is none."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} = {value}: must be above 0")
