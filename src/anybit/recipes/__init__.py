"""Recipes: TOML files that describe runs. The ones that come with anybit lie beside this file.

A recipe may start from another (`extends = "_base"`, relative to its own folder); its tables are merged over it. A
table whose `name` changes is replaced whole, because the arguments of one variant mean nothing to another.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anybit.errors import ConfigError, did_you_mean
from anybit.files.reading import bounded, read_toml

HOME = Path(__file__).parent
_INSIDE = re.compile(r"(?!.{201})(?!\.\.?(/|$))[^/\x00-\x1f]+(/(?!\.\.?(/|$))[^/\x00-\x1f]+)*")
"""A relative path without '.' and '..', of a length that file systems take: a recipe from elsewhere reads nothing outside
its own folder."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def names() -> list[str]:
    """The recipes that come with anybit, e.g. 'quickstart/mqat'."""
    files = (p for p in HOME.rglob("*.toml") if not p.name.startswith("_"))
    return sorted(p.relative_to(HOME).with_suffix("").as_posix() for p in files)


def find(name: str) -> Path:
    """A recipe's file: one of anybit's by name, or a path that ends in .toml."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"recipe file '{name}' does not exist")
        return Path(name)
    if name in names():
        return HOME / f"{name}.toml"
    inside = [n for n in names() if n.startswith(f"{name.rstrip('/')}/")]
    if inside:
        raise ConfigError(f"'{name}' is a folder of recipes; choose one of: {', '.join(inside)}")
    raise ConfigError(f"unknown recipe '{name}': {_hint(name)} ('anybit ls' lists all)")


def expand(name: str) -> list[str]:
    """The recipe `name`, or all recipes of the folder `name`: one of anybit's, or one of the user's .toml files."""
    inside = [n for n in names() if n.startswith(f"{name.rstrip('/')}/")]
    if not inside and Path(name).is_dir():
        inside = sorted(str(p) for p in Path(name).glob("*.toml") if not p.name.startswith("_"))
        if not inside:
            raise ConfigError(f"folder '{name}' holds no recipes: their files end in .toml")
    if not inside:
        find(name)
    return inside or [name]


def _hint(name: str) -> str:
    hint = did_you_mean(name, names())
    if hint.startswith("known"):
        hint = did_you_mean(name, [n.rpartition("/")[2] for n in names()])
    return hint if hint.startswith("did") else "no recipe has a name like it"


def load(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe with what it extends merged in and `key=value` overrides applied, as plain data."""
    merged = _load(find(name), depth=0)
    for override in overrides:
        merged = merge(merged, parse_override(override))
    return merged


def not_kept(name: str, overrides: Sequence[str]) -> list[str]:
    """What a person should know of overrides that name another model, split, …: what the recipe says of the old one goes."""
    base, merged = _load(find(name), depth=0), load(name, overrides)
    lines = []
    for table, old in base.items():
        new = merged[table]
        if isinstance(old, Mapping) and isinstance(new, Mapping) and new.get("name") != old.get("name"):
            gone = ", ".join(f"{key} = {toml_value(value)}" for key, value in old.items() if key not in new)
            if gone:
                lines.append(f"{table}.name={new['name']} starts from the settings of '{new['name']}'; not kept of the "
                             f"recipe: {gone}")
    return lines


def _load(path: Path, depth: int) -> dict[str, Any]:
    if depth > 5:
        raise ConfigError(f"{path}: recipes extend each other in a circle")
    content = read_toml(path)
    base = content.pop("extends", None)
    if base is None:
        return content
    if not isinstance(base, str) or not _INSIDE.fullmatch(base):
        raise ConfigError(f"{path} extends {str(base)[:60]!r}: name a recipe in the same folder or below it, without '..'")
    parent = path.parent / f"{base}.toml"
    if not parent.is_file():
        raise ConfigError(f"{path} extends '{base}', but {parent} does not exist")
    return merge(_load(parent, depth + 1), content)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, table by table."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name", old.get("name")) == old.get("name"):
            out[key] = merge(old, value)
        else:
            out[key] = value
    return out


def parse_override(text: str) -> dict[str, Any]:
    """'server.lr=1e-2' as {"server": {"lr": 0.01}}; a value that is not TOML is taken as text."""
    key, sign, value = text.partition("=")
    if not sign or not key or not all(key.split(".")):
        raise ConfigError(f"override '{text}': write key=value, e.g. rounds=200 or server.lr=1e-2")
    try:
        parsed = bounded(tomllib.loads(f"value = {value}")["value"])
    except (ValueError, RecursionError):
        parsed = value
    out: dict[str, Any] = {key.split(".")[-1]: parsed}
    for part in reversed(key.split(".")[:-1]):
        out = {part: out}
    return out


def parse_choices(text: str) -> list[str]:
    """'model.init=torch,he' as ['model.init=torch', 'model.init=he']; commas inside brackets and quotes do not separate."""
    key, sign, values = text.partition("=")
    parts, depth, quoted = [""], 0, False
    for letter in values:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    if not sign or not all(part.strip() for part in parts):
        raise ConfigError(f"--vary {text}: write key=value,value, e.g. --vary server.lr=1e-3,1e-2")
    choices = list(dict.fromkeys(f"{key}={part.strip()}" for part in parts))
    for choice in choices:
        parse_override(choice)
    return choices


def as_toml(content: Mapping[str, Any], table: str = "") -> str:
    """Plain data as TOML: values first, then the tables."""
    lines = [f"{_toml_key(key)} = {toml_value(value)}" for key, value in content.items() if not isinstance(value, Mapping)]
    for key, value in content.items():
        if isinstance(value, Mapping):
            name = f"{table}.{_toml_key(key)}" if table else _toml_key(key)
            lines += ["", f"[{name}]", as_toml(value, name).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """One value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON's text, numbers and booleans are valid TOML, but for one character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
