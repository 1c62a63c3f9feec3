"""verify, sign and keys: whether files are those that were written, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anybit.cli.console import Debug, Json, print_result, say
from anybit.errors import RunError

Verified = Annotated[Path, typer.Argument(metavar="PATH", help="A run, a sweep, an export, or an archive.")]
Private = Annotated[Path, typer.Argument(metavar="PATH", help="Where to write the private key; the public one: PATH.pub.")]
keys = typer.Typer(no_args_is_help=True, help="Keys for signatures.")


def verify(path: Verified,
           key: Annotated[Path | None, typer.Option(help="Public key: require a signature by its private key.")] = None,
           json: Json = False, debug: Debug = False) -> None:
    """Compare every file with its recorded SHA-256: ok, damaged, missing, unknown (recorded nowhere), or unchecked (times,
    events of a fleet)."""
    from anybit.files.signatures import public_key
    from anybit.files.verification import verify

    states = verify(path, None if key is None else public_key(key))
    bad = [name for name, state in states.items() if state in ("damaged", "missing")]
    print_result(json, {"path": str(path), "ok": not bad, "files": states}, ["file", "state"],
                 [[name, state] for name, state in states.items()])
    if bad:
        raise RunError(f"{path}: {', '.join(f'{name} is {states[name]}' for name in bad)}")


def sign(path: Verified,
         key: Annotated[Path, typer.Option(help="A private key, as 'anybit keys new' writes it.")],
         debug: Debug = False) -> None:
    """Sign a finished run, a finished sweep, an export or an archive, after verifying every file in it."""
    from anybit.files.signatures import private_key
    from anybit.files.verification import sign

    for target in sign(path, private_key(key)):
        say(f"signature: {target}")


@keys.command("new")
def new(path: Private, debug: Debug = False) -> None:
    """Make a pair of Ed25519 keys."""
    from anybit.files.signatures import new_keys

    say(f"private key: {path} (yours alone)   public key: {new_keys(path)}")
