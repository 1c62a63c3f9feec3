"""The devices' door to the SuperLink: a proxy that passes the requests of listed keys to the fleet API, and nothing else.

Flower's SuperLink answers devices, administrators and its own ServerApps on one port, administrators without a login: who
reaches it registers keys and runs code, on the server and on every device. So it listens on this machine alone, and devices
reach the gate. What a request is, who sent it and how long it is are checked before anything of it is unpacked.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from anybit.errors import MissingExtra
from anybit.fleet.registry import Registry
from anybit.fleet.text import brief

try:
    import httpx
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise MissingExtra("flwr", "flower", "a fleet") from None

FLEET = "/v1/fleet/"
ACTIVATE, PUSH_MESSAGE, PUSH_OBJECT = FLEET + "activate-node", FLEET + "push-messages", FLEET + "push-object"
ROUTES = frozenset(FLEET + name for name in (
    "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run", "get-fab",
    "push-object", "pull-object", "confirm-message-received"))
"""The requests of a registered device; registering itself is not among them."""
REQUEST_BYTES = 1 << 18
"""The most that a request takes, objects aside: names, numbers, and the list of an answer's objects."""
OBJECT_BYTES = CHUNK + (1 << 16)
"""The most that an object takes: Flower sends arrays in chunks."""
RECORDS = 8
"""The objects of an answer besides chunks: the message, its records, their arrays."""
PATIENCE = 300
"""Seconds until a request has arrived, and until the SuperLink has answered it."""
LINES = 30
"""The most lines a minute about refused requests."""
HEADERS = ("content-type", "accept")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Closed(Exception):
    """A request does not pass."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass
class Gate:
    """An ASGI application between devices and the SuperLink."""

    keys: Callable[[], Registry]
    """The keys that may pass, asked at every request."""
    inside: httpx.AsyncClient
    """The way to the SuperLink."""
    answer_bytes: int
    """The most that an answer takes, all its objects together."""
    say: Callable[[str], None]
    spent: dict[bytes, int] = field(default_factory=dict)
    """The bytes of objects since the last answer that was announced, by key."""
    minute: int = 0
    lines: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            key = self._known(scope)
            body = await self._body(scope, receive)
            self._check(scope["path"], key, body)
            answer = await self._passed_on(scope, body)
            status, kind, content = answer.status_code, answer.headers.get("content-type", ""), answer.content
        except Closed as closed:
            self._log(scope, closed)
            status, kind, content = closed.status, "application/json", b'{"detail": "refused"}'
        await send({"type": "http.response.start", "status": status,
                    "headers": [(b"content-type", kind.encode("latin-1")), (b"content-length", str(len(content)).encode())]})
        await send({"type": "http.response.body", "body": content})

    def _known(self, scope: Scope) -> bytes:
        """Return the key of a request that may be read, or raise: the route is listed, and so is the key."""
        path: str = scope["path"]
        if scope["method"] != "POST" or path not in ROUTES or scope["raw_path"] != path.encode() or scope["query_string"]:
            raise Closed(404, "no request of a device")
        # One alone: of two, the SuperLink might read the other.
        claimed = [value for name, value in scope["headers"] if name == FLEET_HTTP_PUBLIC_KEY_HEADER.encode()]
        try:
            key = base64.b64decode(claimed[0], validate=True) if len(claimed) == 1 else b""
        except binascii.Error:
            key = b""
        if key not in self.keys():
            # A SuperNode that starts reports a 404, one under way ends at a 401.
            raise Closed(404 if path == ACTIVATE else 401, "a key that is not listed")
        return key

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = OBJECT_BYTES if scope["path"] == PUSH_OBJECT else REQUEST_BYTES
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    part = await receive()
                    if part["type"] != "http.request":
                        raise Closed(400, "it broke off")
                    body += part.get("body", b"")
                    if len(body) > most:
                        raise Closed(413, f"more than {most} bytes")
                    if not part.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise Closed(408, f"not there after {PATIENCE} s") from None

    def _check(self, path: str, key: bytes, body: bytes) -> None:
        """Raise if an answer is announced in another's name, or is larger than answers are."""
        if path == PUSH_MESSAGE:
            try:
                request = PushMessagesRequest.FromString(body)
            except DecodeError:
                raise Closed(400, "no announcement of an answer") from None
            if any(message.metadata.src_node_id != request.node.node_id for message in request.messages_list):
                raise Closed(403, "an answer in another node's name")
            if (count := _objects(request.message_object_trees)) > self.answer_bytes // CHUNK + 1 + RECORDS:
                raise Closed(413, f"an answer of {count} objects")
            self.spent[key] = 0
        elif path == PUSH_OBJECT:
            self.spent[key] = self.spent.get(key, 0) + len(body)
            if self.spent[key] > self.answer_bytes + REQUEST_BYTES:
                raise Closed(413, f"an answer of more than {self.answer_bytes} bytes")

    async def _passed_on(self, scope: Scope, body: bytes) -> httpx.Response:
        """Send the request to the SuperLink, anew: with the headers that Flower reads and no others."""
        headers = [(name, value) for name, value in scope["headers"]
                   if name.decode("latin-1") in HEADERS or name.startswith(b"flwr-")]
        try:
            return await self.inside.post(scope["path"], content=body, headers=headers)
        except httpx.HTTPError as error:
            raise Closed(503, f"the SuperLink does not answer ({type(error).__name__})") from None

    def _log(self, scope: Scope, closed: Closed) -> None:
        """Say what was refused, so many times a minute: a log must not be filled from outside."""
        minute = int(time.monotonic() // 60)
        self.lines = self.lines + 1 if minute == self.minute else 1
        self.minute = minute
        if self.lines <= LINES:
            address = (scope.get("client") or ["?"])[0]
            self.say(f"gate: refused {brief(address)} {brief(scope['method'], 10)} {brief(scope['path'])}: "
                     f"{closed} ({closed.status})" + (" … and more in this minute" if self.lines == LINES else ""))


def _objects(trees: Iterable[Any]) -> int:
    """Count the objects that an answer announces, without recursion: trees come from outside."""
    count, waiting = 0, list(trees)
    while waiting:
        count += 1
        waiting += waiting.pop().children
    return count
