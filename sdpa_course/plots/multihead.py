"""Figures of the chapter on multi-head attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from sdpa_course.plots._look import COLOURS, INK, MARKERS, SEQUENTIAL, axes, label

SHADES = ((COLOURS[0], "white"), (COLOURS[3], INK))  # far apart in lightness


def sensitivity(changes: Mapping[str, NDArray[np.float64]]) -> Figure:
    """How much each head's query moves with each coordinate (H, d_model), one panel per layer."""
    figure, grid = axes(rows=len(changes), width=6.4, height=1.7, sharex=True)
    top = max(change.max() for change in changes.values())
    for ax, (title, change) in zip(grid[:, 0], changes.items(), strict=True):
        image = ax.imshow(
            change, cmap=SEQUENTIAL, aspect="auto", vmin=0, vmax=top, interpolation="nearest"
        )
        label(ax, "", "head", title)
        ax.set_yticks(range(len(change)))
        ax.grid(False)
    figure.colorbar(image, ax=list(grid[:, 0]), label="change of the query")
    grid[-1, 0].set_xlabel("coordinate of the embedding that is changed")
    return figure


def splits(arrays: Mapping[str, NDArray[np.int64]], L: int, n_heads: int) -> Figure:
    """Where numbers go when x (L, H·d) is split. Each number is 100·token + feature.

    Colour shows the head that owns the feature, the text says token and feature.
    """
    figure, grid = axes(len(arrays), width=3.1, height=2.9)
    for ax, (title, array) in zip(grid[0], arrays.items(), strict=True):
        heads = array if array.ndim == 3 else array[None]
        d = arrays["x"].shape[-1] // n_heads
        top = 0.0
        for h, head in enumerate(heads):
            for (row, column), number in np.ndenumerate(head):
                token, feature = divmod(int(number), 100)
                face, ink = SHADES[feature // d % len(SHADES)]
                ax.add_patch(Rectangle((column, -top - row - 1), 0.95, 0.95, facecolor=face))
                ax.text(
                    column + 0.5,
                    -top - row - 0.5,
                    f"{token},{feature}",
                    ha="center",
                    va="center",
                    fontsize=9,
                    color=ink,
                )
            if array.ndim == 3:
                ax.text(-0.15, -top - len(head) / 2, f"head {h}", ha="right", va="center")
            top += len(head) + 0.6
        ax.set_xlim(-1.6 if array.ndim == 3 else -0.1, max(6, heads.shape[-1]) + 0.1)
        ax.set_ylim(-(n_heads * (L + 0.6)), 0.2)
        ax.set_aspect("equal")
        ax.axis("off")
        ax.set_title(title)
    return figure


def cost_by_heads(
    heads: Sequence[int], counts: Mapping[str, Sequence[float]], times: Sequence[float]
) -> Figure:
    """Counts relative to one head over the number of heads, and the time of a NumPy layer."""
    figure, grid = axes(2, width=3.7, height=3.1)
    for i, (name, values) in enumerate(counts.items()):
        relative = [v / values[0] for v in values]
        # the lines that coincide are told apart by the size of their markers
        grid[0, 0].plot(
            heads, relative, marker=MARKERS[i], color=COLOURS[i], label=name, markersize=11 - 3 * i
        )
    grid[0, 0].legend()
    label(grid[0, 0], "heads, at equal width", "relative to one head", "counted")
    relative = [t / times[0] for t in times]
    grid[0, 1].plot(heads, relative, marker=MARKERS[0], color=COLOURS[0])
    label(grid[0, 1], "heads, at equal width", "time relative to one head", "timed here, NumPy")
    grid[0, 1].set_ylim(bottom=0)
    for ax in grid[0]:
        ax.set_xscale("log", base=2)
        ax.set_xticks(heads, [str(h) for h in heads])
    grid[0, 0].set_yscale("log", base=2)
    return figure


def head_maps(weights: NDArray[np.float64], costs: Sequence[float]) -> Figure:
    """Mean weights (H, L, L) of each head, titled with the error that its removal adds."""
    figure, grid = axes(len(weights), width=1.45, height=1.95, sharey=True)
    for h, (ax, w) in enumerate(zip(grid[0], weights, strict=True)):
        image = ax.imshow(w, cmap=SEQUENTIAL, vmin=0, vmax=1, interpolation="nearest")
        label(ax, "key", "", f"head {h}\n+{costs[h]:.2f}")
        ax.set_xticks([0, len(w) - 1])
        ax.set_yticks([0, len(w) - 1])
        ax.grid(False)
    grid[0, 0].set_ylabel("query")
    figure.colorbar(image, ax=list(grid[0]), label="mean weight", shrink=0.7)
    return figure
