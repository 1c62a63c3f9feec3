"""The style of all plots; the same runs give the same bytes."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anybit.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER, INK, QUIET, LINE = "#ffffff", "#1d232b", "#5d6875", "#dfe3e8"
"""Background, text, secondary text and rules; on the page they become CSS variables of the theme."""
_VARIABLES = {PAPER: "var(--paper)", INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)"}

# Okabe and Ito's palette, told apart also without colour vision, less the yellow and black that vanish on one theme.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8a8f98")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

FULL, HALF = 8.6, 4.2
"""Inches of a figure across the page, and of one of two side by side."""


@dataclass(frozen=True)
class Plot:
    """A figure under the name of its files."""

    name: str
    title: str
    caption: str
    figure: Figure
    wide: bool = False
    """True if it fills the page from side to side."""


@dataclass(frozen=True)
class Rendered:
    """The files of a plot."""

    svg: bytes
    png: bytes


def colour(number: int) -> str:
    """Return the colour of a run, the same in all plots and on the page."""
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    """Return the marker of a run; with more runs than colours, both together tell runs apart."""
    return MARKERS[number % len(MARKERS)]


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("matplotlib", "report", "the report") from None


@contextmanager
def styled() -> Iterator[None]:
    """Set the style for drawing and rendering, apart from the user's own matplotlib settings."""
    import matplotlib

    settings: dict[Any, Any] = {
        "figure.facecolor": PAPER, "savefig.facecolor": PAPER, "axes.facecolor": PAPER,
        "figure.constrained_layout.use": True, "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"],
        "font.size": 8, "text.parse_math": False,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": LINE, "xtick.color": LINE, "ytick.color": LINE,
        "xtick.labelcolor": QUIET, "ytick.labelcolor": QUIET, "axes.labelsize": 8, "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5, "axes.titlesize": 8.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
        "axes.axisbelow": True, "grid.color": LINE, "grid.linewidth": 0.6, "lines.linewidth": 1.6,
        "lines.markersize": 4.5, "legend.frameon": False, "legend.fontsize": 8, "path.simplify": False,
        "svg.fonttype": "none", "svg.hashsalt": "anybit",
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A run's name may be in any script; browsers have the glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(settings)
        yield


def figure(across: float, height: float) -> Figure:
    """Make a figure of this size in inches, outside pyplot's global list."""
    from matplotlib.figure import Figure

    return Figure(figsize=(across, height))


def legend(figure: Figure, handles: Sequence[object], names: Sequence[str]) -> None:
    """Draw a legend above the plot in as many columns as fit; the figure grows by its rows, so the plot keeps its size."""
    columns = max(1, min(len(names), int(figure.get_figwidth() * 13 / (max(map(len, names)) + 5))))
    figure.set_figheight(figure.get_figheight() + 0.165 * (math.ceil(len(names) / columns) - 1))
    # The names are set afterwards, because matplotlib hides labels that begin with an underscore.
    box = figure.legend(handles, [str(i) for i in range(len(names))], loc="outside upper left",  # type: ignore[call-overload]
                        ncols=columns, handlelength=1.8, columnspacing=1.6, borderaxespad=0.2)
    for text, name in zip(box.get_texts(), names, strict=True):
        text.set_text(name)


def render(plot: Plot) -> Rendered:
    """Render a plot as SVG (without a date) and PNG."""
    svg, png = io.BytesIO(), io.BytesIO()
    plot.figure.savefig(svg, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    plot.figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
    return Rendered(svg.getvalue(), png.getvalue())


def inline(svg: bytes, name: str) -> str:
    """Turn an SVG file into a part of a page: no prolog, no fixed size, unique ids, colours of the theme."""
    text = svg.decode()
    text = text[text.index("<svg"):]
    for dimension in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {dimension}="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    for literal, variable in _VARIABLES.items():
        text = text.replace(literal, variable)
    return text
