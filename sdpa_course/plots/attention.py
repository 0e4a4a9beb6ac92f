"""Figures of the chapter on the whole operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, FACE, INK, MARKERS, SEQUENTIAL, axes, label


def weights_of_words(word: str, weights: Mapping[str, np.ndarray]) -> Figure:
    """The weights that one word's query gives to the words of each sentence, as bars."""
    figure, grid = axes(len(weights), width=3.6, height=2.6, sharey=True)
    for ax, (sentence, row) in zip(grid[0], weights.items(), strict=True):
        words = sentence.split()
        places = np.arange(len(words))
        ax.bar(places, row, color=[COLOURS[1 if w == word else 0] for w in words], zorder=2)
        ax.set_xticks(places, words)
        ax.set_ylim(0, 0.7)
        ax.grid(axis="x", visible=False)
        label(ax, "key", "", f"constructed: {sentence}")
    grid[0, 0].set_ylabel(f"weight, query “{word}”")
    return figure


def share_of_attention(lengths: Sequence[int], shares: Mapping[int, Sequence[float]]) -> Figure:
    """The share of a layer's FLOPs that the two attention products take, over the length."""
    figure, grid = axes(width=5.2, height=3.2)
    ax = grid[0, 0]
    for i, (d_model, share) in enumerate(shares.items()):
        ax.plot(
            lengths, share, marker=MARKERS[i], color=COLOURS[i], label=rf"$d_{{model}}$ = {d_model}"
        )
    ax.axhline(0.5, color=INK, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_ylim(0, 1)
    label(ax, "tokens $L$", "share of the FLOPs of a layer")
    ax.legend()
    return figure


def two_weight_matrices(first: np.ndarray, second: np.ndarray) -> Figure:
    """Two different weight matrices side by side."""
    figure, grid = axes(2, width=2.9, height=2.6)
    for ax, weights, title in zip(grid[0], (first, second), ("A", "B"), strict=True):
        image = ax.imshow(weights, cmap=SEQUENTIAL, vmin=0, vmax=1)
        ax.set_xticks(range(weights.shape[1]))
        ax.set_yticks(range(weights.shape[0]))
        ax.grid(False)
        for (i, j), weight in np.ndenumerate(weights):
            colour = FACE if weight < 0.6 else INK
            ax.text(j, i, f"{weight:.1f}", ha="center", va="center", color=colour)
        label(ax, "key", "query", title)
    figure.colorbar(image, ax=grid[0], label="weight", shrink=0.8)
    return figure
