"""What the tests of the implementations share: both backends behind one face, and tolerances."""

from __future__ import annotations

import importlib

import numpy as np


class Backend:
    """The functions of one backend, called with NumPy arrays and answering in NumPy arrays."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.module = importlib.import_module(f"sdpa_course.with_{name}")

    def __getattr__(self, function_name):
        function = getattr(self.module, function_name)

        def call(*args, **kwargs):
            named = {name: self.array(x) for name, x in kwargs.items()}
            return self.numpy(function(*map(self.array, args), **named))

        return call

    def array(self, x):
        """An array as this backend takes it, sharing no memory; anything else as it is."""
        if not isinstance(x, np.ndarray):
            return x
        if self.name == "numpy":
            return x.copy()
        import torch

        return torch.from_numpy(x.copy())

    def numpy(self, x):
        if isinstance(x, tuple):
            return tuple(map(self.numpy, x))
        return x.detach().numpy() if hasattr(x, "detach") else x


def rounding(dtype, terms: int, size: float = 1.0) -> float:
    """How far a sum of so many products may be off, each of at most this size, in this dtype.

    The classic bound is (number of operations) · eps · size; a division and an exp are a few more.
    """
    return (terms + 8) * float(np.finfo(dtype).eps) * size


def normal(*shape: int, seed: int = 0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
