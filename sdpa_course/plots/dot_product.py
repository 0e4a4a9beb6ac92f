"""Figures of the chapter on the dot product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, DIVERGING, GREY, INK, MARKERS, axes, label


def score_fields(
    side: np.ndarray, fields: Mapping[str, np.ndarray], query: np.ndarray, keys: np.ndarray
) -> Figure:
    """For each kind of score: what a key at each point of the plane scores with one query."""
    figure, grid = axes(len(fields), width=2.9, height=3.4, sharey=True)
    for ax, (name, field) in zip(grid[0], fields.items(), strict=True):
        top = 1.6 * np.abs(field).max()  # pale enough for black on it
        ax.pcolormesh(side, side, field, cmap=DIVERGING, vmin=-top, vmax=top, rasterized=True)
        ax.contour(side, side, field, levels=[0], colors=INK, linewidths=1, linestyles="--")
        ax.contour(side, side, field, levels=7, colors=INK, linewidths=0.5, linestyles="-")
        ax.annotate(
            "", query, (0, 0), arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 2}
        )
        ax.annotate("q", query, xytext=(3, 2), textcoords="offset points", weight="bold")
        for i, key in enumerate(keys):
            ax.plot(*key, MARKERS[i], color=INK, markerfacecolor="white", markersize=7)
            ax.annotate(f"k{i + 1}", key, xytext=(6, -6), textcoords="offset points")
        ax.set_aspect("equal")
        ax.grid(False)
        label(ax, "first coordinate of k", "", name)
    grid[0, 0].set_ylabel("second coordinate of k")
    return figure


def weight_by_length(
    lengths: Sequence[float], panels: Mapping[str, Mapping[str, np.ndarray]], share: float
) -> Figure:
    """For each kind of score: the weight of one key among others, over its length."""
    figure, grid = axes(len(panels), width=3.0, height=3.2, sharey=True)
    for ax, (name, curves) in zip(grid[0], panels.items(), strict=True):
        for i, (angle, weights) in enumerate(curves.items()):
            ax.plot(lengths, weights, color=COLOURS[i], marker=MARKERS[i], markevery=8, label=angle)
        ax.axhline(share, color=GREY, linewidth=1, linestyle=":")
        label(ax, "length of the key", "", name)
    grid[0, 0].set_ylabel("weight of the key")
    grid[0, min(1, len(panels) - 1)].legend()
    return figure


def cost(
    lengths: Sequence[int],
    seconds: Mapping[str, Sequence[float]],
    peaks: Mapping[str, Sequence[float]],
) -> Figure:
    """Time and peak memory of each kind of score over the number of tokens."""
    figure, grid = axes(2, width=4.0, height=3.3)
    left, right = grid[0]
    for i, name in enumerate(seconds):
        style = {"color": COLOURS[i], "marker": MARKERS[i], "label": name}
        left.plot(lengths, np.multiply(seconds[name], 1000), **style)
        right.plot(lengths, np.divide(peaks[name], 2**20), **style)
    for ax, measured, unit in ((left, seconds, 1000), (right, peaks, 2**-20)):
        first = next(iter(measured.values()))[-1]
        for values in measured.values():
            ax.annotate(
                f"× {values[-1] / first:.0f}",
                (lengths[-1], values[-1] * unit),
                xytext=(8, -3),
                textcoords="offset points",
            )
    for ax, what in ((left, "time (ms)"), (right, "peak memory (MiB)")):
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, [str(n) for n in lengths])
        ax.minorticks_off()
        ax.set_xlim(right=lengths[-1] * 1.6)
        label(ax, "tokens, L = S", what)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
