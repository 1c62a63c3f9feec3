"""The names that people outside rely on: what `anybit` offers, its verbs, its settings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import click
import typer.main

import anybit
from anybit.cli.main import app

FILE = Path(__file__).parent / "public_names.json"
IMPORTED_BY_USERS = {
    "anybit.layers": ("GroupNormReLU", "Subsample"), "anybit.models": ("char_lstm", "char_transformer", "lenet5", "resnet18",
                                                                         "resnet20"),
    "anybit.data.splits": ("by_id", "dirichlet", "dirichlet_free", "iid", "pachinko", "shards"),
    "anybit.fleet.server_app": ("server_app",), "anybit.fleet.client_app": ("app",),
    "anybit.fleet.device": ("local_update",), "anybit.theory": ("Setting", "bound", "conditions", "largest_eta_c")}
"""What generated projects, users' models and the docs import from modules."""


def public_names() -> dict[str, Any]:
    """{kind: what there is of it}."""
    return {"anybit": {name: _members(getattr(anybit, name)) for name in sorted(anybit.__all__)},
            "modules": {f"{module}:{name}": _members(getattr(importlib.import_module(module), name))
                        for module, names in IMPORTED_BY_USERS.items() for name in names},
            "verbs": _verbs(typer.main.get_command(app)), "settings": _settings(anybit.Config)}


def _members(value: Any) -> list[str]:
    """The arguments of a function; the fields and methods of a class, inherited ones of anybit's too."""
    if inspect.isclass(value):
        fields = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        own = [kind for kind in value.__mro__ if kind.__module__.startswith("anybit")]
        return sorted({*fields, *(name for kind in own for name in vars(kind) if not name.startswith("_"))})
    return list(inspect.signature(value).parameters)


def _verbs(command: click.Command) -> Any:
    if isinstance(command, click.Group):
        return {name: _verbs(each) for name, each in sorted(command.commands.items())}
    return sorted(word for parameter in command.params for word in (parameter.opts or [parameter.name]))


def _settings(kind: Any) -> Any:
    return {f.name: _settings(type(f.default)) if dataclasses.is_dataclass(f.default) else "" for f in
            dataclasses.fields(kind)}


if __name__ == "__main__":
    FILE.write_text(json.dumps(public_names(), indent=1) + "\n")
    print(f"wrote {FILE.name}: say in the changelog what changed, and why")
