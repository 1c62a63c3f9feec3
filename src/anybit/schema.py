"""Reading plain dicts (TOML, JSON, overrides) into dataclasses, with all errors at once, each with place and hint.

The types and defaults of the dataclasses are the only description of the configuration.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from anybit.errors import AnybitError, ConfigError, did_you_mean

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}

_field_types: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
"""Evaluate the annotations of a dataclass, once: all of a configuration's take longer than reading its values."""


class _Errors(list[str]):
    """Errors so far, and the places of all settings, for hints on a setting in the wrong table."""

    def __init__(self, places: Sequence[str] = ()) -> None:
        super().__init__()
        self.places = places

    def unknown(self, place: str, key: str, known: Collection[str]) -> None:
        elsewhere = [f"'{setting}'" for setting in self.places if setting.rpartition(".")[2] == key]
        hint = f"did you mean {' or '.join(elsewhere)}?" if elsewhere else did_you_mean(key, known)
        self.append(f"{place} is unknown: {hint}")


def read(kind: type, value: Any, where: str = "") -> Any:
    """Return `value` as an instance of `kind`, or raise a ConfigError that lists all errors."""
    errors = _Errors(list(_places(kind, where)))
    result = _read(kind, value, where, errors)
    if errors:
        raise ConfigError("; ".join(errors))
    return result


def check_types(options: Any) -> None:
    """Raise one ConfigError for all fields of a dataclass whose values are not of their types, as `read` does for files."""
    errors, hints = _Errors(), _field_types(type(options))
    for field in dataclasses.fields(options):
        _read(hints[field.name], getattr(options, field.name), field.name, errors)
    if errors:
        raise ConfigError("; ".join(errors))


def read_arguments(function: Callable[..., Any], value: Mapping[str, Any], where: str,
                   given: Collection[str] = ()) -> dict[str, Any]:
    """Check `value` as keyword arguments of `function`, whose `given` arguments come from elsewhere."""
    errors = _Errors()
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    parameters = {n: p for n, p in inspect.signature(function).parameters.items() if n not in given}
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    out = {}
    for key, item in value.items():
        if key in parameters or anything:
            out[key] = _read(hints.get(key, Any), item, f"{where}.{key}", errors)
        elif parameters:
            errors.unknown(f"{where}.{key}", key, parameters)
        else:
            errors.append(f"{where}.{key} is unknown: '{where}' takes no settings")
    missing = [name for name, p in parameters.items()
               if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in value]
    errors += [f"{where}.{name} is missing" for name in missing]
    if errors:
        raise ConfigError("; ".join(errors))
    return out


def plain(value: Any) -> Any:
    """Reverse `read`: turn dataclasses and tuples into dicts and lists, ready for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out: dict[str, Any] = {}
        for f in dataclasses.fields(value):
            item = plain(getattr(value, f.name))
            out.update(item if f.metadata.get("rest") else {f.name: item})
        return out
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _places(kind: Any, where: str) -> Iterator[str]:
    """Yield the settings of a dataclass and of those in it, as `table.name`."""
    if not dataclasses.is_dataclass(kind):
        yield where
        return
    hints = _field_types(kind)
    for field in dataclasses.fields(kind):
        if not field.metadata.get("rest"):
            yield from _places(hints[field.name], f"{where}.{field.name}" if where else field.name)


def _read(kind: Any, value: Any, where: str, errors: _Errors) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _read_fields(typing.cast(type, kind), value, where, errors)
    if origin is typing.Literal:
        words = [str(choice) for choice in arguments]
        return value if value in arguments else _wrong(errors, where, value, "one of " + ", ".join(words), words)
    if origin in (typing.Union, types.UnionType):
        return _read_union(arguments, value, where, errors)
    if origin in (tuple, list, Sequence):
        if not isinstance(value, list | tuple):
            return _wrong(errors, where, value, f"a list{_as_list(kind, next(iter(arguments), Any), where, value)}")
        if origin is tuple and arguments[-1] is not Ellipsis:
            if len(value) != len(arguments):
                return _wrong(errors, where, value, f"a list of {len(arguments)}")
        else:
            arguments = arguments[:1] * len(value)
        return tuple(_read(k, v, f"{where}[{i}]", errors) for i, (k, v) in enumerate(zip(arguments, value, strict=True)))
    if origin in (dict, Mapping):
        return dict(value) if isinstance(value, Mapping) else _wrong(errors, where, value, "a table")
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)  # of numpy too
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            return _wrong(errors, where, value, "a finite number")
    if kind in _WORDS and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        return _wrong(errors, where, value, _WORDS[kind])
    if kind is float and not math.isfinite(value):
        return _wrong(errors, where, value, "a finite number")
    return value


def _read_union(arguments: tuple[Any, ...], value: Any, where: str, errors: _Errors) -> Any:
    if value is None and type(None) in arguments:
        return None
    for kind in (k for k in arguments if k is not type(None)):
        tried = _Errors(errors.places)
        result = _read(kind, value, where, tried)
        if not tried:
            return result
    errors += tried
    return value


def _read_fields(kind: type, value: Any, where: str, errors: _Errors) -> Any:
    """Read a dataclass. A field whose metadata has `rest` takes all keys that are not fields."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        return _wrong(errors, where, value, "a table")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    rest = next((f.name for f in fields.values() if f.metadata.get("rest")), None)
    hints, arguments = _field_types(kind), dict[str, Any]()
    before = len(errors)
    for key, item in value.items():
        place = f"{where}.{key}" if where else str(key)
        if key in fields and key != rest:
            arguments[key] = _read(hints[key], item, place, errors)
        elif rest is not None:
            arguments.setdefault(rest, {})[key] = item
        else:
            errors.unknown(place, str(key), fields)
    missing = [n for n, f in fields.items() if n not in arguments
               and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    errors += [f"{where}.{name} is missing" if where else f"{name} is missing" for name in missing]
    if len(errors) > before:
        return value
    try:
        return kind(**arguments)
    except AnybitError as error:
        errors.append(f"{where}.{error}" if where else str(error))
        return value


def _as_list(kind: Any, item: Any, where: str, value: Any) -> str:
    """Show how to write a list whose items were given without brackets, if it can be read so; else what they may be."""
    tried = _Errors()
    listed = "," in value if isinstance(value, str) else isinstance(value, int) and not isinstance(value, bool)
    if listed and len(str(value)) <= 60:
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        items = parts if item is str else [_number_or_text(part) for part in parts]
        _read(kind, items, where, tried)
        if not tried:
            return f", written '{where}={json.dumps(items, ensure_ascii=False)}' (in the shell with these quotes)"
    choices = ", ".join(map(str, typing.get_args(item))) if typing.get_origin(item) is typing.Literal else ""
    return choices and f", each item one of {choices}"


def _number_or_text(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _wrong(errors: _Errors, where: str, value: Any, wanted: str, known: Sequence[str] = ()) -> Any:
    hint = did_you_mean(str(value), known) if known else ""
    errors.append(f"{where} = {reprlib.repr(value)}: must be {wanted}" + (f" ({hint})" if hint.startswith("did") else ""))
    return value
