"""Graded exercises of the chapter on training."""

from __future__ import annotations

import math

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution

CHAPTER = "08-training"
OUTCOME = f"{CHAPTER}#without-the-scale"
GROWTH = f"{CHAPTER}#scores-grow"
QK_NORM = f"{CHAPTER}#a-bound-for-the-scores"
PIECES = f"{CHAPTER}#piece-by-piece"
NATS = f"{CHAPTER}#an-entropy-without-a-unit"
NORM = f"{CHAPTER}#a-norm-that-is-not-a-mean"
MEAN = f"{CHAPTER}#one-number-for-all-heads"
FILL = f"{CHAPTER}#a-maximum-over-what-is-hidden"
CLIP = f"{CHAPTER}#a-clip-on-both-sides"


def normal(rng, *shape, std=1.0):
    return rng.normal(size=shape) * std


def weights_of(rng, *shape, std=2.0):
    e = np.exp(normal(rng, *shape, std=std))
    return e / e.sum(axis=-1, keepdims=True)


# -- predict the outcome -------------------------------------------------------------------------

without_the_scale = Exercise(
    "training.without_the_scale",
    kind="quiz",
    title="Training halts",
    statement="""
"Without $1/\\sqrt{d_k}$ the gradients vanish, and training effectively halts." Which sentence says
what the recall experiment of this chapter shows?
""",
    link=OUTCOME,
)
without_the_scale.option(
    "A",
    "Right: no head without the scale learns anything in 800 steps.",
    "With d_k = 64 all of them learn, and with d_k = 512 and Adam too. They need more steps.",
)
without_the_scale.option(
    "B",
    "It depends. With d_k = 64 heads learn, only later. With d_k = 512 plain gradient descent does"
    " not get there in the time given, and Adam does, late.",
    "Yes. The scale buys speed and freedom from care, and the more of it the larger d_k is. Whether"
    " its absence is fatal depends on d_k, on the optimiser and on the patience.",
    right=True,
)
without_the_scale.option(
    "C",
    "Wrong: the scale makes no difference to training.",
    "It makes a large one: without it every setting needs at least three times as many steps.",
)
without_the_scale.option(
    "D",
    "It depends on the optimiser alone: Adam divides by the size of the gradient, so it does not"
    " notice that the scale is missing.",
    "Adam makes up for gradients that are small, but not for rows that get none. It too is several"
    " times slower without the scale.",
)


# -- entropy without a unit ----------------------------------------------------------------------

entropy_share = Exercise(
    "training.entropy_share",
    kind="implement",
    title="Log the entropy",
    statement="""
Write `entropy_share(weights)`: for each row of `weights` $(\\dots, L, S)$ its entropy
$-\\sum_j p_j \\ln p_j$, divided by $\\ln S$, its largest possible value. The result is
$(\\dots, L)$: 1 for uniform weights, 0 for one-hot ones. A weight may be exactly 0; $0 \\ln 0$
counts as 0.
""",
    link=NATS,
    goals={
        "logarithm": "the logarithm of each weight, of a zero too",
        "summed": "-Σ p ln p along the keys",
        "unit": "divided by the largest possible entropy",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.training.entropy_share",
        "sdpa_course.with_torch.training.entropy_share",
    ),
    hints=(
        "What is 0 · ln 0 in floating point? Replace the 0 under the logarithm by 1.",
        "Which axis holds the keys, and what is the entropy of uniform weights over them?",
    ),
    reason="Entropy runs from 0 to ln S. Divided by ln S it can be compared between rows of other"
    " lengths, and 0 always means: one key has it all.",
    question="Why log the smallest row, or a quantile, beside the mean?",
)


@entropy_share.stub
def entropy_share_stub(weights):
    """Entropy of each row of weights (..., L, S), divided by ln S: (..., L)."""
    raise NotImplementedError


@entropy_share.inputs
def _(rng, B=2, H=3, L=5, S=6):
    lead = (B, H) if H > 1 else ()
    return {"weights": weights_of(rng, *lead, L, S)}


entropy_share.probe("rows of one matrix", B=1, H=1, L=3, S=5)
entropy_share.probe("batch and heads", B=2, H=3, L=5, S=6)
entropy_share.probe("more queries than keys", B=3, H=3, L=7, S=2)


@entropy_share.special("weights that are exactly 0", L=4, S=6)
def _():
    p = weights_of(np.random.default_rng(4), 4, 6)
    p[0] = np.eye(6)[2]
    p[1, 3:] = 0
    p[1] /= p[1].sum()
    return {"weights": p}


def safe_log(p):
    return np.log(np.where(p > 0, p, 1.0))


@entropy_share.model
def _(
    weights,
    *,
    logarithm=safe_log,
    summed=lambda p, log_p: -(p * log_p).sum(axis=-1),
    unit=lambda p: np.log(p.shape[-1]),
):
    return summed(weights, logarithm(weights)) / unit(weights)


entropy_share.fault(
    "entropy.zero_log",
    "A weight of exactly 0 gives NaN: 0 · ln 0 is 0 · (-∞).",
    why="A masked key has the weight 0, so in practice most rows of a causal model have zeros.",
    hint="Put something harmless under the logarithm where the weight is 0.",
    hidden="no weight is 0",
    link=NATS,
    logarithm=np.log,
)
entropy_share.fault(
    "entropy.in_nats",
    "You return the entropy in nats; it is not divided by ln S.",
    why="Rows of other lengths cannot be compared then: ln 32 is 3.5, ln 1024 is 6.9.",
    hint="What does your function return for uniform weights?",
    link=NATS,
    unit=lambda p: 1.0,
)
entropy_share.fault(
    "entropy.in_bits",
    "You return the entropy in bits: divided by ln 2, and not by ln S.",
    why="Bits are another unit. A share has none.",
    hint="What does your function return for uniform weights?",
    hidden="two keys",
    link=NATS,
    unit=lambda p: math.log(2),
)
entropy_share.fault(
    "entropy.two_logarithms",
    "You take one logarithm to the base 2 and the other to the base e.",
    why="A ratio of two logarithms has no unit only if both have one base.",
    hint="What does your function return for uniform weights?",
    link=NATS,
    unit=lambda p: np.log(p.shape[-1]) * math.log(2),
)
entropy_share.fault(
    "entropy.log_of_queries",
    "You divide by ln L, the number of queries. The weights of a row are shared out among S keys.",
    why="The entropy is largest when all S keys share alike.",
    hint="Which axis holds the keys?",
    hidden="L = S",
    link=NATS,
    unit=lambda p: np.log(p.shape[-2]),
)
entropy_share.fault(
    "entropy.divided_by_keys",
    "You divide by S; the largest possible entropy is ln S.",
    why="Uniform weights over S keys have -Σ (1/S) ln(1/S) = ln S.",
    hint="What is the entropy of uniform weights?",
    link=NATS,
    unit=lambda p: p.shape[-1],
)
entropy_share.fault(
    "entropy.sign",
    "The minus is missing: logarithms of weights are negative.",
    why="An entropy is never negative.",
    hint="What sign has ln 0.5?",
    link=NATS,
    summed=lambda p, log_p: (p * log_p).sum(axis=-1),
)
entropy_share.fault(
    "entropy.over_queries",
    "You sum over axis -2, the queries. Each query has weights over the keys.",
    why="Only along the keys do the weights sum to 1.",
    hint="Which axis of (…, L, S) sums to 1?",
    link=NATS,
    summed=lambda p, log_p: -(p * log_p).sum(axis=-2),
)
entropy_share.fault(
    "entropy.mean_over_rows",
    "You return one mean over all rows; each row is asked for.",
    why="A mean hides a few rows that have collapsed.",
    hint="Which shape is asked for?",
    link=MEAN,
    summed=lambda p, log_p: -(p * log_p).sum(axis=-1).mean(),
)
entropy_share.fault(
    "entropy.mean_over_keys",
    "You take the mean over the keys where the entropy is a sum.",
    why="Your result is S times too small.",
    hint="What does your function return for uniform weights?",
    link=NATS,
    summed=lambda p, log_p: -(p * log_p).mean(axis=-1),
)
entropy_share.fault(
    "entropy.no_weights",
    "You sum the logarithms without their weights.",
    why="The entropy is a mean of -ln p, weighted with p.",
    hint="Compare with the formula, factor by factor.",
    link=NATS,
    summed=lambda p, log_p: -log_p.sum(axis=-1),
)
entropy_share.add(
    Fit(
        "entropy.factor",
        "unit",
        "You divide the entropy by {found} (here {value}); the largest possible value is ln S (here"
        " {right}).",
        right=lambda dims: math.log(dims["S"]),
        setting=lambda value: lambda p: value,
        why="Uniform weights must give 1.",
        hint="What does your function return for uniform weights?",
        link=NATS,
    )
)


@entropy_share.solution
def entropy_share_solution(weights):
    log_p = np.log(np.where(weights > 0, weights, 1.0))  # 0 ln 0 counts as 0
    return -(weights * log_p).sum(axis=-1) / np.log(weights.shape[-1])


@entropy_share.solution("With the entropy of the package.")
def entropy_share_package(weights):
    from sdpa_course.with_numpy import entropy

    return entropy(weights) / np.log(weights.shape[-1])


@entropy_share.solution(shown=False)
def entropy_share_nan_to_num(weights):
    with np.errstate(all="ignore"):
        terms = np.nan_to_num(weights * np.log(weights))
    return 0.0 - terms.sum(-1) / math.log(weights.shape[-1])


@entropy_share.solution(shown=False)
def entropy_share_log_base_s(weights):
    p = np.maximum(weights, 1e-300)
    return -np.einsum("...s,...s->...", weights, np.log2(p)) / np.log2(p.shape[-1])


@entropy_share.solution(backend="torch")
def entropy_share_torch(weights):
    import torch

    return torch.special.entr(weights).sum(dim=-1) / math.log(weights.shape[-1])


@entropy_share.solution(backend="torch", shown=False)
def entropy_share_torch_where(weights):
    log_p = weights.masked_fill(weights == 0, 1.0).log()
    return -(weights * log_p).sum(-1) / math.log(weights.shape[-1])


# -- catch a monitor that takes one mean ---------------------------------------------------------

expose_mean_entropy = Exercise(
    "training.expose_mean_entropy",
    kind="catch",
    title="Catch a calm monitor",
    statement="""
A head has *collapsed* when the mean entropy of its rows, divided by $\\ln S$, is below 0.1. A
monitor should raise an alarm if **any** head has. Somebody's monitor takes the mean over all heads
at once, and compares that with 0.1.

Write `expose_mean_entropy()`, which returns `weights` $(H, L, S)$, one array of rows that each sum
to 1, on which the two disagree.
""",
    link=MEAN,
    hints=("How many heads have to collapse for the mean to notice?",),
    reason="One collapsed head among many healthy ones hardly moves their mean. Log per head, and"
    " look at the smallest.",
    question="Is there an input on which somebody's monitor raises an alarm and the right one does"
    " not?",
)


def head_entropies(weights):
    p = np.asarray(weights, float)
    rows = -(p * safe_log(p)).sum(axis=-1) / np.log(p.shape[-1])
    return rows.mean(axis=-1)


def are_rows(weights):
    p = np.asarray(weights, float)
    return p.ndim == 3 and bool((p >= 0).all()) and np.allclose(p.sum(axis=-1), 1)


@expose_mean_entropy.inputs
def _(rng, H=3, L=4, S=5):
    return {"weights": weights_of(rng, H, L, S)}


@expose_mean_entropy.model
def _(weights):
    return bool((head_entropies(weights) < 0.1).any())


@expose_mean_entropy.black_box
def _(weights):
    return bool(head_entropies(weights).mean() < 0.1)


@expose_mean_entropy.program(
    "catch.no_weights",
    "These are not weights of heads: expected (H, L, S), nothing negative, and rows that sum to 1.",
    hint="Make rows with a softmax, or take rows of an identity matrix.",
    link=MEAN,
    when=lambda weights: not are_rows(weights),
)
def _():
    return np.ones((2, 3, 4))


@expose_mean_entropy.program(
    "catch.one_head",
    "With one head the mean over heads is that head: both monitors agree.",
    hint="Add a head of another kind.",
    link=MEAN,
    when=lambda weights: are_rows(weights) and len(weights) == 1,
)
def _():
    return np.eye(4)[None]


@expose_mean_entropy.program(
    "catch.none_collapsed",
    "No head has collapsed on your input, so nobody raises an alarm.",
    hint="Let one head put all its weight on one key.",
    link=MEAN,
    when=lambda weights: (
        are_rows(weights) and len(weights) > 1 and not (head_entropies(weights) < 0.1).any()
    ),
)
def _():
    return np.full((3, 2, 4), 0.25)


@expose_mean_entropy.program(
    "catch.nearly_all_collapsed",
    "So many heads have collapsed on your input that the mean is below 0.1 as well: both raise an"
    " alarm.",
    hint="Leave the other heads healthy.",
    link=MEAN,
    when=lambda weights: (
        are_rows(weights) and len(weights) > 1 and head_entropies(weights).mean() < 0.1
    ),
)
def _():
    return np.stack([np.eye(4), np.eye(4)])


@expose_mean_entropy.solution
def expose_mean_entropy_solution():
    collapsed, healthy = np.eye(4), np.full((4, 4), 0.25)
    return np.stack([collapsed, healthy, healthy])


@expose_mean_entropy.solution
def expose_mean_entropy_random():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(4, 6, 8))
    scores[2] *= 1000
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# -- the largest score of each head --------------------------------------------------------------

largest_score = Exercise(
    "training.largest_score",
    kind="fix",
    title="Fix a log of the largest score",
    statement="""
`largest_score(scores, mask)` should return, for each head, the largest score that a query gives to
a key it may attend to. `scores` is $(B, H, L, S)$, `mask` is $(B, 1, L, S)$ with True = may attend,
and every head has something to attend to; the result is $(H)$.

The function below went unnoticed for long, as scores are mostly positive somewhere. Repair it.
""",
    link=FILL,
    goals={
        "fill": "hidden scores do not count",
        "axes": "one number for each head",
        "read": "the largest score, sign and all",
    },
    backends=("numpy", "torch"),
    hints=("What does it return for a head whose scores are all -5?",),
    reason="Whatever stands in for a hidden score must never be the largest. 0 is, for a head whose"
    " scores are all negative; -∞ never is.",
    question="What would you log to see that scores spread out, wherever they lie? (A shift changes"
    " no weight.)",
)


@largest_score.stub
def largest_score_stub(scores, mask):
    """The largest score of each head among those that mask allows: (H,)."""
    return np.where(mask, scores, 0).max(axis=(0, 2, 3))


@largest_score.inputs
def _(rng, B=2, H=3, L=5, S=6):
    mask = rng.random((B, 1, L, S)) < 0.6
    mask[..., 0] = True
    return {"scores": normal(rng, B, H, L, S, std=3), "mask": mask}


largest_score.probe("a small batch", B=2, H=3, L=2, S=5)
largest_score.probe("a larger batch", seed=1, B=3, H=2, L=5, S=7)
largest_score.probe("as many heads as samples", seed=2, B=3, H=3, L=4, S=6)


@largest_score.special("heads whose scores are all negative", B=2, H=3, L=3, S=4)
def _():
    rng = np.random.default_rng(5)
    mask = rng.random((2, 1, 3, 4)) < 0.5
    mask[..., 1] = True
    scores = -3 - np.abs(normal(rng, 2, 3, 3, 4, std=3))
    return {"scores": scores, "mask": mask}


@largest_score.special("the largest numbers are hidden", B=2, H=3, L=3, S=4)
def _():
    rng = np.random.default_rng(6)
    mask = np.broadcast_to(np.tri(3, 4, dtype=bool), (2, 1, 3, 4)).copy()
    scores = normal(rng, 2, 3, 3, 4) + np.where(mask, 0, 40)
    return {"scores": scores, "mask": mask}


@largest_score.model
def _(scores, mask, *, fill=-np.inf, axes=(0, 2, 3), read=lambda s, axes: s.max(axis=axes)):
    return read(np.where(mask, scores, fill) if fill is not None else scores, axes)


largest_score.fault(
    "monitor.filled_with_zero",
    "Hidden scores count as 0. A head whose scores are all negative is said to have 0.",
    why="0 is a score like any other.",
    hint="Which number is never the largest?",
    hidden="a positive score in every head",
    link=FILL,
    fill=0.0,
)
largest_score.fault(
    "monitor.mask_ignored",
    "Hidden scores count: you take the largest of all scores.",
    why="A hidden score never reached the softmax; its size says nothing.",
    hint="Where does your function use the mask?",
    hidden="the largest score is not hidden",
    link=FILL,
    fill=None,
)


@largest_score.program(
    "monitor.mask_inverted",
    "You look at the scores that are hidden: True means *may attend*.",
    why="Libraries differ in this; this course keeps to one meaning.",
    hint="What does True mean in the mask?",
    link=FILL,
)
def _(scores, mask):
    return np.where(mask, -np.inf, scores).max(axis=(0, 2, 3))


largest_score.fault(
    "monitor.over_heads",
    "You return a number for each sample; a number for each head is asked for.",
    why="Heads collapse one at a time.",
    hint="Which axis holds the heads?",
    link=MEAN,
    axes=(1, 2, 3),
)
largest_score.fault(
    "monitor.batch_kept",
    "You keep the batch axis: (B, H). The largest over the batch is asked for.",
    hint="Which axes must disappear?",
    link=FILL,
    axes=(2, 3),
)
largest_score.fault(
    "monitor.over_everything",
    "You return one number for all heads together.",
    why="Heads collapse one at a time.",
    hint="Which axis must stay?",
    link=MEAN,
    axes=None,
)
largest_score.fault(
    "monitor.absolute",
    "You take the largest absolute value: hidden scores became ±∞, or a very negative score"
    " counts.",
    why="A very negative score gives a weight near 0, like any other low one.",
    hint="What does your function say of the scores -9 and 1?",
    link=FILL,
    read=lambda s, axes: np.abs(s).max(axis=axes),
)
largest_score.fault(
    "monitor.smallest",
    "You take the smallest score.",
    hint="Which end of the scores takes the weight?",
    link=FILL,
    read=lambda s, axes: s.min(axis=axes),
)


@largest_score.program(
    "monitor.masked_by_product",
    "You multiply the scores by the mask, so hidden scores count as 0 and the largest of their"
    " absolute values is taken.",
    why="0 is a score like any other, and a very negative score gives a weight near 0.",
    hint="Which number is never the largest?",
    link=FILL,
)
def _(scores, mask):
    return np.abs(scores * mask).max(axis=(0, 2, 3))


@largest_score.solution
def largest_score_solution(scores, mask):
    return np.where(mask, scores, -np.inf).max(axis=(0, 2, 3))


@largest_score.solution("The maximum told where to look.")
def largest_score_where(scores, mask):
    allowed = np.broadcast_to(mask, scores.shape)
    return scores.max(axis=(0, 2, 3), where=allowed, initial=-np.inf)


@largest_score.solution(shown=False)
def largest_score_loop(scores, mask):
    return np.array([scores[:, h][mask[:, 0]].max() for h in range(scores.shape[1])])


@largest_score.solution(shown=False)
def largest_score_finite_fill(scores, mask):
    return np.where(mask, scores, -1e30).max(axis=0).max(axis=-1).max(axis=-1)


@largest_score.solution(backend="torch")
def largest_score_torch(scores, mask):
    return scores.masked_fill(~mask, float("-inf")).amax(dim=(0, 2, 3))


@largest_score.solution(backend="torch", shown=False)
def largest_score_torch_flat(scores, mask):
    hidden = scores.where(mask, scores.new_tensor(float("-inf")))
    return hidden.transpose(0, 1).flatten(1).max(dim=1).values


# -- scores of normed vectors --------------------------------------------------------------------

normed_scores = Exercise(
    "training.normed_scores",
    kind="implement",
    title="Norm queries and keys",
    statement="""
Write `normed_scores(q, k)`: each query and each key is divided by its root mean square
$\\sqrt{\\tfrac1{d_k}\\sum_i x_i^2}$, and then $\\hat Q \\hat K^\\top/\\sqrt{d_k}$ as usual.

`q` is $(\\dots, L, d_k)$ and `k` is $(\\dots, S, d_k)$; the result is $(\\dots, L, S)$. No learned
gain, and no constant under the root.
""",
    link=QK_NORM,
    goals={
        "norm": "each vector divided by its root mean square",
        "who": "queries and keys",
        "factor": "2 scale: by one over the root of d_k",
    },
    backends=("numpy", "torch"),
    hints=("How long is a vector after the norm? And how large can a score be?",),
    reason="A normed vector has length √d_k. A product of two is at most d_k, and after the scale"
    " at most √d_k, however the matrices grow.",
    question="Models multiply by a learned gain as well. What would be out of reach without it?",
)


@normed_scores.stub
def normed_scores_stub(q, k):
    """Scaled scores of q (..., L, d_k) and k (..., S, d_k), each vector normed: (..., L, S)."""
    raise NotImplementedError


@normed_scores.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    lead = (B, H) if H > 1 else ()
    return {"q": normal(rng, *lead, L, d_k, std=3) + 0.5, "k": normal(rng, *lead, S, d_k) - 0.3}


normed_scores.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6)
normed_scores.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7)
normed_scores.probe("as many heads as samples", B=3, H=3, L=4, S=2, d_k=5)


def rms_of(x, axis=-1):
    return np.sqrt((x**2).mean(axis=axis, keepdims=True))


@normed_scores.model
def _(
    q,
    k,
    *,
    norm=lambda x: x / rms_of(x),
    who=(True, True),
    factor=lambda d: d**-0.5,
):
    q = norm(q) if who[0] else q
    k = norm(k) if who[1] else k
    return q @ k.swapaxes(-1, -2) * factor(q.shape[-1])


normed_scores.fault(
    "norm.length_for_rms",
    "You divide by the length of the vector, and scale as well. That is √d_k too much for each of"
    " the two: your scores are the cosine divided by √d_k, hardly different from 0.",
    why="A root mean square is the length divided by √d_k. Cosines need a factor above 1, not a"
    " scale below.",
    hint="How large can your largest score be?",
    link=NORM,
    norm=lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True),
)
normed_scores.fault(
    "norm.layer_norm",
    "You subtract the mean of each vector first. That is a LayerNorm; only the size is to be"
    " normed.",
    why="Both are in use. This exercise asks for the root mean square.",
    hint="Is anything subtracted in the formula?",
    hidden="vectors with mean 0",
    link=NORM,
    norm=lambda x: (
        (x - x.mean(axis=-1, keepdims=True)) / rms_of(x - x.mean(axis=-1, keepdims=True))
    ),
)
normed_scores.fault(
    "norm.over_tokens",
    "You take the root mean square over the tokens, one for each component.",
    why="Each query is to be normed by itself; yours depends on its neighbours.",
    hint="Which axis holds the components of one query?",
    link=NORM,
    norm=lambda x: x / rms_of(x, -2),
)
normed_scores.fault(
    "norm.over_everything",
    "You divide by one root mean square, that of the whole array.",
    why="A long key then stays longer than the others.",
    hint="Give the mean an axis, and keep it.",
    link=NORM,
    norm=lambda x: x / np.sqrt((x**2).mean()),
)
normed_scores.fault(
    "norm.mean_square",
    "You divide by the mean square; its root is missing.",
    why="A vector twice as long comes out half as long.",
    hint="Norm a vector twice. Does the second time change anything?",
    link=NORM,
    norm=lambda x: x / (x**2).mean(axis=-1, keepdims=True),
)
normed_scores.fault(
    "norm.multiplied",
    "You multiply by the root mean square; divide by it.",
    why="Long vectors become longer still.",
    hint="How long is a vector after your norm?",
    link=NORM,
    norm=lambda x: x * rms_of(x),
)
normed_scores.fault(
    "norm.sum_for_mean",
    "You take the root of the sum of absolute values, or norm by them: use the root of the mean of"
    " the squares.",
    why="Sizes in this course are root mean squares.",
    hint="Compare your divisor with the formula.",
    link=NORM,
    norm=lambda x: x / np.abs(x).mean(axis=-1, keepdims=True),
)
normed_scores.fault(
    "norm.queries_only",
    "You norm the queries and leave the keys as they are.",
    why="One long key is enough to take all the weight.",
    hint="Does your score change when a key is made twice as long?",
    link=NORM,
    who=(True, False),
)
normed_scores.fault(
    "norm.keys_only",
    "You norm the keys and leave the queries as they are.",
    why="A long query makes all its scores large, and its weights one-hot.",
    hint="Does your score change when a query is made twice as long?",
    link=NORM,
    who=(False, True),
)
normed_scores.fault(
    "norm.none",
    "Nothing is normed.",
    hint="Does your score change when a query is made twice as long?",
    link=NORM,
    norm=lambda x: x,
    who=(False, False),
)
normed_scores.fault(
    "scale.forgotten",
    "Your scores are not scaled by 1/√d_k.",
    why="Normed vectors have length √d_k, so unscaled scores reach up to d_k.",
    hint="How large can your largest score be?",
    hidden="d_k = 1",
    link=QK_NORM,
    factor=lambda d: 1.0,
)
normed_scores.fault(
    "scale.d_k",
    "You divide by d_k, which makes the scores cosines. The formula divides by √d_k.",
    why="Cosines lie between -1 and 1: among 100 keys none can get more than 7 % of the weight.",
    hint="How large can your largest score be?",
    hidden="d_k = 1",
    link=QK_NORM,
    factor=lambda d: 1.0 / d,
)
normed_scores.add(
    Fit(
        "scale.factor",
        "factor",
        "Your scores are multiplied by {found} (here {value}); the formula multiplies them by"
        " 1/√d_k (here {right}).",
        right=lambda dims: dims["d_k"] ** -0.5,
        setting=lambda value: lambda d: value,
        why="One factor explains all your numbers, and it is not the one in the formula.",
        hint="Write down which number you multiply by.",
        link=QK_NORM,
    )
)


@normed_scores.solution
def normed_scores_solution(q, k):
    q = q / np.sqrt((q**2).mean(axis=-1, keepdims=True))
    k = k / np.sqrt((k**2).mean(axis=-1, keepdims=True))
    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5


@normed_scores.solution("As cosines, times √d_k: the same.")
def normed_scores_cosine(q, k):
    lengths = np.linalg.norm(q, axis=-1)[..., :, None] * np.linalg.norm(k, axis=-1)[..., None, :]
    return q @ k.swapaxes(-1, -2) / lengths * q.shape[-1] ** 0.5


@normed_scores.solution(shown=False)
def normed_scores_einsum(q, k):
    def norm(x):
        return x * np.einsum("...d,...d->...", x, x)[..., None] ** -0.5

    return np.einsum("...ld,...sd->...ls", norm(q), norm(k)) * math.sqrt(q.shape[-1])


@normed_scores.solution(backend="torch")
def normed_scores_torch(q, k):
    q = q / q.square().mean(dim=-1, keepdim=True).sqrt()
    k = k / k.square().mean(dim=-1, keepdim=True).sqrt()
    return q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5


@normed_scores.solution(backend="torch", shown=False)
def normed_scores_torch_normalize(q, k):
    import torch.nn.functional as F

    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * q.shape[-1] ** 0.5


# -- what the bound costs ------------------------------------------------------------------------

largest_normed_weight = Exercise(
    "training.largest_normed_weight",
    kind="predict",
    title="What the bound costs",
    statement="""
With normed queries and keys and no gain, scores lie between $-\\sqrt{d_k}$ and $\\sqrt{d_k}$. Let
$d_k = 16$ and let there be 1000 keys.

What is the largest weight that one of them can get? Set `largest_normed_weight` to your number. The
check computes the softmax of the most favourable row; 3 % is close enough.
""",
    link=QK_NORM,
    tolerance=0.03,
    hints=("Which score should the best key have, and which all the others?",),
    reason="The best key at +4 and all others at -4 give a gap of 8: e⁸/(e⁸ + 999) ≈ 0.75.",
    question="Which gain would the head need to reach 0.99?",
)


@largest_normed_weight.model
def _():
    q = np.ones(16)
    keys = -np.ones((1000, 16))
    keys[0] = 1.0
    scores = keys @ q / 4.0
    e = np.exp(scores - scores.max())
    return float((e / e.sum())[0])


largest_normed_weight.wrong(
    1.0,
    "bound.no_limit",
    "1 needs a gap without end, and yours is bounded: 8 at the most.",
    hint="How far apart can the best score and the others lie?",
    link=QK_NORM,
)
largest_normed_weight.wrong(
    math.exp(4) / (math.exp(4) + 999),
    "bound.others_at_zero",
    "That is right if the others score 0. They can score -4.",
    why="A key that points the other way scores -√d_k.",
    hint="How far apart can the best score and the others lie?",
    link=QK_NORM,
)
largest_normed_weight.wrong(
    math.exp(2) / (math.exp(2) + 999),
    "bound.cosines",
    "That is right for cosines, between -1 and 1. These scores reach √d_k = 4.",
    hint="How long is a normed vector?",
    link=QK_NORM,
)
largest_normed_weight.wrong(
    0.001,
    "bound.uniform",
    "0.001 is the share of each key in a uniform row. One key can get far more.",
    hint="Which score should the best key have, and which all the others?",
    link=QK_NORM,
)
largest_normed_weight.solutions += [
    Solution("largest_normed_weight = 0.749  # exp(8) / (exp(8) + 999)\n"),
    Solution(
        "import math\n\nlargest_normed_weight = math.exp(8) / (math.exp(8) + 999)\n",
    ),
]


# -- clip a head ---------------------------------------------------------------------------------

qk_clip = Exercise(
    "training.qk_clip",
    kind="implement",
    title="Clip a head",
    statement="""
Write `qk_clip(W_q, W_k, largest, threshold)`, which returns `(W_q, W_k)`: for each head whose
largest score is above the threshold, both matrices multiplied by one number, such that this
largest score becomes the threshold. The other heads stay as they are.

`W_q` and `W_k` are $(H, d_\\text{model}, d_k)$, `largest` is $(H)$, `threshold` is a number above
0. Do not change the inputs.
""",
    link=QK_NORM,
    outputs=("W_q", "W_k"),
    goals={
        "factor": "the score of a clipped head becomes the threshold",
        "only": "heads below the threshold stay as they are",
        "who": "queries and keys share the factor alike",
    },
    backends=("numpy", "torch"),
    hints=("A score is a product of a query and a key. What does a factor c on both do to it?",),
    reason="A factor c on both matrices multiplies every score by c². So c is the root of"
    " threshold/largest, and 1 where that would be above 1.",
    question="What changes for the rows of a clipped head that were not too large?",
)


@qk_clip.stub
def qk_clip_stub(W_q, W_k, largest, threshold):
    """(W_q, W_k), clipped where a head's largest score is above the threshold.

    W_q and W_k (H, d_model, d_k), largest (H,)
    """
    raise NotImplementedError


@qk_clip.inputs
def _(rng, H=3, d_model=6, d_k=5):
    largest = rng.uniform(20, 400, size=H)
    largest[0] = rng.uniform(150, 400)
    largest[-1] = rng.uniform(20, 80)
    W_q, W_k = normal(rng, H, d_model, d_k), normal(rng, H, d_model, d_k)
    return {"W_q": W_q, "W_k": W_k, "largest": largest, "threshold": 100.0}


qk_clip.probe("two heads", H=2, d_model=5, d_k=3)
qk_clip.probe("more heads", seed=1, H=5, d_model=7, d_k=6)
qk_clip.probe("as many heads as components", seed=2, H=6, d_model=6, d_k=6)


@qk_clip.special("another threshold", H=3, d_model=4, d_k=5)
def _():
    rng = np.random.default_rng(8)
    return {
        "W_q": normal(rng, 3, 4, 5),
        "W_k": normal(rng, 3, 4, 5),
        "largest": np.array([55.0, 3.0, 31.0]),
        "threshold": 30.0,
    }


@qk_clip.model
def _(
    W_q,
    W_k,
    largest,
    threshold,
    *,
    ratio=lambda largest, threshold: threshold / largest,
    power=0.5,
    only=lambda c: np.minimum(c, 1.0),
    who=(1.0, 1.0),
):
    c = only(ratio(largest, threshold))[:, None, None] ** power
    return W_q * c ** who[0], W_k * c ** who[1]


for id, says, why, hint, switches in (
    (
        "clip.no_root",
        "You multiply both matrices by threshold/largest: the scores become the threshold times"
        " that ratio once more, far too small.",
        "The factor enters a score twice, once through the query and once through the key.",
        "What does a factor c on both matrices do to a score?",
        {"power": 1.0},
    ),
    (
        "clip.queries_only",
        "You put the root of the factor on W_q and leave W_k as it is.",
        "With the root on one side only, the largest score stays above the threshold.",
        "Which of the two matrices did you change?",
        {"who": (1.0, 0.0)},
    ),
    (
        "clip.keys_only",
        "You put the root of the factor on W_k and leave W_q as it is.",
        "With the root on one side only, the largest score stays above the threshold.",
        "Which of the two matrices did you change?",
        {"who": (0.0, 1.0)},
    ),
    (
        "clip.all_on_queries",
        "You put the whole factor on W_q and none on W_k. The scores are right, but both matrices"
        " are to share it alike.",
        "Shared alike, neither of the two shrinks more than the other from clip to clip.",
        "Multiply both by one number.",
        {"who": (2.0, 0.0)},
    ),
    (
        "clip.enlarges",
        "You also enlarge the heads that were below the threshold.",
        "A clip only ever makes smaller; this drives every head up to the threshold.",
        "What is your factor for a head whose largest score is 20?",
        {"only": lambda c: c},
    ),
    (
        "clip.worst_head_for_all",
        "You clip all heads by the factor of the worst one.",
        "Heads that are in order should stay as they are.",
        "How many factors are there?",
        {"only": lambda c: np.full_like(c, min(c.min(), 1.0))},
    ),
    (
        "clip.turned_round",
        "Your factor is largest/threshold: heads that are too large are enlarged.",
        "A score above the threshold must become smaller.",
        "Is your factor above or below 1?",
        {"ratio": lambda largest, threshold: largest / threshold, "only": lambda c: (
            np.maximum(c, 1.0)
        )},
    ),
    (
        "clip.wrong_heads",
        "You clip the heads that are *below* the threshold and leave the others.",
        "The comparison is turned round.",
        "Which heads are too large?",
        {"only": lambda c: np.maximum(c, 1.0)},
    ),
    (
        "clip.fixed_number",
        "Your threshold is always 100, whatever is given.",
        "100 is the number of one published model.",
        "Where does your function use its last argument?",
        {"ratio": lambda largest, threshold: 100.0 / largest},
    ),
):  # fmt: skip
    qk_clip.fault(id, says, why=why, hint=hint, link=CLIP, **switches)


@qk_clip.program(
    "clip.entries",
    "You clip the entries of the matrices to the threshold. What is to be bounded are the scores.",
    why="An entry of a matrix is nowhere near a hundred; the sum of many products is.",
    hint="What is `largest` the largest of?",
    link=CLIP,
)
def _(W_q, W_k, largest, threshold):
    return np.clip(W_q, -threshold, threshold), np.clip(W_k, -threshold, threshold)


@qk_clip.solution
def qk_clip_solution(W_q, W_k, largest, threshold):
    factor = np.minimum(threshold / largest, 1.0) ** 0.5  # (H,)
    return W_q * factor[:, None, None], W_k * factor[:, None, None]


@qk_clip.solution("With a condition, head by head.")
def qk_clip_where(W_q, W_k, largest, threshold):
    factor = np.where(largest > threshold, np.sqrt(threshold / largest), 1.0)
    return np.einsum("h,hmd->hmd", factor, W_q), np.einsum("h,hmd->hmd", factor, W_k)


@qk_clip.solution(shown=False)
def qk_clip_loop(W_q, W_k, largest, threshold):
    W_q, W_k = W_q.copy(), W_k.copy()
    for h in range(len(largest)):
        if largest[h] > threshold:
            W_q[h] *= math.sqrt(threshold / largest[h])
            W_k[h] *= math.sqrt(threshold / largest[h])
    return W_q, W_k


@qk_clip.solution(backend="torch")
def qk_clip_torch(W_q, W_k, largest, threshold):
    factor = (threshold / largest).clamp(max=1.0).sqrt()[:, None, None]
    return W_q * factor, W_k * factor


@qk_clip.solution(backend="torch", shown=False)
def qk_clip_torch_where(W_q, W_k, largest, threshold):
    over = (largest / threshold).clamp(min=1.0).rsqrt().view(-1, 1, 1)
    return W_q * over, over * W_k


# -- which piece can go --------------------------------------------------------------------------

which_piece = Exercise(
    "training.which_piece",
    kind="quiz",
    title="Which piece can go?",
    statement="""
"Remove any piece of scaled dot-product attention and it becomes untrainable." In the recall
experiment, which change makes the task impossible to learn?
""",
    link=PIECES,
)
which_piece.option(
    "A",
    "The scale is left out (d_k = 64).",
    "It learns, several times later. T5 has no scale either, but smaller weights to start from.",
)
which_piece.option(
    "B",
    "The softmax is replaced by a sigmoid of each score, shifted by ln S.",
    "It learns as fast as with the softmax.",
)
which_piece.option(
    "C",
    "The softmax is left out: the scores themselves are the weights.",
    "It learns too, a little later. Queries and keys become such that wrong keys score nearly 0.",
)
which_piece.option(
    "D",
    "All keys get the same weight, whatever the scores.",
    "Yes. The answer depends on which key was asked for, and uniform weights do not. A weight that"
    " depends on query and key is the one piece that cannot go.",
    right=True,
)


EXERCISES = (
    without_the_scale,
    entropy_share,
    expose_mean_entropy,
    largest_score,
    normed_scores,
    largest_normed_weight,
    qk_clip,
    which_piece,
)
