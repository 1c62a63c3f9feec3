"""The settings reference, from the config types: every setting with its type, its default and its meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, NamedTuple

from anybit.config import Component, Config
from anybit.training.build import DATA, LOSSES, METRICS, MODELS, SPLITS, VARIANTS


class Setting(NamedTuple):
    """One line of the reference."""

    name: str
    type: str
    default: str
    meaning: str


def meanings(options: type) -> dict[str, str]:
    """Return {field: its docstring}, which Python does not keep, from the source of the class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(tree, ast.ClassDef)
    found, name = dict[str, str](), ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
    return found


def settings(options: type = Config, prefix: str = "") -> Iterator[Setting]:
    """Go through the settings of a config type, without the tables within it."""
    says = meanings(options)
    for item in fields(options):
        default = default_of(item)
        if isinstance(default, Component):
            yield Setting(f"{prefix}{item.name}.name", "str", default.name, says.get(item.name, ""))
        elif not is_dataclass(default):
            yield Setting(prefix + item.name, str(item.type), written(default), says.get(item.name, ""))


def tables(options: type = Config) -> dict[str, type]:
    """Return the tables of a config, {"client": ClientOptions, …}."""
    defaults = {item.name: default_of(item) for item in fields(options)}
    return {name: type(value) for name, value in defaults.items()
            if is_dataclass(value) and not isinstance(value, Component)}


def default_of(item: Field[Any]) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def written(value: Any) -> str:
    """Write a default as a recipe would."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{}"
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return "…" if "\n" in text else text  # a row of a table is one line


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    return f"`{text}`"  # the site's Markdown takes a bar within backticks as text


def table(lines: Iterator[Setting]) -> list[str]:
    return ["| setting | type | default | meaning |", "|---|---|---|---|",
            *(f"| {code(s.name)} | {code(s.type)} | {code(s.default)} | {cell(s.meaning)} |" for s in lines), ""]


def parts(title: str, setting: str, known: Mapping[str, Any]) -> list[str]:
    """Write the names that a setting may have, with the arguments of each."""
    lines = [f"### {title}", "", f"| {code(setting)} | arguments and defaults | |", "|---|---|---|"]
    for name, function in known.items():
        arguments = inspect.signature(function).parameters.values()
        listed = ", ".join(f"{p.name}={written(p.default)}" if p.default is not p.empty else p.name for p in arguments
                           if p.kind is p.POSITIONAL_OR_KEYWORD)
        first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        lines.append(f"| {code(name)} | {code(listed) if listed else '–'} | {cell(first)} |")
    return [*lines, ""]


def named(title: str, setting: str, known: Mapping[str, Any]) -> list[str]:
    return [f"### {title}", "", f"{code(setting)} is one of " + ", ".join(code(name) for name in known)
            + ", or a `module:function` of your own.", ""]


def page() -> str:
    """Return the page as Markdown."""
    lines = ["# Settings", "", "Every setting of a run, made from the config types when this site is built. In a recipe "
             "they are TOML keys and tables, on the command line `anybit run RECIPE client.lr=0.1`, in Python the arguments "
             "of `anybit.fit` (`client=anybit.ClientOptions(lr=0.1)`). *none* as a default means that anybit chooses; its "
             "choice is in the run's `config.json`.", "", "## The run", "", *table(settings())]
    for name, options in tables().items():
        about = (inspect.getdoc(options) or "").split("\n\n")[0]
        lines += [f"## {name}", "", about, "", *table(settings(options, f"{name}."))]
    lines += ["## Parts by name", "", "Arguments are given beside the name: `variant.name=mqat variant.bits=[2,4,8]`. "
              "Each can be a function of your own, `module:function`, allowed with `--import module`.", "",
              *parts("Variants", "variant.name", VARIANTS), *parts("Models", "model.name", MODELS),
              *parts("Data sets", "data.name", DATA), *parts("Splits", "split.name", SPLITS),
              *named("Losses", "loss", LOSSES), *named("Metrics", "metric", METRICS)]
    return "\n".join(lines)
