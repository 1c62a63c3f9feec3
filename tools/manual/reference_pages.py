"""The reference of Python names, of the command line and of errors, from docstrings and signatures."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import click
import typer.main
from settings_page import cell, code, meanings

import anybit
from anybit import errors
from anybit.cli.main import app


def signature(name: str, function: Any) -> list[str]:
    """Write a call, one argument per line where it is long."""
    given = list[str]()
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in given:
            given.append("*")
        if p.name not in ("self", "cls"):
            given.append(argument(p))
    line = f"{name}({', '.join(given)})"
    if len(line) > 100:
        line = f"{name}(\n    " + ",\n    ".join(given) + ")"
    return ["```text", line, "```", ""]


def argument(p: inspect.Parameter) -> str:
    """Write an argument as its function does: name: type = default."""
    kind = "" if p.annotation is p.empty else f": {p.annotation}"
    if p.default is p.empty:
        return p.name + kind
    default = f"{type(p.default).__name__}()" if is_dataclass(p.default) else getattr(p.default, "__name__", repr(p.default))
    return f"{p.name}{kind} = {default}"


def doc(thing: Any) -> str:
    """Return a docstring as Markdown; the list of arguments that ours hold, 'a: … · b: …', becomes one."""
    paragraphs = [" ".join(part.split()) for part in (inspect.getdoc(thing) or "").split("\n\n")]
    return "\n\n".join("- " + "\n- ".join(part.split(" · ")) if part.count(" · ") > 1 else part for part in paragraphs)


def members(of: type) -> Iterator[str]:
    """Write the public fields and methods of a class."""
    try:
        says = meanings(of)
    except (OSError, TypeError):
        says = {}
    listed = [(name, type_) for name, type_ in inspect.get_annotations(of).items() if not name.startswith("_")]
    if listed:
        yield from ["| field | type | |", "|---|---|---|"]
        yield from (f"| {code(name)} | {code(str(type_))} | {cell(says.get(name, ''))} |" for name, type_ in listed)
        yield ""
    for name, value in vars(of).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield from [f"#### {of.__name__}.{name}", "", *signature(name, function), doc(function), ""]


def names() -> str:
    """Return the page of the Python names."""
    lines = ["# Python", "", "Everything that `import anybit` offers, made from the docstrings when this site is built. "
             "What is not here is internal and may move.", ""]
    for title, wanted in (("Functions", inspect.isfunction), ("Classes", inspect.isclass), ("Values", _value)):
        lines += [f"## {title}", ""]
        for name in anybit.__all__:
            thing = getattr(anybit, name)
            if not wanted(thing):
                continue
            lines += [f"### {name}", ""]
            if inspect.isfunction(thing):
                lines += [*signature(f"anybit.{name}", thing), doc(thing), ""]
            elif inspect.isclass(thing):
                lines += [(inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " "), "", *members(thing)]
            else:
                lines += [doc(type(thing)), ""]
    return "\n".join(lines)


def _value(thing: Any) -> bool:
    return not inspect.isfunction(thing) and not inspect.isclass(thing)


def commands() -> str:
    """Return the page of the verbs."""
    lines = ["# Command line", "", "Every verb and option, made from the command itself when this site is built; "
             "`anybit VERB --help` prints the same.", ""]
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for name, command in _verbs(group, "anybit"):
        lines += [f"## {name}", "", " ".join((command.help or "").split()), ""]
        context = click.Context(command, info_name=name)
        lines += ["```text", " ".join(command.get_usage(context).split()).removeprefix("Usage: "), "```", ""]
        told = [record for p in command.params if (record := p.get_help_record(context)) and p.name != "help"]
        if told:
            lines += ["| option | |", "|---|---|", *(f"| {code(option)} | {cell(text)} |" for option, text in told), ""]
    return "\n".join(lines)


def _verbs(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _verbs(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def failures() -> str:
    """Return the page of the errors."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.AnybitError)]
    rows = [f"| {code(kind.__name__)} | {kind.exit_code} | {cell(inspect.getdoc(kind) or '')} |" for kind in kinds]
    return "\n".join(["# Errors", "", "An error of anybit is one line that names what is wrong, where, and the fix. All "
                      "derive from `anybit.AnybitError`; the command line ends with the exit code.", "",
                      "| error | exit code | |", "|---|---|---|", *rows, "",
                      "Warnings are `anybit.AnybitWarning`: " + (inspect.getdoc(errors.AnybitWarning) or ""), ""])
