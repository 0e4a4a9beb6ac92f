"""Figures of the chapter on training."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, GREY, MARKERS, axes, label
from sdpa_course.recall import Run


def band(ax: Axes, run: Run, name: str, colour: str, text: str, marker: str) -> None:
    """The median over the seeds as a line, and all of them as a band."""
    logged = run[name]
    ax.fill_between(
        run.steps, logged.min(axis=1), logged.max(axis=1), color=colour, alpha=0.2, linewidth=0
    )
    ax.plot(
        run.steps,
        np.median(logged, axis=1),
        color=colour,
        marker=marker,
        markevery=0.1,
        label=text,
    )


def learning_curves(panels: Mapping[str, Mapping[str, Run]], chance: float) -> Figure:
    """Accuracy over the steps: a panel for each setting, a line and a band for each scale."""
    figure, grid = axes(2, len(panels) // 2, width=3.9, height=2.7, sharey=True)
    for ax, (title, runs) in zip(grid.ravel(), panels.items(), strict=True):
        for i, (name, run) in enumerate(runs.items()):
            written = name.replace("1/√d_k", r"$1/\sqrt{d_k}$")
            band(ax, run, "accuracy", COLOURS[i], written, MARKERS[i])
        ax.axhline(chance, color=GREY, linewidth=1, linestyle=":")
        label(ax, "step", "accuracy", title)
    grid[0, 0].legend(loc="lower right")
    return figure


def scores_and_entropy(runs: Mapping[str, Run]) -> Figure:
    """Largest score and entropy over the steps, a line and a band for each run."""
    figure, grid = axes(2, width=3.9, height=3.0)
    names = {"max_score": "largest |score|", "entropy": r"entropy / $\ln S$"}
    for ax, (name, text) in zip(grid[0], names.items(), strict=True):
        for i, (title, run) in enumerate(runs.items()):
            band(ax, run, name, COLOURS[i], title, MARKERS[i])
        label(ax, "step", text)
    grid[0, 0].set_yscale("log")
    grid[0, 1].set_ylim(0, 1)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
