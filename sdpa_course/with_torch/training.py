"""Training one head of attention on associative recall, with gradients by autograd.

The same names and the same numbers as the NumPy module. Here nothing is folded into tables: the
vectors of every sequence are gathered and attended to as in any model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from sdpa_course.recall import Array, Batch, Recall, Run, drive, initial_parameters
from sdpa_course.with_torch.softmax import entropy

LEARNT = ("W_q", "W_k", "W_v", "W_o")


def train(
    task: Recall,
    seeds: Sequence[int] = range(5),
    steps: int = 800,
    *,
    every: int = 25,
    seconds: float | None = None,
    cache: str | os.PathLike[str] | None = None,
    device: str | torch.device = "cpu",
) -> Run:
    """Train one head for each seed and log how it fares on sequences it is not trained on.

    Stops after so many ``steps``, or ``seconds``, whichever comes first (``Run.finished`` tells).
    With a ``cache`` folder the same call takes up a run where it stopped. A progress bar is shown
    on a terminal.
    """
    make = partial(Heads, device=device)
    return drive(make, task, seeds, steps, every, seconds, cache, "torch")


def qk_norm(x: Tensor) -> Tensor:
    """Vectors (..., d) divided by their root mean square: each then has length √d.

    With the scale 1/√d_k the scores of normed queries and keys lie between -√d_k and √d_k.
    Source: Henry et al. 2020; with a root mean square, as in later models.
    """
    working = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return working / working.square().mean(dim=-1, keepdim=True).sqrt()


def entropy_share(weights: Tensor) -> Tensor:
    """Entropy of each row of weights (..., S) divided by ln S: 0 is one-hot, 1 uniform. (...)"""
    return entropy(weights) / torch.tensor(weights.shape[-1]).log()


class Heads(torch.nn.Module):
    """One head for each seed; all tensors have a leading axis N."""

    def __init__(
        self, task: Recall, seeds: Sequence[int], device: str | torch.device = "cpu"
    ) -> None:
        super().__init__()
        self.task = task
        drawn = [initial_parameters(task, seed) for seed in seeds]
        for name in drawn[0]:
            stacked = torch.stack([torch.from_numpy(p[name]) for p in drawn]).to(device)
            if name in LEARNT:
                self.register_parameter(name, torch.nn.Parameter(stacked))
            else:
                self.register_buffer(name, stacked)
        make: Callable[..., torch.optim.Optimizer] = (
            torch.optim.Adam if task.optimiser == "adam" else torch.optim.SGD
        )
        self.optimiser = make(self.parameters(), lr=task.lr)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(logits, weights, scores) of token numbers (N, B, …)."""
        task = self.task
        q = gather(self.key_tokens @ self.W_q, batch.asked)  # (N, B, L, d_k)
        k = gather(self.key_tokens @ self.W_k, batch.keys)  # (N, B, S, d_k)
        v = gather(self.value_tokens @ self.W_v, batch.values)  # (N, B, S, d_v)
        if task.qk_norm:
            q, k = qk_norm(q), qk_norm(k)
        scores = q @ k.transpose(-2, -1) * task.factor  # 1 scores, 2 scale  (N, B, L, S)
        weights = weigh(scores, task.normaliser)  # 4 softmax
        return weights @ v @ self.W_o[:, None], weights, scores  # 5 mix

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of each seed, in nats: (N,)."""
        answers = torch.as_tensor(batch.answers, device=logits.device)
        each = F.cross_entropy(logits.flatten(0, 2), answers.flatten(), reduction="none")
        return each.view(answers.shape).mean(dim=(1, 2))

    def update(self, batch: Batch) -> None:
        """One step. Seeds share nothing, so the gradient of the sum is that of each."""
        self.optimiser.zero_grad()
        self.loss(self(batch)[0], batch).sum().backward()
        self.optimiser.step()

    @torch.no_grad()
    def measure(self, batch: Batch) -> dict[str, Array]:
        logits, weights, scores = self(batch)
        answers = torch.as_tensor(batch.answers, device=logits.device)
        shares = (
            entropy_share(weights).mean(dim=(1, 2))
            if self.task.normaliser in ("softmax", "uniform")
            else torch.full((len(weights),), float("nan"))
        )
        logged = {
            "accuracy": (logits.argmax(dim=-1) == answers).double().mean(dim=(1, 2)),
            "loss": self.loss(logits, batch),
            "entropy": shares,
            "max_score": scores.abs().amax(dim=(1, 2, 3)),
        }
        return {name: x.cpu().numpy() for name, x in logged.items()}

    def state(self) -> dict[str, Array]:
        arrays = {name: p.detach().cpu().numpy() for name, p in self.named_parameters()}
        for name, p in self.named_parameters():
            for part, x in self.optimiser.state.get(p, {}).items():
                if x is not None:
                    arrays[f"{name}.{part}"] = x.detach().cpu().numpy()
        return arrays

    def restore(self, state: dict[str, Array]) -> None:
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(torch.from_numpy(state[name]))
                kept = {n: x for n, x in state.items() if n.startswith(f"{name}.")}
                for key, x in kept.items():
                    part = key.removeprefix(f"{name}.")
                    where = "cpu" if part == "step" else p.device
                    self.optimiser.state[p][part] = torch.tensor(x, device=where)


def gather(rows: Tensor, numbers: Array) -> Tensor:
    """rows (N, tokens, d) and token numbers (N, B, n) → (N, B, n, d)."""
    n = torch.arange(len(rows), device=rows.device)[:, None, None]
    return rows[n, torch.as_tensor(numbers, device=rows.device)]


def weigh(scores: Tensor, normaliser: str) -> Tensor:
    """Weights from scores (..., S): see :class:`.Recall`."""
    S = scores.shape[-1]
    if normaliser == "softmax":
        return scores.softmax(dim=-1)
    if normaliser == "sigmoid":
        return (scores - torch.tensor(S).log()).sigmoid()
    if normaliser == "none":
        return scores / S**0.5
    return torch.zeros_like(scores) * scores + 1 / S
