"""The files of a comparison with the paper: plots, and a Markdown page that shows them."""

from __future__ import annotations

from pathlib import Path

from anybit.files.writing import write_bytes, writing
from anybit.report.style import render, require_matplotlib, styled
from anybit.reproduction.compare import Comparison
from anybit.reproduction.plots import paper_plots
from anybit.reproduction.text import markdown


def write_comparison(comparison: Comparison, out: Path, page: Path | None = None) -> list[Path]:
    """Write every plot as SVG and PNG into `out`, and the page if it is given; return the paths of PNGs and page."""
    require_matplotlib()
    written = []
    with writing(page or out, "choose another place with --out or --markdown"):
        out.mkdir(parents=True, exist_ok=True)
        with styled():
            for plot in (plots := paper_plots(comparison)):
                rendered = render(plot)
                write_bytes(out / f"{plot.name}.svg", rendered.svg)
                write_bytes(out / f"{plot.name}.png", rendered.png)
                written.append(out / f"{plot.name}.png")
        if page is not None:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(page, markdown(comparison, plots, out, page).encode())
            written.append(page)
    return written
