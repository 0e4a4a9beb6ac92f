"""The look that all figures share: light faces, thin axes, colours that differ in lightness too.

The colours can be told apart with any colour vision and in grey; lines differ by marker as well.
"""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FACE = "#fbfbf8"
INK = "#222222"
GREY = "#8a8a8a"
COLOURS = ("#0b3c5d", "#b83a5e", "#2a9d6f", "#e9a23b", "#7a6ff0")  # dark to light in turn
MARKERS = ("o", "s", "^", "D", "v")
SEQUENTIAL = "viridis"  # even in lightness
DIVERGING = "PuOr"

STYLE = {
    "figure.facecolor": FACE,
    "savefig.facecolor": FACE,
    "axes.facecolor": FACE,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 10,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.dpi": 110,
}


def axes(
    columns: int = 1, rows: int = 1, *, width: float = 4.2, height: float = 3.2, **options: object
) -> tuple[Figure, np.ndarray]:
    """A figure in the shared look, and its axes as an array (rows, columns).

    The look is set for good, since matplotlib reads most of it only when something is drawn.
    """
    mpl.rcParams.update(STYLE)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows),
        squeeze=False,
        layout="constrained",
        **options,
    )
    return figure, grid


def label(ax: Axes, x: str, y: str, title: str = "") -> None:
    """Name what stands on the axes, with units where there are some."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)
