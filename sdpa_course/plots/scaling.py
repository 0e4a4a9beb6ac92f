"""Figures of the chapter on scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, GREY, INK, MARKERS, axes, label


def variance_by_size(sizes: Sequence[int], variances: Mapping[str, Sequence[float]]) -> Figure:
    """Measured variance of q·k over d_k, one set of points per law, beside the line d_k."""
    figure, grid = axes(width=5.2, height=3.4)
    ax = grid[0, 0]
    ax.plot(sizes, sizes, color=GREY, label=r"$d_k$")
    for i, (law, measured) in enumerate(variances.items()):
        # Shifted a little to either side, or the points would hide each other.
        shifted = np.array(sizes) * 1.12 ** (i - 1)
        ax.plot(shifted, measured, MARKERS[i], color=COLOURS[i], label=law)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    label(ax, "size of query and key $d_k$", r"variance of $q\cdot k$")
    ax.legend()
    return figure


def gradient_by_size(
    sizes: Sequence[int], norms: Mapping[str, Sequence[tuple[float, float, float]]]
) -> Figure:
    """RMS, median and tenth percentile of the gradient's length per row, one panel per scale."""
    figure, grid = axes(len(norms), width=2.7, height=3.1, sharey=True)
    for ax, (scale, rows) in zip(grid[0], norms.items(), strict=True):
        for i, name in enumerate(("root mean square", "median row", "10th percentile")):
            measured = [row[i] for row in rows]
            ax.plot(sizes, measured, marker=MARKERS[i], color=COLOURS[i], label=name)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        label(ax, "$d_k$", "", f"scale {written(scale)}")
    grid[0, 0].set_ylabel("length of the gradient at a query")
    grid[0, 0].legend(loc="lower left")
    return figure


def agreeing_scores(
    sizes: Sequence[int], moments: Mapping[str, Mapping[float, Sequence[tuple[float, float]]]]
) -> Figure:
    """Mean ± standard deviation of scaled scores over d_k, one panel per scale, a band per ρ."""
    figure, grid = axes(len(moments), width=3.7, height=3.2)
    for ax, (scale, by_rho) in zip(grid[0], moments.items(), strict=True):
        for i, (rho, rows) in enumerate(by_rho.items()):
            mean, std = np.array(rows).T
            ax.fill_between(sizes, mean - std, mean + std, color=COLOURS[i], alpha=0.2, linewidth=0)
            ax.plot(sizes, mean, marker=MARKERS[i], color=COLOURS[i], label=f"ρ = {rho:g}")
        ax.axhline(0, color=INK, linewidth=0.6)
        ax.set_xscale("log", base=2)
        label(ax, "$d_k$", "score, mean ± standard deviation", f"scale {written(scale)}")
    grid[0, 0].legend(loc="upper left")
    return figure


def written(scale: str) -> str:
    """The scale's name in mathematical type."""
    return {"1/√d_k": r"$1/\sqrt{d_k}$", "1/d_k": "$1/d_k$"}.get(scale, scale)
