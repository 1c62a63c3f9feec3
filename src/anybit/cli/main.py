"""All verbs of the command line, in one app."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TextIO

import typer
import typer.core

from anybit.cli import bound, data, export, fleet, inspect, recipes, sweep, training, verification
from anybit.cli.console import say
from anybit.errors import AnybitWarning, RunError, on_command_line

# With rich installed but not asked for, typer prints its escaped brackets; and click has suggestions of its own.
typer.core.HAS_RICH = False
app = typer.Typer(name="anybit", no_args_is_help=True, add_completion=False, rich_markup_mode=None,
                  pretty_exceptions_enable=False, suggest_commands=False,
                  help="Train one federated model that survives every bit-width.")


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        print(f"anybit {importlib.metadata.version('anybit')}")
    except importlib.metadata.PackageNotFoundError:
        print("anybit from its sources")
    raise typer.Exit


@app.callback()
def _before_any_verb(version: Annotated[bool, typer.Option(
        "--version", help="Print the version and exit.", is_eager=True, callback=_print_version)] = False) -> None: ...


_VERBS: dict[str, Callable[..., None]] = {
    "ls": recipes.ls, "show": recipes.show, "cp": recipes.cp, "run": training.run, "resume": training.resume,
    "sweep": sweep.sweep, "collect": sweep.collect, "eval": inspect.evaluate, "report": inspect.report,
    "bound": bound.bound, "export": export.export, "verify": verification.verify,
    "sign": verification.sign, "doctor": inspect.doctor}
for verb, function in _VERBS.items():
    app.command(verb)(function)
app.add_typer(data.app, name="data")
app.add_typer(fleet.app, name="fleet")
app.add_typer(verification.keys, name="keys")

_MISTAKE: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Options or arguments that are not the command's; newer typers have a click of their own, whose errors click's are not."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""Errors of the file system that the user fixes outside anybit."""


def _print_warning(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
                   line: str | None = None) -> None:
    """Print anybit's own warnings as the other lines for the person; others as Python does."""
    if issubclass(category, AnybitWarning):
        say(f"warning: {message}")
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=file or sys.stderr)


def _drop_output() -> None:
    """Let what is still buffered go nowhere: Python writes it at exit, and would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _mistaken(error: Any) -> int:
    """Print what is wrong with the arguments of a command as one line; the help itself where none were given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    said, context = " ".join(error.format_message().split()), getattr(error, "ctx", None)
    place = f" (see {context.command_path} --help)" if context else ""
    print(f"anybit: {said[:1].lower()}{said[1:]}{place}", file=sys.stderr)
    return int(error.exit_code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; let anybit's own errors through to the caller."""
    try:
        with warnings.catch_warnings(), on_command_line():
            warnings.showwarning = _print_warning
            code = app(list(arguments), prog_name="anybit", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return 130
    except _MISTAKE as error:
        return _mistaken(error)
    except BrokenPipeError:
        _drop_output()  # its reader went away (e.g. `| head`): end quietly
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        if error.filename is None:
            _drop_output()
        raise RunError(f"{error.filename or 'the output'} cannot be read or written ({error.strerror})") from None
    return 0
