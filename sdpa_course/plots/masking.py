"""Figures of the chapter on masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, MARKERS, axes, label


def masks(shown: Mapping[str, np.ndarray]) -> Figure:
    """Boolean masks side by side; what may be attended to is dark and carries a dot."""
    figure, grid = axes(len(shown), width=2.4, height=2.5)
    for ax, (title, mask) in zip(grid[0], shown.items(), strict=True):
        ax.imshow(~mask, cmap="gray", vmin=-0.6, vmax=1, aspect="equal")
        rows, columns = np.nonzero(mask)
        ax.plot(columns, rows, "o", color="white", markersize=3)
        for size, set_ticks in zip(mask.shape, (ax.set_yticks, ax.set_xticks), strict=True):
            set_ticks(range(0, size, 1 if size < 6 else 2))
        ax.grid(False)
        label(ax, "key", "query", title)
    return figure


def leaked(counts: Sequence[int], weights: Mapping[float, Sequence[float]]) -> Figure:
    """Total weight of the hidden keys over their number, a line for each fill."""
    figure, grid = axes(width=5.2, height=3.2)
    ax = grid[0, 0]
    for i, (fill, values) in enumerate(weights.items()):
        style = {"color": COLOURS[i], "marker": MARKERS[i]}
        ax.plot(counts, values, label=f"{fill:g}", **style)
    ax.set_xscale("log")
    ax.set_ylim(-0.02, 1.02)
    label(ax, "number of hidden keys", "their weight together")
    ax.legend(title="fill", loc="upper left")
    return figure
