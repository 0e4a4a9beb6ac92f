"""Figures of the chapter on masks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import axes, label


def masks(shown: Mapping[str, np.ndarray]) -> Figure:
    """Boolean masks side by side; what may be attended to is dark and carries a dot."""
    figure, grid = axes(len(shown), width=2.4, height=2.5)
    for ax, (title, mask) in zip(grid[0], shown.items(), strict=True):
        ax.imshow(~mask, cmap="gray", vmin=-0.6, vmax=1, aspect="equal")
        rows, columns = np.nonzero(mask)
        ax.plot(columns, rows, "o", color="white", markersize=3)
        ax.set_xticks(range(0, mask.shape[1], 2))
        ax.set_yticks(range(0, mask.shape[0], 2))
        ax.grid(False)
        label(ax, "key", "query", title)
    return figure
