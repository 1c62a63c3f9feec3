"""Damage to files, as chance and malice would do it: bytes, JSON trees, TOML text and safetensors headers."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

Mutate = Callable[[bytes, random.Random], bytes]

LONG = "a number of 5,000 digits"
"""Stands for one, which json.dumps does not write."""
_DIGITS = "9" * 5000
_DEEP = "[" * 60 + "]" * 60
NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 32, 255, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**400, 0.0, -0.0, 0.5,
    1e-320, 1e308, float("nan"), float("inf"), "", " ", "x" * 3000, "../../../../etc/passwd", "/etc/passwd", "a\0b",
    "\x1b[2J", "é\u202e", "os:system", "subprocess:Popen", "W4", "FP32", "WA8", "W99", "mse", [], {}, [[]], [{}],
    {"": ""}, {"name": "os:system"}, [0] * 100, json.loads(_DEEP), "sequential", "cuda:99", "meta", "images", "digits",
    "F32", "U8", "BOOL", "O", "²", "W²", "٣", "W٤", "Ⅷ", "\ud800", "W4\udcff", "9" * 5000, LONG, {"\ud800": 1}, {"²": 1})
_KEYS = ("extends", "name", "data", "rounds", "a.b.c", "[x]", "[[device]]")
_TOML = ("true", "0", "-1", "1e308", "inf", "nan", "9" * 400, "9" * 5000, "2020-01-01", "07:32:00", '"x"', "[]", "{}",
         '"../../../etc/passwd"', '"\\u001b[2J"', "[[1]]", "[" * 2000, "{a=" * 300, '"""', "''''", "[2, 99]", "[1.5]",
         '{name="os:system"}', "²", '"W²"', "٣", '"W٤"', '"\\ud800"', "0x" + "f" * 5000, "1_" * 3000 + "1")


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """A few flips, cuts, insertions and copies."""
    out = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(out) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del out[at:at + draw.choice((1, 2, 8, 100, len(out)))]
        elif kind == 2:
            out[at:at] = draw.randbytes(draw.choice((1, 4, 8, 64)))
        elif kind == 3:
            out[at:at] = out[draw.randrange(len(out) + 1):][:draw.choice((4, 32, 300))]
        elif kind == 4:
            out[at:at + 8] = draw.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
        else:
            out = out[:at]
    return bytes(out)


def mutate_tree(value: Any, draw: random.Random) -> Any:
    """The same JSON with a few values exchanged, dropped, doubled or renamed, anywhere in the tree."""
    root = {"": copy.deepcopy(value)}
    for _ in range(draw.randint(1, 4)):
        _strike(root, draw)
    return root.get("")


def _strike(root: dict[str, Any], draw: random.Random) -> None:
    place: Any = root
    key: Any = ""
    while True:
        inner = place[key]
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner))) if isinstance(inner, list) else []
        if not keys or (place is not root and draw.random() < 0.15):
            break
        place, key = inner, draw.choice(keys)
    kind = draw.randrange(6)
    if kind <= 2 or place is root:
        place[key] = copy.deepcopy(draw.choice(NASTY))
    elif kind == 3:
        del place[key]
    elif kind == 4 and isinstance(place, dict):
        place[draw.choice(("", "name", "x", "../x", str(key) + "2"))] = place.pop(key)
    elif isinstance(place, list):
        place.insert(draw.randrange(len(place) + 1), copy.deepcopy(place[key]))
    else:
        place[key] = [place[key]]
    if "" not in root:
        root[""] = None


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    try:
        tree = json.loads(content)
    except ValueError:
        return mutate_bytes(content, draw)
    return mutate_bytes(content, draw) if draw.random() < 0.15 else _written(mutate_tree(tree, draw))


def _written(tree: Any) -> bytes:
    return json.dumps(tree).replace(json.dumps(LONG), _DIGITS).encode()


def mutate_lines(content: bytes, draw: random.Random) -> bytes:
    """JSON, one value per line."""
    lines = content.splitlines()
    if not lines or draw.random() < 0.2:
        return mutate_bytes(content, draw)
    at = draw.randrange(len(lines))
    lines[at] = mutate_json(lines[at], draw)
    return b"\n".join(lines) + b"\n"


def mutate_toml(content: bytes, draw: random.Random) -> bytes:
    """Values exchanged for others, lines moved, dropped and doubled."""
    if draw.random() < 0.15:
        return mutate_bytes(content, draw)
    lines = content.decode().split("\n")
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        key, sign, _ = lines[at].partition("=")
        kind = draw.randrange(5)
        if kind <= 1 and sign:
            lines[at] = f"{key}= {draw.choice(_TOML)}"
        elif kind == 2:
            lines.insert(at, draw.choice(lines))
        elif kind == 3 and len(lines) > 1:
            del lines[at]
        else:
            lines.insert(at, f"{draw.choice(_KEYS)} = {draw.choice(_TOML)}")
    return "\n".join(lines).encode()


def mutate_safetensors(content: bytes, draw: random.Random) -> bytes:
    """Another header before the same tensors, or other tensors; often without the checksum that would give it away."""
    if draw.random() < 0.15:
        return mutate_bytes(content, draw)
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8:8 + size]), content[8 + size:]
    facts = header.setdefault("__metadata__", {})
    if draw.random() < 0.5:
        facts.pop("sha256", None)
        facts.pop("sha256_of", None)
    if draw.random() < 0.3:
        body = mutate_bytes(body, draw)
    for key in ("packed", "activations"):
        if key in facts and draw.random() < 0.5:
            facts[key] = _written(mutate_tree(json.loads(facts[key]), draw)).decode()
    if draw.random() < 0.7:
        header = mutate_tree(header, draw)
    text = _written(header)
    return len(text).to_bytes(8, "little") + text + body
