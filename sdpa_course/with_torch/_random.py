"""Where random numbers come from."""

from __future__ import annotations

from typing import TypeAlias

import torch

Rng: TypeAlias = "torch.Generator | int | None"


def generator(rng: Rng, device: torch.device) -> torch.Generator | None:
    """A generator on the device: the one given, one made from a seed, or None for PyTorch's own."""
    if isinstance(rng, int):
        return torch.Generator(device).manual_seed(rng)
    return rng
