"""Figures of the chapter on softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, DIVERGING, FACE, INK, MARKERS, axes, label


def weights_by_temperature(
    scores: Sequence[float], temperatures: Sequence[float], weights: np.ndarray
) -> Figure:
    """Each key's weight over the temperature. weights (temperatures, keys)."""
    figure, grid = axes(width=5.4, height=3.3)
    ax = grid[0, 0]
    for i, score in enumerate(scores):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        ax.plot(temperatures, weights[:, i], markevery=6, label=f"{score:g}", **style)
    ax.axhline(1 / len(scores), color=INK, linewidth=0.6, linestyle=":")
    ax.axvline(1, color=INK, linewidth=0.6, linestyle=":")
    ax.set_xscale("log")
    ax.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    label(ax, "temperature", "weight")
    ax.legend(title="score", loc="upper right")
    return figure


def jacobians(weights: Mapping[str, np.ndarray], matrices: Mapping[str, np.ndarray]) -> Figure:
    """diag(p) - ppᵀ as a picture with its numbers, one panel for each row of weights."""
    figure, grid = axes(len(matrices), width=2.9, height=3.1)
    for ax, (name, matrix) in zip(grid[0], matrices.items(), strict=True):
        ax.imshow(matrix, cmap=DIVERGING, vmin=-0.3, vmax=0.3)
        for i, j in np.ndindex(matrix.shape):
            text = f"{matrix[i, j]:.2f}".replace("-0.00", "0.00")
            colour = FACE if abs(matrix[i, j]) > 0.15 else INK
            ax.text(j, i, text, color=colour, ha="center", va="center")
        ax.grid(False)
        ax.set_xticks(range(len(matrix)))
        ax.set_yticks(range(len(matrix)))
        row = ", ".join(f"{w:.2f}" for w in weights[name])
        norm = np.linalg.norm(matrix)
        label(ax, "score $x_j$", "", f"{name}, norm {norm:.2f}\np = ({row})")
        ax.title.set_fontsize(9)
    grid[0, 0].set_ylabel("weight $p_i$")
    return figure


def rows_below(norms: Mapping[str, np.ndarray], floor: float = 1e-6) -> Figure:
    """Share of rows whose Jacobian has at most this norm; the mean of all rows as a mark."""
    figure, grid = axes(width=5.6, height=3.5)
    ax = grid[0, 0]
    for i, (name, norm) in enumerate(norms.items()):
        values = np.sort(np.maximum(norm, floor))
        share = np.arange(1, len(values) + 1) / len(values)
        ax.plot(values, share, color=COLOURS[i], label=name)
        mean = norm.mean()
        at = np.searchsorted(values, mean) / len(values)
        ax.plot(mean, at, MARKERS[i], color=COLOURS[i], markersize=9, markeredgecolor=INK)
    ax.set_xscale("log")
    ax.set_xlim(floor, 1)
    ax.set_ylim(0, 1.02)
    label(ax, "norm of the Jacobian of a row", "share of rows below")
    ax.legend(loc="upper left")
    return figure


def hump(
    stds: Sequence[float],
    means: Mapping[int, Sequence[float]],
    medians: Mapping[int, Sequence[float]],
) -> Figure:
    """Mean and median norm of the Jacobian over the spread of the scores, a line for each n."""
    figure, grid = axes(2, width=4.1, height=3.4, sharey=True)
    for ax, by_n, name in zip(grid[0], (means, medians), ("mean", "median"), strict=True):
        for i, (n, values) in enumerate(by_n.items()):
            ax.plot(stds, values, color=COLOURS[i], marker=MARKERS[i], label=f"{n} keys")
        for std in (1, 8, 22.6):
            ax.axvline(std, color=INK, linewidth=0.6, linestyle=":")
        ax.set_xscale("log")
        ax.set_xticks([0.1, 1, 8, 22.6], ["0.1", "1", "8", "22.6"])
        ax.minorticks_off()
        label(ax, "standard deviation of the scores", "", f"{name} over the rows")
    grid[0, 0].set_ylim(0, 0.42)
    grid[0, 0].set_ylabel("norm of the Jacobian")
    grid[0, 0].legend(loc="upper right", fontsize=8, borderaxespad=0)
    return figure
