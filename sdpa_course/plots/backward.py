"""Figures of the chapter on the backward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, DIVERGING, FACE, GREY, INK, MARKERS, axes, label


def through_softmax(arrays: Mapping[str, np.ndarray]) -> Figure:
    """The arrays (L, S) on the way back through the softmax, each row with its sum beside it."""
    figure, grid = axes(len(arrays), width=3.1, height=2.7)
    for ax, (name, array) in zip(grid[0], arrays.items(), strict=True):
        limit = np.abs(array).max()
        ax.imshow(array, cmap=DIVERGING, vmin=-limit, vmax=limit)
        for i, j in np.ndindex(array.shape):
            colour = FACE if abs(array[i, j]) > 0.6 * limit else INK
            ax.text(
                j, i, signed(float(array[i, j])), color=colour, ha="center", va="center", fontsize=8
            )
        for i, row in enumerate(array):
            at = array.shape[1] - 0.3
            ax.text(at, i, signed(float(row.sum())), color=INK, ha="left", va="center", fontsize=8)
        ax.text(array.shape[1] - 0.3, -0.75, "sum", color=INK, ha="left", fontsize=8)
        ax.grid(False)
        ax.set_xticks(range(array.shape[1]))
        ax.set_yticks(range(array.shape[0]))
        label(ax, "key", "", name)
    grid[0, 0].set_ylabel("query")
    return figure


def signed(x: float) -> str:
    """A number with two decimals and no minus before a zero."""
    return f"{x:.2f}".replace("-0.00", "0.00")


def error_by_step(steps: Sequence[float], errors: Mapping[str, Sequence[float]]) -> Figure:
    """Largest error of finite differences over the step, a line for each dtype."""
    figure, grid = axes(width=5.4, height=3.4)
    ax = grid[0, 0]
    for i, (name, measured) in enumerate(errors.items()):
        ax.plot(steps, measured, color=COLOURS[i], marker=MARKERS[i], label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    label(ax, "step", "largest error, relative to the largest entry")
    ax.legend(loc="lower right")
    return figure


def gradients_by_spread(
    spreads: Sequence[float], lengths: Mapping[str, Sequence[tuple[float, float]]]
) -> Figure:
    """RMS and median length of a row of each gradient over the spread of the scores."""
    figure, grid = axes(2, width=4.1, height=3.4, sharey=True)
    for n, (ax, name) in enumerate(zip(grid[0], ("root mean square", "median row"), strict=True)):
        for i, (gradient, rows) in enumerate(lengths.items()):
            measured = [row[n] for row in rows]
            ax.plot(spreads, measured, color=COLOURS[i], marker=MARKERS[i], label=gradient)
        for spread in (1, 8, 22.6):
            ax.axvline(spread, color=GREY, linewidth=0.6, linestyle=":")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xticks([0.1, 1, 8, 22.6], ["0.1", "1", "8", "22.6"])
        ax.minorticks_off()
        ax.set_ylim(1e-6, 20)
        label(ax, "standard deviation of the scores", "", name)
    grid[0, 0].set_ylabel("length of a row of the gradient")
    grid[0, 0].legend(loc="lower left")
    return figure
