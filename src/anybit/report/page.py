"""The report: one HTML page that needs nothing else, with the same tables and plots as files beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from anybit import recipes
from anybit.errors import MissingExtra
from anybit.files.writing import write_bytes, writing
from anybit.report import plots, weights
from anybit.report.again import commands, modules, recipe_files
from anybit.report.mixed import mixed_plots
from anybit.report.read import read_runs
from anybit.report.seeds import seeds_table
from anybit.report.style import Plot, Rendered, colour, inline, render, require_matplotlib, styled
from anybit.report.tables import Table, accuracy_table, config_differences, environment_rows, grid_csv, grid_table
from anybit.training.reading import RunRecord
from anybit.training.records import promise, total_seconds


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Compare runs in the folder `out` and return the path of the page.

    Written are index.html, accuracy.csv, grid.csv, every plot as SVG and PNG, and a recipe per run, the page last.
    """
    require_matplotlib()
    records = read_runs(runs)
    _write({}, out)  # a folder that cannot be written is noticed before anything is drawn
    with styled():
        sections = {"accuracy": plots.accuracy_plots(records), "curves": plots.curve_plots(records),
                    "weights": weights.weight_plots(records), "layers": plots.layer_plots(records),
                    "mixed": mixed_plots(records)}
        rendered = {plot.name: render(plot) for section in sections.values() for plot in section}
    table = accuracy_table(records)
    content = {"accuracy.csv": table.as_csv().encode(), "grid.csv": grid_csv(records).encode()}
    for name, plot in rendered.items():
        content |= {f"{name}.svg": plot.svg, f"{name}.png": plot.png}
    for record, file in zip(records, recipe_files(records), strict=True):
        if file:
            content[file] = recipes.as_toml(_without_none(record.config)).encode()
    again = {"commands": commands(records, runs, out), "modules": modules(records)}
    content["index.html"] = _page(records, table, sections, rendered, again).encode()
    _write(content, out)
    return out / "index.html"


def _write(content: Mapping[str, bytes], out: Path) -> None:
    with writing(out, "choose another folder with --out"):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            write_bytes(out / name, data)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    # TOML has no null: a key that is left out is none by default.
    return {key: _without_none(value) if isinstance(value, dict) else value
            for key, value in table.items() if value is not None}


def _page(records: Sequence[RunRecord], table: Table, sections: dict[str, list[Plot]],
          rendered: dict[str, Rendered], again: Mapping[str, list[str]]) -> str:
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("jinja2", "report", "the report") from None
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals["zip"] = zip
    template = environment.from_string(files("anybit.report").joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template.render(
        runs=[_facts(record, i, table) for i, record in enumerate(records)], table=table, sections=sections,
        seeds=(seeds := seeds_table(records, table)),
        # Among seeds the best single run is luck: the best mean is marked.
        rows=list(zip(table.rows, table.cells(), [[False] * len(row) for row in table.marks()] if seeds else table.marks(),
                      strict=True)),
        svg={name: Markup(inline(plot.svg, name)) for name, plot in rendered.items()},
        grids=[(r, [grid_table(r, "metric"), grid_table(r, "loss")]) for r in records if r.grid],
        differences=config_differences(records), environment=environment_rows(records), **again)


def _facts(record: RunRecord, number: int, table: Table) -> dict[str, Any]:
    cell = {row.width: cells[number + 1] for row, cells in zip(table.rows, table.cells(), strict=True)}
    seconds, config = total_seconds(record.timing), record.config
    facts = {"variant": record.variant, "data": config.get("data", {}).get("name"),
             "model": config.get("model", {}).get("name"), "clients": _clients(record),
             "rounds": f"{record.rounds} of {config.get('rounds', '?')}" if not record.finished else str(record.rounds),
             "steps": record.own, "privacy": promise(record.evaluation), "time": _duration(seconds) if seconds else None}
    return {"name": record.name, "colour": colour(number), "finished": record.finished,
            "facts": {key: str(value) for key, value in facts.items() if value is not None},
            "scores": [(width, cell[width]) for width in dict.fromkeys(("FP32", record.lowest)) if width in cell]}


def _clients(record: RunRecord) -> str | None:
    if not (sizes := record.split_sizes):
        return None
    examples = f"{min(sizes)}–{max(sizes)}" if min(sizes) < max(sizes) else f"{sizes[0]}"
    return f"{len(sizes)}, {record.config.get('cohort', '?')} a round, {examples} examples each"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
