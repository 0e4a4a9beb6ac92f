"""Training one head of attention on associative recall, with the gradients written by hand.

Several seeds learn side by side, along a leading axis N.

A score depends only on which key is asked for and which key stands there. So all scores there can
be make one small table for each seed, and a batch only looks them up. That computes what attention
on the gathered vectors computes, many times faster.

>>> run = train(Recall(d_k=16, keys=8, pairs=4, asked=2), seeds=[0, 1], steps=20, every=10)
>>> run["accuracy"].shape  # logged at steps 0, 10 and 20
(3, 2)
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from sdpa_course.recall import Array, Batch, Recall, Run, drive, initial_parameters
from sdpa_course.with_numpy.softmax import entropy, log_softmax, softmax, softmax_vjp

LEARNT = ("W_q", "W_k", "W_v", "W_o")


def train(
    task: Recall,
    seeds: Sequence[int] = range(5),
    steps: int = 800,
    *,
    every: int = 25,
    seconds: float | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Run:
    """Train one head for each seed and log how it fares on sequences it is not trained on.

    Stops after so many ``steps``, or ``seconds``, whichever comes first (``Run.finished`` tells).
    With a ``cache`` folder the same call takes up a run where it stopped. A progress bar is shown
    on a terminal.
    """
    return drive(Heads, task, seeds, steps, every, seconds, cache, "numpy")


def qk_norm(x: ArrayLike) -> Array:
    """Vectors (..., d) divided by their root mean square: each then has length √d.

    With the scale 1/√d_k the scores of normed queries and keys lie between -√d_k and √d_k.
    Source: Henry et al. 2020; with a root mean square, as in later models.
    """
    x = np.asarray(x, dtype=np.result_type(np.asarray(x), np.float32))
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True))


def entropy_share(weights: ArrayLike) -> Array:
    """Entropy of each row of weights (..., S) divided by ln S: 0 is one-hot, 1 uniform. (...)"""
    weights = np.asarray(weights)
    return entropy(weights) / np.log(weights.shape[-1])


class Heads:
    """One head for each seed; all arrays have a leading axis N."""

    def __init__(self, task: Recall, seeds: Sequence[int]) -> None:
        self.task = task
        drawn = [initial_parameters(task, seed) for seed in seeds]
        self.parameters = {name: np.stack([p[name] for p in drawn]) for name in drawn[0]}
        self.moments = {
            f"{name}.{order}": np.zeros_like(self.parameters[name])
            for name in LEARNT
            for order in (1, 2)
            if task.optimiser == "adam"
        }
        self.time = 0

    def forward(self, batch: Batch) -> dict[str, Array]:
        """Everything on the way from token numbers (N, B, …) to logits (N, B, L, values)."""
        task, p = self.task, self.parameters
        q, k = p["key_tokens"] @ p["W_q"], p["key_tokens"] @ p["W_k"]  # (N, keys, d_k)
        if task.qk_norm:
            q, k = qk_norm(q), qk_norm(k)
        table = task.factor * (q @ k.swapaxes(-1, -2))  # 1 scores, 2 scale  (N, keys, keys)
        scores = table[self.cells(batch)]  # (N, B, L, S)
        weights = weigh(scores, task.normaliser)  # 4 softmax
        holds = (batch.values[..., None] == np.arange(task.values)).astype(
            float
        )  # (N, B, S, values)
        shares = weights @ holds  # weight on each value  (N, B, L, values)
        answers = p["value_tokens"] @ p["W_v"] @ p["W_o"]  # what a value says  (N, values, values)
        return {
            "q": q,
            "k": k,
            "scores": scores,
            "weights": weights,
            "holds": holds,
            "shares": shares,
            "answers": answers,
            "logits": shares @ answers[:, None],  # 5 mix
        }

    def cells(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Where each score of the batch stands in the table of scores."""
        n = np.arange(len(batch.keys))[:, None, None, None]
        return n, batch.asked[..., None], batch.keys[:, :, None, :]

    def gradients(self, batch: Batch) -> tuple[Array, dict[str, Array]]:
        """The loss (N,), cross-entropy in nats, and its gradient at each learnt matrix."""
        task, p, f = self.task, self.parameters, self.forward(batch)
        N, B, L = batch.answers.shape
        right = batch.answers[..., None] == np.arange(task.values)
        log_p = log_softmax(f["logits"])
        loss = -(log_p * right).sum(axis=-1).mean(axis=(1, 2))

        d_logits = (np.exp(log_p) - right) / (B * L)
        flat = (N, B * L, task.values)
        d_answers = f["shares"].reshape(flat).swapaxes(-1, -2) @ d_logits.reshape(flat)
        d_v = d_answers @ p["W_o"].swapaxes(-1, -2)  # (N, values, d_v)
        v = p["value_tokens"] @ p["W_v"]
        d_shares = d_logits @ f["answers"].swapaxes(-1, -2)[:, None]
        d_weights = d_shares @ f["holds"].swapaxes(-1, -2)  # (N, B, L, S)
        d_scores = weigh_vjp(f["weights"], d_weights, task.normaliser)

        n, asked, key = self.cells(batch)
        cell = (n * task.keys + asked) * task.keys + key
        size = N * task.keys**2
        summed = np.bincount(cell.ravel(), d_scores.ravel(), size)
        d_table = task.factor * summed.reshape(N, task.keys, task.keys)
        d_q, d_k = d_table @ f["k"], d_table.swapaxes(-1, -2) @ f["q"]  # (N, keys, d_k)
        if task.qk_norm:
            d_q = qk_norm_vjp(p["key_tokens"] @ p["W_q"], d_q)
            d_k = qk_norm_vjp(p["key_tokens"] @ p["W_k"], d_k)
        tokens = p["key_tokens"].swapaxes(-1, -2)
        return loss, {
            "W_q": tokens @ d_q,
            "W_k": tokens @ d_k,
            "W_v": p["value_tokens"].swapaxes(-1, -2) @ d_v,
            "W_o": v.swapaxes(-1, -2) @ d_answers,
        }

    def update(self, batch: Batch) -> None:
        """One step of Adam (0.9, 0.999, 1e-8) or of plain gradient descent."""
        _, gradients = self.gradients(batch)
        self.time += 1
        for name, g in gradients.items():
            if self.task.optimiser == "sgd":
                self.parameters[name] -= self.task.lr * g
                continue
            m, v = self.moments[f"{name}.1"], self.moments[f"{name}.2"]
            m *= 0.9
            m += 0.1 * g
            v *= 0.999
            v += 0.001 * (g * g)
            root = np.sqrt(v)
            root *= (1 - 0.999**self.time) ** -0.5
            root += 1e-8
            self.parameters[name] -= self.task.lr / (1 - 0.9**self.time) * (m / root)

    def measure(self, batch: Batch) -> dict[str, Array]:
        f = self.forward(batch)
        log_p = log_softmax(f["logits"])
        right = batch.answers[..., None] == np.arange(self.task.values)
        weights = f["weights"]
        shares = (
            entropy_share(weights).mean(axis=(1, 2))
            if self.task.normaliser in ("softmax", "uniform")
            else np.full(len(weights), np.nan)
        )
        return {
            "accuracy": (f["logits"].argmax(axis=-1) == batch.answers).mean(axis=(1, 2)),
            "loss": -(log_p * right).sum(axis=-1).mean(axis=(1, 2)),
            "entropy": shares,
            "max_score": np.abs(f["scores"]).max(axis=(1, 2, 3)),
        }

    def state(self) -> dict[str, Array]:
        return {**self.parameters, **self.moments, "time": np.array(self.time)}

    def restore(self, state: dict[str, Array]) -> None:
        self.parameters = {name: state[name] for name in self.parameters}
        self.moments = {name: state[name] for name in self.moments}
        self.time = int(state["time"])


def weigh(scores: Array, normaliser: str) -> Array:
    """Weights from scores (..., S): see :class:`.Recall`."""
    S = scores.shape[-1]
    if normaliser == "softmax":
        return softmax(scores)
    if normaliser == "sigmoid":
        return 1 / (1 + S * np.exp(-np.maximum(scores, -500)))  # σ(score - ln S)
    if normaliser == "none":
        return scores / S**0.5
    return np.full_like(scores, 1 / S)


def weigh_vjp(weights: Array, d_weights: Array, normaliser: str) -> Array:
    """The gradient at the scores, from that at the weights."""
    if normaliser == "softmax":
        return softmax_vjp(weights, d_weights)
    if normaliser == "sigmoid":
        return weights * (1 - weights) * d_weights
    if normaliser == "none":
        return d_weights / weights.shape[-1] ** 0.5
    return np.zeros_like(weights)


def qk_norm_vjp(x: Array, d_normed: Array) -> Array:
    """The gradient at x, from that at qk_norm(x)."""
    root = np.sqrt((x**2).mean(axis=-1, keepdims=True))
    normed = x / root
    return (d_normed - normed * (normed * d_normed).mean(axis=-1, keepdims=True)) / root
