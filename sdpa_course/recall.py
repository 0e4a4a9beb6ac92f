"""Associative recall, an experiment: what is asked, how a run is driven, kept and taken up again.

A sequence holds pairs of a key and a value, and asks for the values of some of its keys. Which key
goes with which value changes from one sequence to the next, so that it cannot be learnt by heart:
the head has to look it up. What learns it, in NumPy or in torch, is a :class:`Learner`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol
from zipfile import BadZipFile

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Normaliser = Literal["softmax", "sigmoid", "none", "uniform"]
HELD_OUT = 2**31  # the number of a step that no run reaches: its batch is measured on


@dataclass(frozen=True)
class Recall:
    """The task, the head and the optimiser.

    ``normaliser`` makes weights out of scores: a softmax; a sigmoid of score - ln S, which knows no
    other key; none, where the scores divided by √S are the weights; or uniform weights, whatever
    the scores.
    """

    d_k: int = 64
    scale: float | None = None
    normaliser: Normaliser = "softmax"
    qk_norm: bool = False
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    keys: int = 64
    values: int = 16
    pairs: int = 32
    asked: int = 8
    batch: int = 32
    d_model: int = 64
    d_v: int = 64

    @property
    def factor(self) -> float:
        """What multiplies the scores: ``scale``, or 1/√d_k where it is None."""
        return self.d_k**-0.5 if self.scale is None else self.scale


class Batch(NamedTuple):
    """Token numbers: keys and values (B, S) of the pairs, asked and answers (B, L)."""

    keys: Array
    values: Array
    asked: Array
    answers: Array


def draw_batch(task: Recall, seed: int, step: int, size: int | None = None) -> Batch:
    """The sequences of one step of one seed: always the same ones, so that no state is kept.

    >>> batch = draw_batch(Recall(pairs=3, asked=1, keys=5), seed=0, step=0, size=2)
    >>> batch.keys.shape, batch.answers.shape
    ((2, 3), (2, 1))
    """
    rng = np.random.default_rng([seed, step])
    B, S = size or task.batch, task.pairs
    keys = rng.random((B, task.keys)).argsort(axis=-1)[:, :S]  # no key twice
    values = rng.integers(task.values, size=(B, S))
    which = rng.random((B, S)).argsort(axis=-1)[:, : task.asked]
    return Batch(
        keys, values, np.take_along_axis(keys, which, -1), np.take_along_axis(values, which, -1)
    )


def draw_batches(task: Recall, seeds: Sequence[int], step: int, size: int | None = None) -> Batch:
    """The batches of several seeds, stacked: arrays (N, B, S) and (N, B, L)."""
    return Batch(
        *map(np.stack, zip(*(draw_batch(task, seed, step, size) for seed in seeds), strict=True))
    )


def initial_parameters(task: Recall, seed: int) -> dict[str, Array]:
    """Fixed tokens with components of variance 1, and four matrices that keep the variance at 1.

    key_tokens (keys, d_model), value_tokens (values, d_model), W_q and W_k (d_model, d_k),
    W_v (d_model, d_v), W_o (d_v, values).
    """
    rng = np.random.default_rng([seed, HELD_OUT + 1])
    shapes = {
        "key_tokens": (task.keys, task.d_model),
        "value_tokens": (task.values, task.d_model),
        "W_q": (task.d_model, task.d_k),
        "W_k": (task.d_model, task.d_k),
        "W_v": (task.d_model, task.d_v),
        "W_o": (task.d_v, task.values),
    }
    return {
        name: rng.normal(size=shape) * (1.0 if "tokens" in name else shape[0] ** -0.5)
        for name, shape in shapes.items()
    }


class Learner(Protocol):
    """Several heads, one for each seed, that learn side by side."""

    def update(self, batch: Batch) -> None:
        """One step of the optimiser on batches (N, B, …)."""

    def measure(self, batch: Batch) -> dict[str, Array]:
        """What is logged, each (N,): accuracy, loss, entropy and max_score."""

    def state(self) -> dict[str, Array]:
        """Everything that a later process needs to go on."""

    def restore(self, state: dict[str, Array]) -> None:
        """Go on from what :meth:`state` returned."""


@dataclass(frozen=True)
class Run:
    """What was logged: ``steps`` (T,), and ``log[name]`` (T, N) for N seeds.

    The names are accuracy (share of answers that are right), loss (cross-entropy in nats), entropy
    (of the weights, mean over rows, divided by ln S) and max_score (largest |score|, after the
    scale).
    """

    task: Recall
    seeds: tuple[int, ...]
    steps: Array
    log: dict[str, Array]
    finished: bool

    def __getitem__(self, name: str) -> Array:
        return self.log[name]

    def step_reaching(self, accuracy: float = 0.9) -> Array:
        """The first logged step with this accuracy, for each seed; inf where there is none."""
        reached = self.log["accuracy"] >= accuracy
        first = self.steps[reached.argmax(axis=0)]
        return np.where(reached.any(axis=0), first, np.inf)

    def median_step(self, accuracy: float = 0.9) -> float:
        """The median of :meth:`step_reaching` over the seeds; inf if half of them never do."""
        ordered = np.sort(self.step_reaching(accuracy))
        return float(ordered[len(ordered) // 2])


def drive(
    make: Callable[[Recall, Sequence[int]], Learner],
    task: Recall,
    seeds: Sequence[int],
    steps: int,
    every: int,
    seconds: float | None,
    cache: str | os.PathLike[str] | None,
    kind: str,
) -> Run:
    """Train for so many steps, or until the time is up; go on from the cache if it knows the run.

    With a ``cache`` folder, the state is written there at the end and every few seconds, in one
    move, so that a run may be killed at any time. The same call again goes on from there.
    """
    learner = make(task, seeds)
    path = run_path(cache, kind, task, seeds, every) if cache is not None else None
    done, logged = restore(learner, path)
    held_out = draw_batches(task, seeds, HELD_OUT, size=64)
    started = saved = time.monotonic()
    bar = Bar(f"{task.optimiser} d_k={task.d_k}", steps)
    while True:
        if done % every == 0 and len(logged) <= done // every:
            logged.append(learner.measure(held_out))
        now = time.monotonic()
        if done >= steps or (seconds is not None and now - started >= seconds):
            break
        if path is not None and now - saved > 5:
            save(learner, path, done, logged)
            saved = now
        learner.update(draw_batches(task, seeds, done))
        done += 1
        bar(done)
    bar.close()
    if path is not None:
        save(learner, path, done, logged)
    kept = logged[: steps // every + 1]
    return Run(
        task,
        tuple(seeds),
        every * np.arange(len(kept)),
        {name: np.stack([row[name] for row in kept]) for name in kept[0]},
        done >= steps,
    )


def run_path(
    cache: str | os.PathLike[str], kind: str, task: Recall, seeds: Sequence[int], every: int
) -> Path:
    """The file of a run: its name stands for all its settings, except how long it is to last."""
    text = json.dumps([kind, asdict(task), list(seeds), every], sort_keys=True)
    return Path(cache) / f"recall-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def save(learner: Learner, path: Path, done: int, logged: list[dict[str, Array]]) -> None:
    """Write everything to a new file, then put it in place in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {f"state.{name}": x for name, x in learner.state().items()}
    arrays |= {f"log.{name}": np.stack([row[name] for row in logged]) for name in logged[0]}
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with new.open("wb") as file:
        np.savez(file, done=done, **arrays)
    os.replace(new, path)


def restore(learner: Learner, path: Path | None) -> tuple[int, list[dict[str, Array]]]:
    """How many steps are done and what was logged; a file that cannot be read counts as none."""
    if path is None or not path.exists():
        return 0, []
    try:
        with path.open("rb") as stream, np.load(stream) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return 0, []
    parts: dict[str, dict[str, Array]] = {"state": {}, "log": {}}
    for name, x in arrays.items():
        head, _, tail = name.partition(".")
        if tail:
            parts[head][tail] = x
    learner.restore(parts["state"])
    rows = len(next(iter(parts["log"].values())))
    return int(arrays["done"]), [{n: x[i] for n, x in parts["log"].items()} for i in range(rows)]


class Bar:
    """A progress bar on stderr where that is a terminal; silent everywhere else."""

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps, self.shown = title, max(steps, 1), -1
        self.on = sys.stderr.isatty()

    def __call__(self, done: int) -> None:
        percent = 100 * done // self.steps
        if self.on and percent != self.shown:
            self.shown = percent
            print(
                f"\r{self.title} [{'#' * (percent // 4):25}] {percent:3}%",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        if self.on:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
