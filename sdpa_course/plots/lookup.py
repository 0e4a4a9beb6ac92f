"""Figures of the chapter on lookup."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, GREY, INK, MARKERS, axes, label


def temperature_sweep(
    temperatures: Sequence[float],
    weights: np.ndarray,
    outputs: Sequence[float],
    names: Sequence[str],
    values: Sequence[float],
) -> Figure:
    """Weights (T, S) of each key and the output, over the temperature."""
    figure, grid = axes(2, width=3.9, height=3.3)
    left, right = grid[0]
    for i, name in enumerate(names):
        left.plot(temperatures, weights[:, i], color=COLOURS[i], marker=MARKERS[i], label=name)
    left.axhline(1 / len(names), color=GREY, linewidth=1, linestyle=":")
    left.legend()
    label(left, "temperature", "weight of the key")
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        right.axhline(value, color=COLOURS[i], linewidth=1)
        side = "bottom" if value > np.mean(values) else "top"
        right.annotate(name, (temperatures[-1], value), va=side, ha="right", color=COLOURS[i])
    right.axhline(np.mean(values), color=GREY, linewidth=1, linestyle=":")
    right.plot(temperatures, outputs, color=INK, marker="o", label="output")
    right.set_ylim(0, 1.15 * max(values))
    right.legend(loc="upper right", bbox_to_anchor=(1.0, 0.85))
    label(right, "temperature", "value")
    for ax in (left, right):
        ax.set_xscale("log")
    return figure


def smoothers(
    known: tuple[np.ndarray, np.ndarray],
    grid_x: np.ndarray,
    truth: np.ndarray,
    curves: Mapping[float, np.ndarray],
) -> Figure:
    """Noisy points, the curve they came from, and a kernel smoother for each bandwidth."""
    figure, grid = axes(len(curves), width=2.8, height=2.9, sharey=True)
    for i, (ax, (bandwidth, curve)) in enumerate(zip(grid[0], curves.items(), strict=True)):
        ax.plot(*known, "o", color=GREY, markersize=3, label="known points")
        ax.plot(grid_x, truth, color=INK, linewidth=1, linestyle="--", label="where they came from")
        ax.plot(grid_x, curve, color=COLOURS[i], label="smoother")
        label(ax, "$x$", "", f"bandwidth {bandwidth:g}")
    grid[0, 0].set_ylabel("$y$")
    grid[0, 0].legend(loc="lower left", fontsize=7)
    return figure


def hull(values: np.ndarray, blends: Mapping[str, np.ndarray], corners: Sequence[int]) -> Figure:
    """Value rows in the plane, the polygon between them, and blends of each kind."""
    figure, grid = axes(width=6.6, height=3.8)
    ax = grid[0, 0]
    polygon = values[list(corners)]
    ax.fill(*polygon.T, color=GREY, alpha=0.18, linewidth=0)
    for i, (name, points) in enumerate(blends.items()):
        ax.plot(*points.T, MARKERS[i], color=COLOURS[i], markersize=3, alpha=0.6, label=name)
    ax.plot(*values.T, "*", color=INK, markersize=13, label="value rows")
    ax.set_aspect("equal")
    label(ax, "first coordinate", "second coordinate")
    figure.legend(loc="outside right center")
    return figure


def influence(lengths: Sequence[int], sizes: Mapping[str, Sequence[float]]) -> Figure:
    """How much the first token moves the last output, over the distance between them."""
    figure, grid = axes(width=5.4, height=3.4)
    ax = grid[0, 0]
    for i, (name, measured) in enumerate(sizes.items()):
        ax.plot(lengths, measured, color=COLOURS[i], marker=MARKERS[i], label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(1e-16, 3)
    label(ax, "tokens in between", "size of the derivative")
    ax.legend(loc="lower left")
    return figure
