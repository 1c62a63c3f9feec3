"""Recipes: TOML files that describe runs. The ones that come with anybit lie beside this file.

A recipe may extend another, with its tables merged over the other's: one in its own folder (`extends = "_base"`), or one
of anybit's by name (`extends = "paper/cifar10-resnet20/mqat"`). A table whose `name` changes is replaced completely, because
the arguments of one variant mean nothing to another.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anybit.errors import ConfigError, did_you_mean
from anybit.files.reading import bounded, parse_toml, read_toml

HOME = Path(__file__).parent
_INSIDE = re.compile(r"(?!.{201})(?!\.\.?(/|$))[^/\x00-\x1f]+(/(?!\.\.?(/|$))[^/\x00-\x1f]+)*")
"""A relative path without '.' and '..', short enough for file systems: recipes from elsewhere stay in their own folder."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def names() -> list[str]:
    """List the recipes that come with anybit, e.g. 'quickstart/mqat'."""
    files = (p for p in HOME.rglob("*.toml") if not p.name.startswith("_"))
    return sorted(p.relative_to(HOME).with_suffix("").as_posix() for p in files)


def find(name: str) -> Path:
    """Find a recipe's file: one of anybit's by name, or a path that ends in .toml."""
    if name.endswith(".toml"):
        if not Path(name).is_file():
            raise ConfigError(f"recipe file '{name}' does not exist")
        return Path(name)
    if name in names():
        return HOME / f"{name}.toml"
    if inside := _inside(name):
        raise ConfigError(f"'{name}' is a folder of recipes; choose one of: {', '.join(inside)}")
    raise ConfigError(f"unknown recipe '{name}': {_nearest(name)} ('anybit ls' lists all)")


def _nearest(name: str) -> str:
    """Return a hint with the recipe of the nearest name, or those whose last part is near."""
    if (hint := did_you_mean(name, names())).startswith("did"):
        return hint
    near = difflib.get_close_matches(name, {known.rpartition("/")[2] for known in names()}, n=1, cutoff=0.6)
    whole = [f"'{known}'" for known in sorted(names(), key=len) if near and known.rpartition("/")[2] == near[0]][:3]
    return f"did you mean {' or '.join(whole)}?" if whole else "no recipe has a similar name"


def _inside(folder: str) -> list[str]:
    return [name for name in names() if name.startswith(f"{folder.rstrip('/')}/")]


def expand(name: str) -> list[str]:
    """List the recipe `name`, or all recipes of the folder `name`, which is one of anybit's or of the user's."""
    inside = _inside(name)
    if not inside and Path(name).is_dir():
        inside = sorted(str(p) for p in Path(name).glob("*.toml") if not p.name.startswith("_"))
        if not inside:
            raise ConfigError(f"folder '{name}' holds no recipes: their files end in .toml")
    if not inside:
        find(name)
    return inside or [name]


def load(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a recipe as plain data, merged over the recipes that it extends, with `key=value` overrides."""
    merged = _load(find(name), depth=0)
    for override in overrides:
        merged = merge(merged, parse_override(override))
    return merged


def not_kept(name: str, overrides: Sequence[str]) -> list[str]:
    """List the settings that are lost where an override names another model, split, …, one line per table."""
    base, merged = _load(find(name), depth=0), load(name, overrides)
    lines = []
    for table, old in base.items():
        new = merged[table]
        if isinstance(old, Mapping) and isinstance(new, Mapping) and new.get("name") != old.get("name"):
            lost = ", ".join(f"{key} = {toml_value(value)}" for key, value in old.items() if key not in new)
            if lost:
                lines.append(f"{table}.name={new['name']} starts from the settings of '{new['name']}'; dropped from the "
                             f"recipe: {lost}")
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
    parent = next((file for file in (path.parent / f"{base}.toml", HOME / f"{base}.toml") if file.is_file()), None)
    if parent is None:
        raise ConfigError(f"{path} extends '{base}', which is neither in its folder nor one of anybit's recipes")
    return merge(_load(parent, depth + 1), content)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`, table by table."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name", old.get("name")) == old.get("name"):
            out[key] = merge(old, value)
        else:
            out[key] = value
    return out


def parse_override(text: str) -> dict[str, Any]:
    """Turn 'server.lr=1e-2' into {"server": {"lr": 0.01}}; a value that is not TOML is taken as text."""
    key, sign, value = text.partition("=")
    if not sign or not all(key.split(".")):
        raise ConfigError(f"override '{text}': write key=value, e.g. rounds=200 or server.lr=1e-2")
    try:
        bounded(text)
    except ValueError as error:
        raise ConfigError(f"override '{text}': {error}") from None
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value
    out: dict[str, Any] = {key.split(".")[-1]: parsed}
    for part in reversed(key.split(".")[:-1]):
        out = {part: out}
    return out


def parse_choices(text: str) -> list[str]:
    """Split 'model.init=torch,he' into ['model.init=torch', 'model.init=he'], not at commas inside brackets and quotes."""
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
    """Write plain data as TOML: values first, then the tables."""
    lines = [f"{_toml_key(key)} = {toml_value(value)}" for key, value in content.items() if not isinstance(value, Mapping)]
    for key, value in content.items():
        if isinstance(value, Mapping):
            name = f"{table}.{_toml_key(key)}" if table else _toml_key(key)
            lines += ["", f"[{name}]", as_toml(value, name).rstrip("\n")]
    return "\n".join(lines) + "\n"


def _toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_value(key)


def toml_value(value: Any) -> str:
    """Write a value as TOML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON's text, numbers and booleans are valid TOML, except for one character that JSON does not escape.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
