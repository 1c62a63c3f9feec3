"""The `anybit` command."""

from __future__ import annotations

import sys

from anybit.engines.parent import die_with_torchrun
from anybit.errors import AnybitError, MissingExtra


def main() -> None:
    """Run the command line; print an error that the user can fix as one line, without a traceback unless --debug."""
    die_with_torchrun()
    try:
        try:
            from anybit.cli.main import run
        except ModuleNotFoundError as error:
            if error.name not in ("typer", "rich", "click"):
                raise
            raise MissingExtra("typer", "cli", "the command line") from None
        sys.exit(run(sys.argv[1:]))
    except AnybitError as error:
        if "--debug" in sys.argv:
            raise
        print(f"anybit: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
