"""The comparison with the paper, written down: plots, and a Markdown page that shows them."""

from __future__ import annotations

from pathlib import Path

from anybit.files.writing import write_bytes, writing
from anybit.report.style import render, require_matplotlib, styled
from anybit.reproduction.compare import Comparison
from anybit.reproduction.plots import paper_plots
from anybit.reproduction.text import markdown


def write_comparison(comparison: Comparison, out: Path, page: Path | None = None) -> list[Path]:
    """Every plot as SVG and PNG in the folder `out`, and the page if asked for; the PNGs and the page are returned."""
    require_matplotlib()
    written = []
    with writing(page or out, "choose another place with --out or --markdown"):
        out.mkdir(parents=True, exist_ok=True)
        with styled():
            plots = paper_plots(comparison)
            for plot in plots:
                rendered = render(plot)
                write_bytes(out / f"{plot.name}.svg", rendered.svg)
                write_bytes(out / f"{plot.name}.png", rendered.png)
                written.append(out / f"{plot.name}.png")
        if page is not None:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(page, markdown(comparison, plots, out, page).encode())
            written.append(page)
    return written
