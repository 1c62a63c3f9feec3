"""The gate passes listed devices' own requests, of bounded size, and nothing else; nothing refused reaches the SuperLink."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from anybit.errors import ConfigError, RunError
from anybit.fleet.certificates import device_key
from anybit.fleet.gate import CHUNK, LINES, OBJECT_BYTES, RECORDS, REQUEST_BYTES, ROUTES, Gate
from anybit.fleet.project import Project, write_project
from anybit.fleet.registry import Keys, Listed, add_device, pem, read_devices, registry

OWN = device_key().public.decode()
FLEET = "/v1/fleet/"


class Inside:
    """What arrives at the SuperLink."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return httpx.Response(200, content=b"answer", headers={"content-type": "application/protobuf"})


class Outside:
    """A device in front of a gate."""

    def __init__(self, answer_bytes: int = 20 << 20) -> None:
        self.said, self.inside = list[str](), Inside()
        client = httpx.AsyncClient(base_url="https://inside", transport=httpx.MockTransport(self.inside))
        keys = registry({"node-0": Listed(OWN, 0)})
        self.gate = Gate(lambda: keys, client, answer_bytes, self.said.append)

    def ask(self, path: str, body: bytes = b"x", method: str = "POST", key: str | None = OWN,
            headers: dict[str, str] | list[tuple[str, str]] | None = None) -> int:
        own = [] if key is None else [("flwr-public-key", base64.b64encode(pem(key)).decode())]
        more = list(headers.items()) if isinstance(headers, dict) else headers or []
        transport = httpx.ASGITransport(self.gate)

        async def send() -> int:
            async with httpx.AsyncClient(transport=transport, base_url="https://outside") as client:
                return (await client.request(method, path, content=body, headers=[*more, *own])).status_code

        return asyncio.run(send())


def test_c1_only_a_devices_own_routes_pass() -> None:
    outside = Outside()
    for method, route in PROTOBUF_REQUEST_TYPES:
        assert outside.ask(route, b"", method) == (200 if route in ROUTES else 404), route
    assert {request.url.path for request in outside.inside.requests} == ROUTES
    assert not [route for route in ROUTES if "/control/" in route or "/runtime/" in route or "register" in route]


@pytest.mark.parametrize(("method", "path"), [
    ("GET", FLEET + "pull-messages"), ("PUT", FLEET + "pull-messages"), ("POST", FLEET + "pull-messages/"),
    ("POST", "/v1/fleet//pull-messages"), ("POST", "/v1/fleet/%70ull-messages"), ("POST", FLEET + "pull-messages?x=1"),
    ("POST", "/V1/fleet/pull-messages"), ("POST", "/v1/fleet/..%2fcontrol/start-run"), ("GET", "/docs"), ("POST", "/"),
    ("GET", "/openapi.json"), ("POST", FLEET + "register-node"), ("POST", FLEET + "unregister-node")])
def test_c1_whatever_resembles_a_route_is_none(method: str, path: str) -> None:
    outside = Outside()
    assert outside.ask(path, method=method) == 404
    assert not outside.inside.requests


def test_c1_a_key_that_is_not_listed_does_not_pass() -> None:
    outside = Outside()
    assert outside.ask(FLEET + "pull-messages", key=None) == 401
    assert outside.ask(FLEET + "pull-messages", key=device_key().public.decode()) == 401
    assert outside.ask(FLEET + "pull-messages", key=None, headers={"flwr-public-key": "%%%"}) == 401
    other = base64.b64encode(pem(device_key().public.decode())).decode()
    assert outside.ask(FLEET + "pull-messages", headers=[("flwr-public-key", other)]) == 401
    assert outside.ask(FLEET + "activate-node", key=device_key().public.decode()) == 404
    assert not outside.inside.requests


def test_m1_a_request_is_bounded_before_it_is_unpacked() -> None:
    outside = Outside()
    assert outside.ask(FLEET + "push-object", b"\0" * OBJECT_BYTES) == 200
    assert outside.ask(FLEET + "push-object", b"\0" * (OBJECT_BYTES + 1)) == 413
    assert outside.ask(FLEET + "push-messages", b"\0" * (REQUEST_BYTES + 1)) == 413
    assert outside.ask(FLEET + "get-run", b"\0" * (REQUEST_BYTES + 1)) == 413
    assert len(outside.inside.requests) == 1


def announced(objects: int, node: int = 7, source: int = 7, deep: bool = False) -> bytes:
    tree = ObjectTree(object_id="0")
    last = tree
    for i in range(1, objects):
        child = last.children.add(object_id=str(i))
        last = child if deep else last
    return PushMessagesRequest(node=Node(node_id=node), messages_list=[Message(metadata=Metadata(src_node_id=source))],
                               message_object_trees=[tree]).SerializeToString()


def test_m1_an_answer_is_bounded_all_its_objects_together() -> None:
    outside, most = Outside(answer_bytes=2 * CHUNK), 2 + 1 + RECORDS
    assert outside.ask(FLEET + "push-messages", announced(most)) == 200
    assert outside.ask(FLEET + "push-messages", announced(most + 1)) == 413
    assert outside.ask(FLEET + "push-messages", announced(most + 1, deep=True)) == 413
    assert outside.ask(FLEET + "push-messages", b"\xff\xff") == 400
    assert [outside.ask(FLEET + "push-object", b"\0" * CHUNK) for _ in range(3)] == [200, 200, 413]
    assert outside.ask(FLEET + "push-messages", announced(3)) == 200
    assert outside.ask(FLEET + "push-object", b"\0" * CHUNK) == 200


def test_m4_an_answer_in_another_nodes_name_does_not_pass() -> None:
    assert Outside().ask(FLEET + "push-messages", announced(3, source=8)) == 403


def test_the_superlink_sees_flowers_headers_alone() -> None:
    outside = Outside()
    outside.ask(FLEET + "get-run", headers={"flwr-signature": "s", "cookie": "c", "x-forwarded-for": "1", "host": "evil",
                                            "content-type": "application/protobuf"})
    (request,) = outside.inside.requests
    assert {"flwr-signature", "flwr-public-key", "content-type"} <= set(request.headers)
    assert not {"cookie", "x-forwarded-for"} & set(request.headers)
    assert request.headers["host"] == "inside"
    assert request.content == b"x"


def test_what_is_refused_is_logged_harmlessly_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 30.0)
    outside = Outside()
    for _ in range(2 * LINES):
        outside.ask("/%1b[31m" + "x" * 1000)
    assert len(outside.said) == LINES
    assert all(line.isprintable() and len(line) < 250 for line in outside.said)


def test_a_superlink_that_is_gone_is_unavailable() -> None:
    """503: a SuperNode tries that again."""
    outside = Outside()

    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no")

    outside.gate.inside = httpx.AsyncClient(base_url="https://inside", transport=httpx.MockTransport(gone))
    assert outside.ask(FLEET + "pull-messages") == 503


def test_devices_are_added_and_replaced(tmp_path: Path) -> None:
    write_project(tmp_path, Project("quickstart/mqat", [], ["4", "any"]))
    server, own = tmp_path / "server", tmp_path / "own.pub"
    said = list[str]()
    keys = Keys(server / "devices.toml", said.append)
    before = set(keys())
    own.write_text(OWN)
    assert add_device(server, own, 0) == "node-0"
    assert read_devices(server / "devices.toml")["node-0"] == Listed(OWN.strip(), 0, "4")
    assert (server / "keys/node-0.pub").read_text() == OWN
    assert pem(OWN) in keys()
    assert len(set(keys()) & before) == 1
    with pytest.raises(ConfigError, match="another device's already"):
        add_device(server, own, 1)
    own.write_text(device_key().public.decode())
    assert add_device(server, own, 7, "W4A8", "inference") == "node-7"
    assert read_devices(server / "devices.toml")["node-7"].role == "inference"
    assert len(keys()) == 3
    (server / "devices.toml").write_text("[broken")
    assert len(keys()) == 3
    assert "the devices stay as they were" in said[0]
    with pytest.raises(RunError, match="not the server folder"):
        add_device(tmp_path, own, 1)


@pytest.mark.parametrize(("changed", "reason"), [
    ({"key": "ssh-rsa AAAA"}, "a public key cannot be read"), ({"client": -1}, "must not be negative"),
    ({"width": "²"}, "write the bits"), ({"role": "boss"}, "role"), ({"more": 1}, "more is unknown")])
def test_a_wrong_entry_is_named(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    entry = {"key": OWN.strip(), "client": 0, **changed}
    path = tmp_path / "devices.toml"
    path.write_text("[node-0]\n" + "\n".join(f"{name} = {value!r}" for name, value in entry.items()))
    with pytest.raises(ConfigError, match=reason):
        Keys(path)


def test_one_client_has_one_key(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text("".join(f'[{name}]\nkey = "{device_key().public.decode().strip()}"\nclient = 0\n' for name in "ab"))
    with pytest.raises(ConfigError, match="two devices have the same client"):
        read_devices(path)
