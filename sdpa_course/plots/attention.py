"""Figures of the chapter on the whole operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from sdpa_course.plots._look import COLOURS, INK, MARKERS, SEQUENTIAL, axes, label


def weights_of_words(sentences: Mapping[str, tuple[Sequence[str], np.ndarray]], row: str) -> Figure:
    """The weights of one word's query over the words of each sentence, as bars."""
    figure, grid = axes(1, len(sentences), width=6.0, height=1.7, sharex=True)
    for ax, (title, (words, weights)) in zip(grid[:, 0], sentences.items(), strict=True):
        places = np.arange(len(words))
        ax.bar(places, weights[list(words).index(row)], color=COLOURS[0])
        ax.set_xticks(places, words)
        ax.set_ylim(0, 1)
        label(ax, "", f"weight of “{row}”", title)
    grid[-1, 0].set_xlabel("key")
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
        label(ax, "key", "query", title)
    figure.colorbar(image, ax=grid[0], label="weight", shrink=0.8)
    return figure
