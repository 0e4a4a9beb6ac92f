"""Two small matrices side by side as SVG: what was expected and what came.

Light is small and dark is large on a single-hue scale, so that it reads in grey too; the numbers
stand in the cells.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

CELL, GAP, TOP = 46, 40, 20
MOST = 8


def draw_example(expected: Any, actual: Any) -> str:
    """An SVG of both matrices; empty where there is no small matrix to draw."""
    left, right = matrix(expected), matrix(actual)
    if left is None or right is None:
        return ""
    finite = np.concatenate([m[np.isfinite(m)] for m in (left, right)])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    offset = left.shape[1] * CELL + GAP
    width = offset + right.shape[1] * CELL + 2
    height = TOP + max(left.shape[0], right.shape[0]) * CELL + 2
    body = drawn(left, 0, "expected", low, high) + drawn(right, offset, "yours", low, high)
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="The expected matrix beside yours" font-family="sans-serif" font-size="12">'
        f"{body}</svg>"
    )


def short(value: float) -> str:
    """A number that fits into a cell."""
    if not np.isfinite(value):
        return str(value)
    text = np.format_float_positional(value, precision=2, trim="-")
    return text if len(text) <= 6 else f"{value:.0e}"


def matrix(x: Any) -> np.ndarray | None:
    """The last two axes of the first entry, if that is a small matrix of numbers."""
    if isinstance(x, tuple):
        x = x[-1]
    if not isinstance(x, np.ndarray) or x.size == 0 or x.ndim == 0:
        return None
    x = x.astype(np.float64)
    while x.ndim > 2:
        x = x[0]
    x = np.atleast_2d(x)
    return x if max(x.shape) <= MOST else None


def drawn(m: Any, x0: int, label: str, low: float, high: float) -> str:
    parts = [f'<text x="{x0}" y="13" fill="currentColor">{html.escape(label)}</text>']
    for i, row in enumerate(m):
        for j, value in enumerate(row):
            share = (value - low) / (high - low) if np.isfinite(value) and high > low else 0.5
            light = round(95 - 60 * share)
            x, y = x0 + j * CELL, TOP + i * CELL
            ink = "#000" if light > 60 else "#fff"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" stroke="#777" '
                f'fill="hsl(210 60% {light}%)"/><text x="{x + CELL // 2}" y="{y + CELL // 2 + 4}" '
                f'text-anchor="middle" fill="{ink}">{short(value)}</text>'
            )
    return "".join(parts)
