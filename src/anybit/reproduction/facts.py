"""The paper's accuracy tables, the cells that cannot be as printed, and the orderings that its text claims.

facts.json holds them; every column names the recipe that trains it.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from anybit.config import Config, from_recipe
from anybit.errors import ConfigError
from anybit.quant.grid import SiteKinds
from anybit.schema import plain, read
from anybit.training.build import written_out


class Cell(NamedTuple):
    """The place of one accuracy."""

    table: str
    column: str
    bits: int


@dataclass(frozen=True)
class Citation:
    """The source of the figures."""

    title: str
    authors: tuple[str, ...]
    year: int

    def __str__(self) -> str:
        return f"{', '.join(self.authors)}: {self.title} ({self.year})"


@dataclass(frozen=True)
class Column:
    """The column of one variant in a table."""

    title: str
    recipe: str
    values: Mapping[int, float]
    """{bits: accuracy}; empty where the paper prints none."""
    like: str | None = None
    """A recipe of another table: its runs are a reading of this column, if the paper trained that one."""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    title: str
    number: str
    sites: SiteKinds
    columns: Mapping[str, Column]
    images: int = 10_000
    """The images behind an accuracy: a whole test set, or half of it where all figures are multiples of 0.02 %."""


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper's text claims of a table: left against right, column by column and bit by bit."""

    says: str
    place: str
    quote: str
    table: str
    left: tuple[str, ...]
    bits: tuple[int, ...]
    right: tuple[str, ...]
    against: tuple[int, ...] = ()
    """Bits of the right side; if empty, those of the left."""
    right_table: str | None = None
    relation: Literal["above", "near"] = "above"
    margin: float = 0.0
    """above: left − right exceeds it · near: |left − right| does not."""

    def pairs(self) -> list[tuple[Cell, Cell]]:
        """List the comparisons of the claim."""
        bits = [(a, b) for a in self.bits for b in self.against or (a,)]
        return [(Cell(self.table, left, a), Cell(self.right_table or self.table, right, b))
                for left, right, (a, b) in itertools.product(self.left, self.right, bits)]

    def slack(self, left: float, right: float) -> float:
        """Return the points by which a comparison holds."""
        return self.margin - abs(left - right) if self.relation == "near" else left - right - self.margin

    def holds(self, left: float, right: float) -> bool:
        slack = self.slack(left, right)
        return slack >= 0 if self.relation == "near" else slack > 0


@dataclass(frozen=True)
class Facts:
    """The content of facts.json."""

    citation: Citation
    tables: Mapping[str, PaperTable]
    suspect: Mapping[Cell, str]
    """{cell: the reason to doubt its figure}."""
    claims: tuple[Claim, ...]
    explanations: Mapping[str, str]
    """{recipe: why its figures may differ, or what was not tried}."""

    def value(self, cell: Cell) -> float | None:
        """Return the paper's accuracy; None if it prints none."""
        return self.tables[cell.table].columns[cell.column].values.get(cell.bits)


@functools.cache
def facts() -> Facts:
    """Read the paper's figures."""
    content = json.loads(files("anybit.reproduction").joinpath("facts.json").read_text(encoding="utf-8"))
    suspect = {Cell(entry["table"], entry["column"], bits): str(entry["why"])
               for entry in content["suspect"] for bits in entry["bits"]}
    claims = [read(Claim, {**{k: v for k, v in entry.items() if k != "tables"}, "table": table})
              for entry in content["claims"] for table in entry["tables"]]
    return Facts(read(Citation, content["citation"]), {key: _table(t) for key, t in content["tables"].items()}, suspect,
                 tuple(claims), content["explanations"])


def _table(content: Mapping[str, Any]) -> PaperTable:
    columns = {name: Column(c["title"], c["recipe"], {int(bits): v for bits, v in c["values"].items()}, c.get("like"))
               for name, c in content["columns"].items()}
    return PaperTable(content["title"], content["number"], content["sites"], columns,
                      content.get("images", PaperTable.images))


def recipe_of(config: Config) -> str | None:
    """Return the paper's recipe with the data, model and variant of a config; None if there is none."""
    try:
        return _recipes().get(_identity(written_out(config)))
    except ConfigError:
        # Its data, model or variant is code outside anybit, which no recipe of the paper is.
        return None


def _identity(config: Config) -> str:
    return json.dumps([config.data.name, config.model.name, plain(config.variant)], sort_keys=True)


@functools.cache
def _recipes() -> dict[str, str]:
    names = dict.fromkeys(column.recipe for table in facts().tables.values() for column in table.columns.values())
    return {_identity(written_out(from_recipe(name))): name for name in names}
