"""The command line, for the tests of exports."""

from __future__ import annotations

import warnings

TRUSTED = ["tests.export.user_net"]


def run(arguments: list[str]) -> int:
    """The command line in this process; typer's own imports are deprecated ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from anybit.cli.main import run as main

        return main(arguments)
