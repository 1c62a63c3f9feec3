"""The files of a comparison with the paper: plots, and the Markdown pages that show them."""

from __future__ import annotations

from pathlib import Path

from anybit.files.writing import write_bytes, writing
from anybit.report.style import render, require_matplotlib, styled
from anybit.reproduction.compare import Comparison
from anybit.reproduction.markdown import details, details_of, summary
from anybit.reproduction.plots import paper_plots


def write_comparison(comparison: Comparison, out: Path, page: Path | None = None) -> list[Path]:
    """Write every plot as SVG and PNG into `out`, and both pages if `page` is given; return the paths of PNGs and pages."""
    require_matplotlib()
    written = []
    with writing(page or out, "choose another place with --out or --markdown"):
        out.mkdir(parents=True, exist_ok=True)
        with styled():
            for plot in paper_plots(comparison):
                rendered = render(plot)
                write_bytes(out / f"{plot.name}.svg", rendered.svg)
                write_bytes(out / f"{plot.name}.png", rendered.png)
                written.append(out / f"{plot.name}.png")
        if page is not None:
            page.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(page, summary(comparison, out, page).encode())
            write_bytes(details_of(page), details(comparison, page).encode())
            written += [page, details_of(page)]
    return written
