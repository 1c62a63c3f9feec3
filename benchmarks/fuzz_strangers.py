"""What strangers hand over: runs whose parts are links, manifests, lists of devices, requests, and devices' hellos."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import shutil
from pathlib import Path
from typing import Any, cast

from fuzz import Reader
from fuzz_runs import recorded, trained
from mutate import mutate_bytes, mutate_json, mutate_toml

from anybit.errors import RunError
from anybit.files.reading import read_json
from anybit.files.verification import verify
from anybit.report import read_runs
from anybit.training.run_folder import RunFolder

_PARTS = ("checkpoints", "lock", "metrics.jsonl", "timing.jsonl", "steps.json", "evaluation.json", "config.json")


def digests(home: Path) -> Reader:
    """The manifest of a run."""
    _, folder = recorded(home)

    def look() -> None:
        verify(folder.path)
        read_runs([folder.path])
    return Reader(folder.file("manifest.json"), mutate_json, look)


def hello(home: Path) -> Reader:
    """What the server does with a device that says who it is."""
    from anybit.fleet.exchange import Exchange, Reply
    from anybit.fleet.flower import ConfigRecord, RecordDict
    from anybit.fleet.roster import Roster
    from anybit.fleet.text import harmless

    file = home / "hello/values.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"client": 3, "width": "W4", "role": "train"}))

    def look() -> None:
        logged: list[dict[str, Any]] = []
        try:
            record = ConfigRecord(dict(json.loads(file.read_bytes())))
        except (TypeError, ValueError, RecursionError):
            raise RunError("Flower does not make a message of it") from None
        roster = Roster(Exchange(cast(Any, None), 0.1, lambda entry: logged.append(harmless(entry))), "W", 1.0)
        roster._welcome(7, Reply(-1, RecordDict({"answer": record}), "", False, 0))
        json.dumps(logged, ensure_ascii=False).encode()
        if not roster.members:
            raise RunError(logged[0]["reason"])
    return Reader(file, mutate_json, look)


def devices(home: Path) -> Reader:
    """The list of a fleet's devices, and a device that is added to it."""
    from anybit.fleet.certificates import device_key
    from anybit.fleet.registry import FILE, Keys, Listed, add_device, read_devices, write_devices

    server, listed, new = home / "server", [device_key().public.decode() for _ in range(2)], home / "new.pub"
    server.mkdir()
    new.write_bytes(device_key().public)
    write_devices(server / FILE, {"node-0": Listed(listed[0], 0, "W4A8"), "node-1": Listed(listed[1], 1, "W2", "inference")})

    def look() -> None:
        before = (server / FILE).read_bytes()
        Keys(server / FILE)()
        add_device(server, new, 2, "W4")
        assert read_devices(server / FILE)["node-2"].width == "W4"
        (server / FILE).write_bytes(before)
    return Reader(server / FILE, mutate_toml, look)


def gate(home: Path) -> Reader:
    """A request to the gate, as a web server hands it over; nothing that is refused may reach the SuperLink."""
    import httpx
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
    from flwr.proto.node_pb2 import Node

    from anybit.fleet.certificates import device_key
    from anybit.fleet.gate import PUSH_MESSAGE, ROUTES, Gate
    from anybit.fleet.registry import Listed, pem, registry

    key, passed, said = device_key().public.decode(), list[str](), list[str]()
    request = PushMessagesRequest(node=Node(node_id=7), messages_list=[Message(metadata=Metadata(src_node_id=7))],
                                  message_object_trees=[ObjectTree(object_id="a", children=[ObjectTree(object_id="b")])])
    file = home / "request/values.json"
    file.parent.mkdir()
    file.write_text(json.dumps({
        "method": "POST", "path": PUSH_MESSAGE, "query": "", "body": request.SerializeToString().hex(), "client": ["::1", 1],
        "headers": [["flwr-public-key", base64.b64encode(pem(key)).decode()], ["content-type", "application/protobuf"]]}))

    def inside(arrived: httpx.Request) -> httpx.Response:
        passed.append(arrived.url.path)
        return httpx.Response(200, content=b"answer")

    def look() -> None:
        scope, body = _request(file)
        passed.clear()
        said.clear()
        statuses = list[int]()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(part: Any) -> None:
            statuses.extend([part["status"]] if "status" in part else [])

        async def ask() -> None:
            async with httpx.AsyncClient(base_url="https://inside", transport=httpx.MockTransport(inside)) as client:
                await Gate(lambda: registry({"node-0": Listed(key, 0)}), client, 1 << 20, said.append)(scope, receive, send)

        asyncio.run(ask())
        assert statuses == [200] if passed else len(said) == 1 and said[0].isprintable()
        assert set(passed) <= ROUTES
        if not passed:
            raise RunError(said[0])
    return Reader(file, _mutate_request, look)


def _request(file: Path) -> tuple[dict[str, Any], bytes]:
    """Return what uvicorn makes of a request: texts of bytes, lower-case names of headers."""
    try:
        sent = json.loads(file.read_bytes())
        scope = {"type": "http", "method": str(sent["method"]), "path": str(sent["path"]),
                 "raw_path": str(sent["path"]).encode(errors="replace"), "query_string": str(sent["query"]).encode(),
                 "client": sent["client"] and [str(sent["client"][0]), 1],
                 "headers": [(str(name).lower().encode("latin-1"), str(value).encode("latin-1"))
                             for name, value in sent["headers"]]}
        return scope, bytes.fromhex(sent["body"])
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        raise RunError("no request that a web server would hand over") from None


def _mutate_request(content: bytes, draw: random.Random) -> bytes:
    """Damage the message in the request, or anything of it."""
    if draw.random() < 0.5:
        return mutate_json(content, draw)
    sent = json.loads(content)
    try:
        return json.dumps(sent | {"body": mutate_bytes(bytes.fromhex(sent["body"]), draw).hex()}).encode()
    except (TypeError, ValueError, KeyError):
        return mutate_json(content, draw)


def links(home: Path) -> Reader:
    """A run in which folders and files are links that lead out of it."""
    _, folder = trained(home)
    precious, file = home / "precious", home / "plan/links.json"
    shutil.copytree(folder.path / "checkpoints", precious)
    (precious / ".notes.txt.abcd1234").write_text("mine")
    file.parent.mkdir()
    file.write_text(json.dumps(dict.fromkeys(_PARTS, False)))
    before = {path.name: path.read_bytes() for path in precious.iterdir()}

    def look() -> None:
        plan = read_json(file)
        shutil.rmtree(home / "copy", ignore_errors=True)
        copy = Path(shutil.copytree(folder.path, home / "copy"))
        for name in _PARTS:
            if isinstance(plan, dict) and (target := plan.get(name)):
                _remove(copy / name)
                (copy / name).symlink_to(precious if isinstance(target, str) else precious / ".notes.txt.abcd1234")
        try:
            opened = RunFolder.open(copy)
            with opened.locked():
                opened.tidy()
                opened.append("metrics", {"round": 5, "loss": 1.0})
            read_runs([copy])
        finally:
            if {path.name: path.read_bytes() for path in precious.iterdir()} != before:
                raise AssertionError("a link led out of the folder")
    return Reader(file, mutate_json, look)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
