"""A SuperLink that only this machine reaches, and the gate that devices reach: both start and end together."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from anybit.errors import MissingExtra, RunError
from anybit.fleet.gate import PATIENCE, Gate
from anybit.fleet.registry import FILE, Keys

try:
    import httpx
    import uvicorn
except ModuleNotFoundError:
    raise MissingExtra("flwr", "flower", "a fleet") from None

START = 300
"""Seconds until the SuperLink must answer."""
END = 20
"""Seconds that it has to end."""
CONNECTIONS = 2048
"""The most connections of devices at once."""


@dataclass(frozen=True)
class Door:
    """The addresses of a gate."""

    host: str
    """Where devices reach it; 0.0.0.0: at every address of this machine."""
    port: int
    control_port: int
    """The SuperLink's port, on this machine alone."""
    answer_bytes: int


class _Server(uvicorn.Server):
    """A server that leaves signals to whoever started it."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def keep_gate(server: Path, door: Door, command: Sequence[str], say: Callable[[str], None]) -> int:
    """Start the SuperLink by its command and open the gate, until either ends; return the SuperLink's exit code."""
    certificates = [server / "certificates" / name for name in ("ca.crt", "server.crt", "server.key")]
    if missing := [path for path in (server / FILE, *certificates) if not path.is_file()]:
        raise RunError(f"{missing[0]} is missing: 'anybit fleet init' writes it")
    keys = Keys(server / FILE, say)
    _check_free(door)
    try:
        link = subprocess.Popen(list(command))
    except OSError as error:
        raise RunError(f"'{command[0]}' cannot be started ({error.strerror}): pip install 'anybit[flower]'") from None
    try:
        asyncio.run(_serve(keys, certificates, door, link, say))
    finally:
        link.terminate()
        try:
            link.wait(END)
        except subprocess.TimeoutExpired:
            link.kill()
    code = link.wait()
    return max(code, 0)


def _check_free(door: Door) -> None:
    for host, port in ((door.host, door.port), ("127.0.0.1", door.control_port)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise RunError(f"{host}:{port} cannot be opened ({error.strerror}): end what is there, or take another port "
                               "in start.sh (and connections.toml, and the devices' start.sh)") from None


async def _serve(keys: Keys, certificates: Sequence[Path], door: Door, link: subprocess.Popen[bytes],
                 say: Callable[[str], None]) -> None:
    authority, certificate, key = certificates
    trusted = ssl.create_default_context(cafile=str(authority))
    inside = httpx.AsyncClient(base_url=f"https://127.0.0.1:{door.control_port}", verify=trusted, timeout=PATIENCE,
                               trust_env=False)
    gate = Gate(keys, inside, door.answer_bytes, say)
    # h11 bounds the length of headers; nothing of a request is logged here.
    server = _Server(uvicorn.Config(gate, door.host, door.port, http="h11", ws="none", lifespan="off", log_config=None,
                                    access_log=False, server_header=False, limit_concurrency=CONNECTIONS,
                                    ssl_certfile=str(certificate), ssl_keyfile=str(key)))
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with inside:
        if not await _answers(door.control_port, link, ended):
            return
        serving = asyncio.create_task(server.serve())
        say(f"gate: devices at {door.host}:{door.port}, {len(keys())} keys; control at 127.0.0.1:{door.control_port}")
        while not ended.is_set() and link.poll() is None and not serving.done():
            await asyncio.sleep(0.2)
        server.should_exit = True
        await serving


async def _answers(port: int, link: subprocess.Popen[bytes], ended: asyncio.Event) -> bool:
    """Wait until the SuperLink answers; say whether it does, or has ended."""
    end = time.monotonic() + START
    while link.poll() is None and not ended.is_set():
        if time.monotonic() > end:
            raise RunError(f"the SuperLink does not answer at 127.0.0.1:{port} after {START} s: see what it says")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        except OSError:
            await asyncio.sleep(0.2)
    return False
