"""Recipes: TOML files that describe runs. The ones that come with anybit lie beside this file.

A recipe may start from another (`extends = "_base"`, relative to its own folder); its tables are merged over it. A
table whose `name` changes is replaced whole, because the arguments of one variant mean nothing to another.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anybit.errors import ConfigError, did_you_mean

HOME = Path(__file__).parent


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


def _load(path: Path, depth: int) -> dict[str, Any]:
    if depth > 5:
        raise ConfigError(f"{path}: recipes extend each other in a circle")
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    base = content.pop("extends", None)
    if base is None:
        return content
    parent = path.parent / f"{base}.toml"
    if not isinstance(base, str) or not parent.is_file():
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
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    out: dict[str, Any] = {key.split(".")[-1]: parsed}
    for part in reversed(key.split(".")[:-1]):
        out = {part: out}
    return out


def as_toml(content: Mapping[str, Any], table: str = "") -> str:
    """Plain data as TOML: values first, then the tables."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in content.items() if not isinstance(value, Mapping)]
    for key, value in content.items():
        if isinstance(value, Mapping):
            name = f"{table}.{key}" if table else key
            lines += ["", f"[{name}]", as_toml(value, name).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    # JSON's text, numbers, booleans and lists are valid TOML.
    return json.dumps(value, ensure_ascii=False)
