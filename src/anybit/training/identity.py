"""The identity of a task: what a run records of its model, variant, data, loss and metric, so that no other continues it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anybit.config.compare import flatten
from anybit.data.examples import Data
from anybit.errors import RunError
from anybit.training.task import Task

MOST_BYTES = 256 * 2**20
"""Of a tensor that is digested: of a larger one evenly spaced examples, so that opening a run stays a matter of seconds."""
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"


def identity(task: Task) -> dict[str, Any]:
    """Describe a task of Python objects as plain data, without the initial weights, which a resume does not use."""
    sizes = np.array([len(index) for index in task.split], np.int64)
    return {"model": architecture(task.model), "variant": described(task.variant), "loss": described(task.loss),
            "metric": described(task.metric), "output": task.output, **_own_parts(task),
            "clients": {"number": len(sizes), "sizes": _tensor(torch.from_numpy(sizes))}, **identity_of_data(task.data)}


def identity_of_data(data: Data) -> dict[str, Any]:
    """Describe a task whose other parts a config names."""
    parts = {"train": data.train, "test": data.test}  # of clients that are loaded when drawn, the first example
    return {"data": {name: {"inputs": described(part.x), "targets": _tensor(part.y)} for name, part in parts.items()}
            | {"pipeline": described(data.pipeline)}}


def _own_parts(task: Task) -> dict[str, Any]:
    """Describe the server's parts that are the user's."""
    parts = {"server": task.server, "sampler": task.sampler, "schedule": task.schedule}
    return {name: described(part) for name, part in parts.items() if part is not None}


def check_identity(path: Path, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise for the first thing in which a task is not the one that a run was begun with."""
    before, after = (flatten({part: described(value) for part, value in table.items() if part in stored and part in now})
                     for table in (stored, now))
    for key in {**before, **after}:
        was, new = before.get(key), after.get(key)
        if key.endswith(".code") and was and new and not was.startswith(_PYTHON):
            continue  # compiled by another Python, which says nothing
        if was != new:
            raise RunError(f"{path} holds a run of another task: {key} was {_short(was)}, now {_short(new)}; resume it with "
                           "what it was begun with, or start a new one in another folder")


def other_parts(stored: Mapping[str, Any], model: nn.Module) -> str:
    """Say in which module a model is not the recorded one, by class and settings: it may be defined in another file."""
    def words(part: Mapping[str, Any]) -> str:
        given = part["settings"] or ""
        given = given if isinstance(given, str) else json.dumps(given, sort_keys=True)
        return f"{part['class'].rpartition(':')[2]}({given})"

    modules = stored.get("model", {}).get("modules", {}), architecture(model)["modules"]
    before, now = ({name: words(part) for name, part in each.items()} for each in modules)
    other = next((name for name in {**before, **now} if before.get(name) != now.get(name)), None) if before else None
    return "" if other is None else f"'{other}' was {before.get(other, 'absent')}, now {now.get(other, 'absent')}"


def qualified_name(function: Callable[..., Any]) -> str:
    """Return 'module:function', of an object that can be called its class."""
    if isinstance(function, functools.partial):
        return qualified_name(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


def architecture(model: nn.Module) -> dict[str, Any]:
    """Describe a model: its modules with their settings, its parameters, and what is in it and not trained."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    constants = {name: value for name, value in model.state_dict().items() if name not in trained}
    return {"modules": {name or "(model)": _module(part) for name, part in model.named_modules()},
            "parameters": {name: _form(p) for name, p in model.named_parameters()},
            "constants": {name: _tensor(value) for name, value in constants.items() if isinstance(value, Tensor)}}


def _module(module: nn.Module) -> dict[str, Any]:
    kind = type(module)
    own = kind.extra_repr is nn.Module.extra_repr
    settings = {name: value for name, value in vars(module).items()
                if not name.startswith("_") and name != "training" and isinstance(value, bool | int | float | str)}
    return {"class": qualified_name(kind), "settings": settings if own else module.extra_repr(),
            **_code(getattr(kind, "forward", None))}


def described(value: Any, depth: int = 12) -> Any:
    """Describe a value as plain data: functions by name, code and what they hold, tensors by digest.

    depth: of values in values that are looked at; functions may hold each other.
    """
    below = functools.partial(described, depth=depth - 1)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth == 0:
        return qualified_name(value)
    if isinstance(value, list | tuple):
        return [below(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): below(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        return _tensor(torch.as_tensor(value))
    if isinstance(value, nn.Module):
        return architecture(value)
    if isinstance(value, functools.partial):
        return {**below(value.func), "arguments": below([*value.args, value.keywords])}
    if isinstance(value, FunctionType):
        held = _held(value)
        return {"name": qualified_name(value), **_code(value), **({"with": below(held)} if held else {})}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: below(getattr(value, field.name)) for field in fields(value) if field.compare}
    return {"name": qualified_name(value), **_code(vars(type(value)).get("__call__"))}


def _held(function: FunctionType) -> dict[str, Any]:
    """Return the values that a function was made with: of the names around it, and its defaults."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    held = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    return {**held, **({"defaults": function.__defaults__} if function.__defaults__ else {})}


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _code(function: Any) -> dict[str, str]:
    """Digest the code of a function of the user's; that of anybit and torch has versions, which may change in a run."""
    if not isinstance(function, FunctionType) or str(function.__module__).partition(".")[0] in ("anybit", "torch"):
        return {}
    digest = hashlib.sha256(json.dumps(_instructions(function.__code__, function.__doc__)).encode()).hexdigest()
    return {"code": f"{_PYTHON}, sha256 {digest[:16]}"}


def _instructions(code: CodeType, doc: str | None = None) -> list[Any]:
    """List what a function does, without its comments, lines and file, which tell nothing of it."""
    constants = [_instructions(constant) if isinstance(constant, CodeType)
                 else sorted(map(repr, constant)) if isinstance(constant, frozenset) else repr(constant)
                 for constant in code.co_consts if doc is None or constant != doc]
    return [code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars]


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _tensor(tensor: Tensor) -> str:
    """Write a tensor's type, shape and digest, and how much of it was read."""
    every = max(1, -(-tensor.numel() * tensor.element_size() // MOST_BYTES)) if tensor.dim() else 1
    part = (tensor.detach()[::every] if every > 1 else tensor.detach()).cpu().contiguous().reshape(-1)
    if part.stride() != (1,):  # a single number, which counts as contiguous whatever its stride
        part = part.clone(memory_format=torch.contiguous_format)
    digest = hashlib.sha256(part.view(torch.uint8).numpy().data).hexdigest() if part.numel() else "–"
    return f"{_form(tensor)}, sha256 {digest[:16]}" + (f" of every {every}th" if every > 1 else "")


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 120 else f"{text[:120]} …"
