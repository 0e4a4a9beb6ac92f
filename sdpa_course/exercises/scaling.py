"""Graded exercises of the chapter on scaling."""

from __future__ import annotations

import math

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution
from sdpa_course.grading.properties import rows_sum_to_one

CHAPTER = "02-scaling"
WRONG_ROOT = f"{CHAPTER}#the-wrong-root"
NO_SCALE = f"{CHAPTER}#no-scale-at-all"
TWICE = f"{CHAPTER}#scaled-twice"
WRONG_WAY = f"{CHAPTER}#the-wrong-way-round"
PRECEDENCE = f"{CHAPTER}#operator-precedence"
LENGTH = f"{CHAPTER}#a-scale-that-follows-the-length"
TYPED_IN = f"{CHAPTER}#a-number-typed-in"
AXIS = f"{CHAPTER}#softmax-over-the-wrong-axis"

# A factor is what multiplies the scores: a function of (q, k, v), of which v may be None.


def right_factor(q, k, v=None):
    return q.shape[-1] ** -0.5


def padded(d):
    return 8 * math.ceil(d / 8)


def add_wrong_factors(exercise: Exercise, has_values: bool) -> None:
    """The wrong scales that people write, as settings of the switch `factor`."""
    exercise.fault(
        "scale.forgotten",
        "Your scores are not scaled: you return Q Kᵀ, or weights made from it.",
        why="A score is a sum of d_k products, so its standard deviation is √d_k. A factor that"
        " stands outside the exponential cancels when the weights are normalised, which comes to"
        " the same.",
        hint="Which number takes the size of a sum of d_k products back to the size of one of"
        " them? Apply it to the scores, before the exponential.",
        hidden="d_k = 1",
        cite="huggingface/blog PR#2893",
        link=NO_SCALE,
        factor=lambda q, k, v=None: 1.0,
    )
    exercise.fault(
        "scale.sqrt_d_model",
        "You divide by √d_model, the width of all heads together; each score was summed over the"
        " d_k numbers of one head.",
        why="With H heads your scores are √H times too small, so the weights are too flat. A"
        " model still trains, which is why this lives for years.",
        hint="How many products does one entry of q @ kᵀ add up, in one head?",
        hidden="one head",
        cite="lucidrains/vit-pytorch#65; karpathy/ng-video-lecture PR#6; pbloem/former@0b15530",
        link=WRONG_ROOT,
        factor=lambda q, k, v=None: (heads(q) * q.shape[-1]) ** -0.5,
    )
    exercise.fault(
        "scale.d_k",
        "You divide by d_k and not by its square root. Either the root is missing, or the scale"
        " √d_k is applied twice.",
        why="The standard deviation grows as √d_k; dividing by d_k leaves scores of size 1/√d_k"
        " and nearly uniform weights. (1/d_k is a choice some models make on purpose; this"
        " exercise asks for 1/√d_k.)",
        hint="Is the variance of a score d_k, or its standard deviation? Does anything scale the"
        " query before the product as well?",
        hidden="d_k = 1",
        cite="huggingface/transformers PR#38290; AI-Hypercomputer/maxtext#3138",
        link=TWICE,
        factor=lambda q, k, v=None: 1.0 / q.shape[-1],
    )
    exercise.fault(
        "scale.multiplied",
        "You multiply the scores by √d_k, or divide them by 1/√d_k, which is the same. They"
        " should be divided by √d_k.",
        why="The scores come out d_k times too large and the softmax turns them into almost"
        " one-hot rows.",
        hint="Is your factor larger or smaller than 1? Scores should get smaller.",
        hidden="d_k = 1",
        cite="esceptico/perceiver-io#9",
        link=WRONG_WAY,
        factor=lambda q, k, v=None: q.shape[-1] ** 0.5,
    )
    exercise.fault(
        "scale.precedence",
        "You divide by d_k/2: in Python, `d ** 1/2` means `(d ** 1)/2`.",
        why="Power binds tighter than division. For d = 4, and only there, d/2 happens to be √d.",
        hint="Put the exponent in brackets, or write it as a decimal number.",
        hidden="d_k = 4",
        cite="mkara44/transunet_pytorch#4",
        link=PRECEDENCE,
        factor=lambda q, k, v=None: 2.0 / q.shape[-1],
    )
    exercise.fault(
        "scale.precedence_inline",
        "You multiply by 1/(2·d_k): in Python, `d ** -1/2` means `(d ** -1)/2`, and `s / d **"
        " 1/2` means `(s / d)/2`.",
        why="Power binds tighter than division, and division goes from left to right.",
        hint="Put the exponent in brackets, or write it as a decimal number.",
        cite="mkara44/transunet_pytorch#4",
        link=PRECEDENCE,
        factor=lambda q, k, v=None: 0.5 / q.shape[-1],
    )
    exercise.fault(
        "scale.precedence_multiplied",
        "You multiply by d_k/2: `d ** 1/2` means `(d ** 1)/2` in Python, and the scores should be"
        " divided by the root, not multiplied.",
        why="Power binds tighter than division; and scores that a long sum made large must get"
        " smaller.",
        hint="Two things: the brackets of the exponent, and the direction.",
        cite="mkara44/transunet_pytorch#4",
        link=PRECEDENCE,
        factor=lambda q, k, v=None: q.shape[-1] / 2.0,
    )
    exercise.fault(
        "scale.sqrt_keys",
        "You divide by √S, the root of the number of keys; the scores came from sums of d_k"
        " numbers.",
        why="The number of keys says how many scores there are, not how large each one is. Your"
        " result changes when a key is added.",
        hint="Which axis of q and k does the product sum over?",
        hidden="S = d_k",
        cite="lucidrains/denoising-diffusion-pytorch#265 (the confusion)",
        link=LENGTH,
        factor=lambda q, k, v=None: k.shape[-2] ** -0.5,
    )
    exercise.fault(
        "scale.sqrt_queries",
        "You divide by √L, the root of the number of queries (axis -2 of q); the scores came from"
        " sums of d_k numbers (axis -1).",
        why="The same query would get other weights in a longer batch of queries.",
        hint="Which axis of q does the product sum over?",
        hidden="L = d_k",
        cite="graphcore-research/unit-scaling#86 (the confusion)",
        link=LENGTH,
        factor=lambda q, k, v=None: q.shape[-2] ** -0.5,
    )
    exercise.fault(
        "scale.sqrt_axis_1",
        "You divide by the root of q.shape[1]; with heads in front, that axis holds the heads.",
        why="Counted from the front, an axis moves when a batch or head axis is added. Counted"
        " from the back, -1 is always d_k.",
        hint="Count the axis from the back.",
        hidden="no leading axes",
        link=LENGTH,
        factor=lambda q, k, v=None: q.shape[1] ** -0.5,
    )
    exercise.fault(
        "scale.hard_coded_eight",
        "You divide by 8, whatever d_k is. That is √d_k only for d_k = 64.",
        why="8 is the value in the paper's base model; the formula is √d_k.",
        hint="Take the size from q itself.",
        hidden="d_k = 64",
        link=TYPED_IN,
        factor=lambda q, k, v=None: 0.125,
    )
    exercise.fault(
        "scale.padded_size",
        "You take the root of d_k rounded up to a multiple of 8; the padding adds nothing to the"
        " sum.",
        why="Zeros added to make a size convenient for hardware do not change a score, so they"
        " must not change its scale.",
        hint="Use the size before padding.",
        hidden="d_k a multiple of 8",
        cite="tile-ai/tilelang-ascend PR#1670",
        link=WRONG_ROOT,
        factor=lambda q, k, v=None: padded(q.shape[-1]) ** -0.5,
    )
    exercise.fault(
        "scale.lengths",
        "You divide each score by |q|·|k|: that is the cosine, which also forgets how long the"
        " vectors are.",
        why="√d_k is the *typical* length of a query with components of variance 1. Dividing by"
        " the actual lengths is another operation, used with a learned temperature as QK-norm.",
        hint="The divisor is one number for the whole layer.",
        link=WRONG_ROOT,
        factor=lambda q, k, v=None: 1 / (lengths(q)[..., :, None] * lengths(k)[..., None, :]),
    )
    exercise.fault(
        "scale.measured_std",
        "You divide by the standard deviation that you measure in the scores; the formula divides"
        " by the constant √d_k.",
        why="A measured divisor makes every weight depend on all other queries in the call.",
        hint="The divisor depends on a shape, not on the numbers.",
        link=WRONG_ROOT,
        factor=lambda q, k, v=None: 1 / (q @ k.swapaxes(-1, -2)).std(),
    )
    if has_values:
        exercise.fault(
            "scale.sqrt_d_v",
            "You divide by √d_v; the scores came from d_k numbers.",
            why="The values take no part in the scores. Where d_v = d_k nobody notices.",
            hint="Which of q, k and v does a score depend on?",
            hidden="d_v = d_k",
            cite="juho-lee/set_transformer#18",
            link=WRONG_ROOT,
            factor=lambda q, k, v: v.shape[-1] ** -0.5,
        )
    exercise.add(
        Fit(
            "scale.factor",
            "factor",
            "Your scores are multiplied by {found} (here {value}); the formula multiplies them by"
            " 1/√d_k (here {right}).",
            right=lambda dims: dims["d_k"] ** -0.5,
            setting=lambda value: lambda q, k, v=None: value,
            why="One factor explains all your numbers, and it is not the one in the formula.",
            hint="Write down which number you multiply by, for the sizes of the example.",
            link=WRONG_ROOT,
        )
    )


def heads(q):
    return q.shape[-3] if q.ndim > 2 else 1


def lengths(x):
    return np.sqrt((x * x).sum(-1))


def transposed(k):
    return k.swapaxes(-1, -2)


def reshaped(k):
    return k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])


def softmax(scores, axis=-1):
    exps = np.exp(scores - scores.max(axis, keepdims=True))
    return exps / exps.sum(axis, keepdims=True)


def sum_over_queries(scores, axis=-1):
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-2, keepdims=True)


def add_wrong_keys(exercise: Exercise) -> None:
    """The wrong ways to turn the keys, as settings of the switch `keys`."""
    exercise.fault(
        "scores.key_reshaped",
        "You reshape k to (…, d_k, S) where it must be transposed: the numbers of one key end up"
        " in several columns.",
        why="A reshape keeps the order in memory and only cuts it at other places.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        cite="hyunwoongko/transformer, first versions",
        link="01-dot_product",
        keys=reshaped,
    )
    exercise.fault(
        "scores.all_axes_reversed",
        "`.T` reverses every axis of k, the batch and the heads too.",
        why="With two axes that is a transpose; with four the shapes no longer fit.",
        hint="Swap only the last two axes.",
        hidden="two axes",
        cite="theorempath.com, attention-shape-trace",
        link="01-dot_product",
        keys=lambda k: k.T,
    )


def tokens(rng, *shape, std=1.0):
    return rng.normal(size=shape) * std


# -- predict the variance ------------------------------------------------------------------------

score_variance_of_uniform = Exercise(
    "scaling.score_variance_of_uniform",
    kind="predict",
    title="Predict a variance",
    statement="""
Every component of $q$ and $k$ is drawn independently and uniformly from $[-1, 1]$, and
$d_k = 48$.

What is the variance of the **unscaled** score $q\\cdot k$? Set `score_variance_of_uniform` to
your number. The check draws 20,000 pairs and measures it; 5 % is close enough.
""",
    link=f"{CHAPTER}#the-variance-of-a-score",
    tolerance=0.05,
    hints=("Start with one product q_i k_i of two independent numbers with mean 0.",),
    reason="A uniform number on [-1, 1] has variance 1/3. A product of two independent numbers"
    " with mean 0 has the product of their variances, 1/9. The score is a sum of 48 independent"
    " such products: 48/9.",
    question="What would √d_k have to become for the scaled score to have variance 1 here?",
)


@score_variance_of_uniform.model
def _():
    rng = np.random.default_rng(0)
    q, k = rng.uniform(-1, 1, size=(2, 20_000, 48))
    return float((q * k).sum(axis=-1).var())


score_variance_of_uniform.wrong(
    48.0,
    "variance.unit_components",
    "48 is right for components of variance 1. A uniform number on [-1, 1] has variance 1/3.",
    why="Var(q·k) = d_k · Var(q_i) · Var(k_i); the last two factors are 1 only by assumption.",
    hint="What is the variance of a uniform number on [-1, 1]?",
    link=f"{CHAPTER}#what-initialisations-give",
)
score_variance_of_uniform.wrong(
    16.0,
    "variance.one_factor",
    "16 = 48/3 counts the variance of one of the two factors. A product has the product of both:"
    " 1/3 · 1/3.",
    why="Both q_i and k_i are random, and both have variance 1/3.",
    hint="Var(q_i k_i) = Var(q_i) · Var(k_i) for independent numbers with mean 0.",
    link=f"{CHAPTER}#the-formula",
)
score_variance_of_uniform.wrong(
    math.sqrt(48 / 9),
    "variance.standard_deviation",
    "That is the standard deviation. The variance is its square.",
    hint="Square it.",
    link=f"{CHAPTER}#the-formula",
)
score_variance_of_uniform.wrong(
    1.0,
    "variance.always_one",
    "1 would be the variance after a division by the right number; the question is about the"
    " unscaled score.",
    why="And √d_k is the right number only where the components have variance 1.",
    hint="Nothing has been divided yet.",
    link=f"{CHAPTER}#the-formula",
)
score_variance_of_uniform.wrong(
    1 / 9,
    "variance.after_scaling",
    "1/9 is the variance of one product, or of the score after division by √48. The unscaled"
    " score is a sum of 48 such products.",
    hint="How many products are added?",
    link=f"{CHAPTER}#the-formula",
)
score_variance_of_uniform.solutions += [
    Solution("score_variance_of_uniform = 48 * (1 / 3) * (1 / 3)\n"),
    Solution("score_variance_of_uniform = 48 / 9\n"),
]


# -- scale the scores ----------------------------------------------------------------------------

scale_scores = Exercise(
    "scaling.scale_scores",
    kind="implement",
    title="Scale the scores",
    statement="""
Write `scale_scores(q, k)`: the scores $QK^\\top/\\sqrt{d_k}$.

`q` is $(\\dots, L, d_k)$ and `k` is $(\\dots, S, d_k)$; the result is $(\\dots, L, S)$. There may
be no leading axes, or a batch axis and heads. Do not change `q` or `k`.
""",
    link=f"{CHAPTER}#the-code",
    goals={
        "keys": "1 scores: every query meets every key",
        "factor": "2 scale: by one over the root of d_k",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.scaling.scaled_scores",
        "sdpa_course.with_torch.scaling.scaled_scores",
    ),
    hints=("The product sums over the last axis of q. Its size is what you need the root of.",),
    reason="A sum of d_k independent products with variance 1 has variance d_k. Dividing by √d_k"
    " gives it variance 1.",
    question="Which of B, H, L, S could change without any score changing?",
    next="Softmax turns the scores into weights: chapter 03.",
)


@scale_scores.stub
def scale_scores_stub(q, k):
    """Scores of q (..., L, d_k) with k (..., S, d_k), divided by the root of d_k: (..., L, S)."""
    raise NotImplementedError


@scale_scores.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    lead = (B, H) if H > 1 else ()
    return {"q": tokens(rng, *lead, L, d_k, std=2), "k": tokens(rng, *lead, S, d_k)}


scale_scores.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6)
scale_scores.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7)
scale_scores.probe("as many heads as samples", B=3, H=3, L=4, S=2, d_k=11)


@scale_scores.model
def _(q, k, *, keys=transposed, factor=right_factor):
    return (q @ keys(k)) * factor(q, k)


add_wrong_factors(scale_scores, has_values=False)
add_wrong_keys(scale_scores)


@scale_scores.solution
def scale_scores_solution(q, k):
    d_k = q.shape[-1]
    return q @ k.swapaxes(-1, -2) / d_k**0.5


@scale_scores.solution("The scale folded into the query: L·d_k multiplications and not L·S.")
def scale_scores_folded(q, k):
    return (q * q.shape[-1] ** -0.5) @ k.swapaxes(-1, -2)


@scale_scores.solution(shown=False)
def scale_scores_both_sides(q, k):
    root = q.shape[-1] ** -0.25
    return (q * root) @ (k * root).swapaxes(-1, -2)


@scale_scores.solution(shown=False)
def scale_scores_einsum(q, k):
    return np.einsum("...ld,...sd->...ls", q, k) / np.sqrt(k.shape[-1])


@scale_scores.solution(shown=False)
def scale_scores_in_place(q, k):
    scores = np.matmul(q, np.swapaxes(k, -2, -1))
    scores /= math.sqrt(q.shape[-1])
    return scores


@scale_scores.solution(shown=False)
def scale_scores_loops(q, k):
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    for i in range(q.shape[-2]):
        for j in range(k.shape[-2]):
            scores[..., i, j] = (q[..., i, :] * k[..., j, :]).sum(-1) / math.sqrt(q.shape[-1])
    return scores


@scale_scores.solution(backend="torch")
def scale_scores_torch(q, k):
    return q @ k.transpose(-2, -1) / q.size(-1) ** 0.5


@scale_scores.solution(backend="torch", shown=False)
def scale_scores_torch_folded(q, k):
    return (q / math.sqrt(q.shape[-1])) @ k.mT


# -- which root ----------------------------------------------------------------------------------

which_root = Exercise(
    "scaling.which_root",
    kind="quiz",
    title="Which root?",
    statement="""
A model has $d_\\text{model} = 512$, $H = 8$ heads, $d_k = d_v = 64$, and reads $L = 100$ tokens.
The 2017 paper uses two square roots. Which sentence says what they are for?
""",
    link=f"{CHAPTER}#which-square-root",
)
which_root.option(
    "A",
    "Embeddings are divided by √512, and so are the scores.",
    "Embeddings are multiplied, not divided; and a score sums over 64 numbers of one head, not"
    " over 512.",
)
which_root.option(
    "B",
    "Embeddings are multiplied by √512; scores are divided by √64.",
    "Yes. The first makes embeddings as large as the positions that are added to them; the second"
    " undoes the growth of a sum of 64 products. They have nothing to do with each other.",
    right=True,
)
which_root.option(
    "C",
    "Scores are divided by √512 because embeddings were multiplied by √512, and the two must"
    " cancel.",
    "They do not meet: projections, and usually a normalisation, lie between them. A score is a"
    " sum over the 64 numbers of one head.",
)
which_root.option(
    "D",
    "Scores are divided by √100, since a longer text has more of them.",
    "How many scores there are does not change how large one of them is. √L would make weights"
    " depend on how many queries happen to be computed together.",
)


# -- fix the exponent ----------------------------------------------------------------------------

score_heads = Exercise(
    "scaling.score_heads",
    kind="fix",
    title="Fix a scale",
    statement="""
`score_heads(q, k)` should return the scores $QK^\\top/\\sqrt{d_k}$ of each head, `q` $(B, H, L,
d_k)$, `k` $(B, H, S, d_k)$. It was tried with $d_k = 4$ and gave the right numbers. With any
other size it does not. Repair it.
""",
    link=PRECEDENCE,
    goals={
        "keys": "1 scores: every query meets every key",
        "factor": "2 scale: by one over the root of d_k",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.scaling.scaled_scores",
        "sdpa_course.with_torch.scaling.scaled_scores",
    ),
    hints=("Print `root` for d_k = 4, 16 and 64.",),
    reason="`d ** 1/2` is `(d ** 1)/2`. Written `d ** 0.5`, `d ** (1/2)` or `math.sqrt(d)` it is"
    " a root.",
    question="For which d is d/2 the root of d? Which sizes should a test of this function avoid?",
)


@score_heads.stub
def score_heads_stub(q, k):
    """Scores (B, H, L, S) of q (B, H, L, d_k) with k (B, H, S, d_k), divided by √d_k."""
    root = q.shape[-1] ** 1 / 2
    return q @ k.swapaxes(-1, -2) / root


@score_heads.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    return {"q": tokens(rng, B, H, L, d_k, std=2), "k": tokens(rng, B, H, S, d_k)}


score_heads.probe("a small head", B=1, H=2, L=2, S=3, d_k=6)
score_heads.probe("another size", B=2, H=3, L=5, S=6, d_k=7)
score_heads.probe("an odd size", B=3, H=3, L=4, S=2, d_k=11)


@score_heads.model
def _(q, k, *, keys=transposed, factor=right_factor):
    return (q @ keys(k)) * factor(q, k)


add_wrong_factors(score_heads, has_values=False)
score_heads.faults = [fault for fault in score_heads.faults if fault.id != "scale.sqrt_axis_1"]
score_heads.fault(
    "scale.sqrt_heads",
    "You divide by √H, the root of the number of heads. A score sums over the d_k numbers of one"
    " head.",
    why="Axis 1 of (B, H, L, d_k) holds the heads.",
    hint="Count the axis from the back.",
    link=LENGTH,
    factor=lambda q, k, v=None: q.shape[1] ** -0.5,
)


@score_heads.solution
def score_heads_solution(q, k):
    root = q.shape[-1] ** 0.5
    return q @ k.swapaxes(-1, -2) / root


@score_heads.solution
def score_heads_brackets(q, k):
    root = q.shape[-1] ** (1 / 2)
    return (q / root) @ k.swapaxes(-1, -2)


@score_heads.solution(backend="torch")
def score_heads_torch(q, k):
    root = math.sqrt(q.size(-1))
    return q @ k.transpose(-2, -1) / root


@score_heads.solution(backend="torch", shown=False)
def score_heads_torch_factor(q, k):
    return (q @ k.mT) * q.shape[-1] ** -0.5


# -- from scores to output -----------------------------------------------------------------------

weighted_values = Exercise(
    "scaling.weighted_values",
    kind="implement",
    outputs=("output", "weights"),
    title="Scale, weigh, mix",
    statement="""
Write `weighted_values(q, k, v)`: attention without a mask. It returns two arrays,
`(output, weights)`:

- weights $= \\mathrm{softmax}(QK^\\top/\\sqrt{d_k})$, $(\\dots, L, S)$:
  each query's weights over the keys sum to 1;
- output $=$ weights $V$, $(\\dots, L, d_v)$.

`q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$, `v` is $(\\dots, S, d_v)$. You may use
`softmax` from `sdpa_course.with_numpy` (or `torch.softmax`), or write the exponentials yourself:
the scores here are small.
""",
    link=f"{CHAPTER}#the-code",
    goals={
        "keys": "1 scores: every query meets every key",
        "factor": "2 scale: by one over the root of d_k",
        "axis": "4 softmax: over the keys",
        "returned": "5 mix: the output, and the weights it came from",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.attention.scaled_dot_product_attention",
        "sdpa_course.with_torch.attention.scaled_dot_product_attention",
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    hints=(
        "Write the five steps as five lines, and the shape at the end of each.",
        "Each row of the weights belongs to one query. Which axis runs over the keys?",
    ),
    reason="The scale belongs to the scores, because it undoes the growth of the sum that made"
    " them; the softmax runs over the keys, because each query shares out one unit of weight"
    " among them.",
    question="Your v could have any d_v. Which of your lines would notice?",
    next="Masks and the whole operation: chapters 04 and 05.",
    properties=(rows_sum_to_one(part=1),),
)


@weighted_values.stub
def weighted_values_stub(q, k, v):
    """(output, weights) of q (..., L, d_k), k (..., S, d_k), v (..., S, d_v).

    output (..., L, d_v), weights (..., L, S)
    """
    raise NotImplementedError


@weighted_values.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=9):
    lead = (B, H) if H > 1 else ()
    q, k = tokens(rng, *lead, L, d_k, std=1.5), tokens(rng, *lead, S, d_k)
    return {"q": q, "k": k, "v": tokens(rng, *lead, S, d_v)}


weighted_values.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6, d_v=2)
weighted_values.probe("batch and heads", B=2, H=3, L=5, S=4, d_k=7, d_v=9)
weighted_values.probe("as many heads as samples", B=3, H=3, L=4, S=6, d_k=5, d_v=3)


def output_and_weights(output, weights):
    return output, weights


@weighted_values.model
def _(
    q,
    k,
    v,
    *,
    keys=transposed,
    factor=right_factor,
    axis=-1,
    normalised=softmax,
    returned=output_and_weights,
    weight_factor=None,
    value_factor=None,
):
    scores = (q @ keys(k)) * factor(q, k, v)
    weights = scores if axis == "none" else normalised(scores, axis)
    weights = weights if weight_factor is None else weights * weight_factor(q, k, v)
    v = v if value_factor is None else v * value_factor(q, k, v)
    return returned(weights @ v, weights)


add_wrong_factors(weighted_values, has_values=True)
add_wrong_keys(weighted_values)
weighted_values.fault(
    "scale.after_softmax",
    "You scale the weights, after the softmax; the scale belongs to the scores, before it.",
    why="The softmax has then seen the large scores already, and your weights sum to 1/√d_k and"
    " not to 1.",
    hint="Which comes first, step 2 or step 4?",
    link=NO_SCALE,
    factor=lambda q, k, v: 1.0,
    weight_factor=right_factor,
)
weighted_values.fault(
    "scale.on_values",
    "You scale the values or the output; the scale belongs to the scores.",
    why="The output gets smaller and the weights stay as saturated as they were.",
    hint="Which product is the sum of d_k terms?",
    link=NO_SCALE,
    factor=lambda q, k, v: 1.0,
    value_factor=right_factor,
)
weighted_values.fault(
    "softmax.over_queries",
    "You normalise over the queries: the columns of your weights sum to 1, the rows do not.",
    why="Each query shares out one unit of weight among the keys, so the sum runs over the last"
    " axis, S.",
    hint="Which axis of the (…, L, S) weights runs over the keys?",
    hidden="L = 1",
    cite="labmlai/annotated_deep_learning_paper_implementations#146;"
    " nerminnuraydogan/vision-transformer#1",
    link=AXIS,
    axis=-2,
)
weighted_values.fault(
    "softmax.sum_over_queries",
    "You subtract the maximum of each row but divide by the sums of the columns: the rows of your"
    " weights do not sum to 1.",
    why="Maximum and sum belong to the same row. Where they do not, not even the shift by the"
    " maximum cancels.",
    hint="Compare the axis of your maximum with the axis of your sum.",
    hidden="L = 1, by its shape",
    link=AXIS,
    axis=-1,
    normalised=sum_over_queries,
)
weighted_values.fault(
    "softmax.over_heads",
    "You normalise over axis 1, which holds the heads: for each query and key, the heads' weights"
    " sum to 1.",
    why="Heads know nothing of each other; each has its own softmax over the keys.",
    hint="Count the axis from the back.",
    hidden="two axes",
    cite="jadore801120/attention-is-all-you-need-pytorch#52; FudanNLP/fastNLP#254",
    link=AXIS,
    axis=1,
)
weighted_values.fault(
    "softmax.over_batch",
    "You normalise over axis 0, which holds the samples of the batch.",
    why="One sample's weights then depend on the other samples, and are all 1 in a batch of one.",
    hint="Count the axis from the back.",
    cite="PetrochukM/PyTorch-NLP#2; DEEP-PolyU/KEQA_WSDM19#2",
    link=AXIS,
    axis=0,
)
weighted_values.fault(
    "softmax.over_everything",
    "You divide by the sum of all exponentials: the whole array of weights sums to 1, not each"
    " row.",
    why="Each query has one unit of weight of its own to share out.",
    hint="Give the sum an axis, and keep it.",
    link=AXIS,
    axis=None,
)
weighted_values.fault(
    "softmax.missing",
    "There is no softmax: your weights are the scaled scores.",
    why="Scores may be negative and do not sum to 1, so the output is not an average of the"
    " values.",
    hint="Step 4 turns scores into weights.",
    link=AXIS,
    axis="none",
)
weighted_values.fault(
    "attention.returns_swapped",
    "You return (weights, output); the order asked for is (output, weights).",
    hint="Look at the last line.",
    returned=lambda output, weights: (weights, output),
)
weighted_values.fault(
    "attention.weights_not_returned",
    "You return the output alone; the weights are asked for too.",
    hint="Return a pair.",
    returned=lambda output, weights: output,
)


@weighted_values.solution
def weighted_values_solution(q, k, v):
    scores = q @ k.swapaxes(-1, -2)  # 1 scores (..., L, S)
    scores = scores / q.shape[-1] ** 0.5  # 2 scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))  # 4 softmax
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v, weights  # 5 mix (..., L, d_v)


@weighted_values.solution("The scale folded into the query, and the softmax of the package.")
def weighted_values_folded(q, k, v):
    from sdpa_course.with_numpy import softmax

    weights = softmax(q * q.shape[-1] ** -0.5 @ k.swapaxes(-1, -2))
    return weights @ v, weights


@weighted_values.solution(shown=False)
def weighted_values_naive(q, k, v):
    e = np.exp(np.einsum("...ld,...sd->...ls", q, k) / math.sqrt(k.shape[-1]))
    output = (e @ v) / e.sum(-1)[..., None]
    return output, e / e.sum(-1, keepdims=True)


@weighted_values.solution(shown=False)
def weighted_values_both_sides(q, k, v):
    root = q.shape[-1] ** -0.25
    s = np.swapaxes((k * root) @ np.swapaxes(q * root, -1, -2), -1, -2)
    s = np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))
    return np.matmul(s, v), s


@weighted_values.solution(backend="torch")
def weighted_values_torch(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


@weighted_values.solution(backend="torch", shown=False)
def weighted_values_torch_factor(q, k, v):
    weights = ((q @ k.mT) * q.size(-1) ** -0.5).softmax(-1)
    return weights.matmul(v), weights


# -- catch a number typed in ---------------------------------------------------------------------

expose_eight = Exercise(
    "scaling.expose_eight",
    kind="catch",
    title="Catch a number that was typed in",
    statement="""
Somebody's function returns `q @ k.T / 8`. It was written for one model, passes all of that
model's tests, and is meant to return $QK^\\top/\\sqrt{d_k}$.

Write `expose_eight()`, which returns `(q, k)`, two 2-D arrays, `q` $(L, d_k)$ and `k` $(S, d_k)$,
on which that function gives a wrong answer.
""",
    link=TYPED_IN,
    hints=("For which d_k is 8 the right divisor?", "Scores of zero are right under any divisor."),
    reason="8 is √64. Any other d_k exposes it, as long as some score is not zero.",
    question="Which other sizes should a test avoid? (Think of `d ** 1/2`.)",
)


@expose_eight.inputs
def _(rng, L=2, S=3, d_k=7):
    return {"q": tokens(rng, L, d_k), "k": tokens(rng, S, d_k)}


@expose_eight.model
def _(q, k):
    return q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])


@expose_eight.black_box
def _(q, k):
    return q @ k.swapaxes(-1, -2) / 8


@expose_eight.program(
    "catch.eight_is_right_here",
    "With d_k = 64 the divisor 8 is right: it is √64. Your input cannot show the mistake.",
    why="A mistake shows only where the wrong number differs from the right one.",
    hint="Choose another d_k.",
    link=TYPED_IN,
    when=lambda q, k: np.shape(q)[-1] == 64,
)
def _():
    return np.ones((2, 64)), np.ones((3, 64))


@expose_eight.program(
    "catch.all_scores_zero",
    "Every score is 0 on your input, and 0 divided by anything is 0.",
    why="A zero query, a zero key, or orthogonal ones hide any scale.",
    hint="Give q and k numbers whose products do not cancel.",
    link=TYPED_IN,
    when=lambda q, k: (
        np.shape(q)[-1] != 64 and not np.any(np.asarray(q) @ np.asarray(k).swapaxes(-1, -2))
    ),
)
def _():
    return np.zeros((2, 5)), np.ones((3, 5))


@expose_eight.solution
def expose_eight_solution():
    q, k = np.ones((2, 16)), np.ones((3, 16))
    return q, k


@expose_eight.solution
def expose_eight_random():
    rng = np.random.default_rng(0)
    return rng.normal(size=(2, 5)), rng.normal(size=(3, 5))


# -- predict the mean of agreeing vectors --------------------------------------------------------

scaled_mean_when_aligned = Exercise(
    "scaling.scaled_mean_when_aligned",
    kind="predict",
    title="Queries and keys that agree",
    statement="""
After some training a query and the key it looks for are no longer independent. Let every
component have mean 0 and variance 1, and let the correlation of $q_i$ with $k_i$ be 0.5. With
$d_k = 64$, what is the **mean** of the *scaled* score $q\\cdot k/\\sqrt{d_k}$?

Set `scaled_mean_when_aligned` to your number. The check measures it on 20,000 pairs; 5 % is close
enough.
""",
    link=f"{CHAPTER}#when-queries-and-keys-agree",
    tolerance=0.05,
    hints=("What is the mean of one product q_i k_i?",),
    reason="E[q_i k_i] = 0.5, so E[q·k] = 32, and 32/√64 = 4: a mean of four standard deviations,"
    " growing as √d_k.",
    question="Which divisor would keep this mean the same for every d_k?",
)


@scaled_mean_when_aligned.model
def _():
    q, noise = np.random.default_rng(0).normal(size=(2, 20_000, 64))
    k = 0.5 * q + math.sqrt(1 - 0.5**2) * noise
    return float((q * k).sum(axis=-1).mean() / math.sqrt(64))


scaled_mean_when_aligned.wrong(
    0.0,
    "aligned.as_if_independent",
    "0 is the mean for independent q and k. Correlated components have products with mean 0.5.",
    why="The argument for √d_k assumes independence, which holds at initialisation at best.",
    hint="E[q_i k_i] is the correlation here.",
    link=f"{CHAPTER}#when-queries-and-keys-agree",
)
scaled_mean_when_aligned.wrong(
    32.0,
    "aligned.unscaled",
    "32 is the mean of the unscaled score.",
    hint="Divide by √d_k.",
    link=f"{CHAPTER}#when-queries-and-keys-agree",
)
scaled_mean_when_aligned.wrong(
    0.5,
    "aligned.divided_by_d_k",
    "0.5 is the mean after division by d_k. √64 is 8.",
    why="Dividing a sum of d_k equal means by d_k keeps the mean; dividing by √d_k lets it grow"
    " as √d_k.",
    hint="Divide 32 by 8.",
    link=f"{CHAPTER}#when-queries-and-keys-agree",
)
scaled_mean_when_aligned.wrong(
    1.0,
    "aligned.always_one",
    "1 is the *variance* of the scaled score of independent vectors. The question is about a mean.",
    hint="Add up 64 means of 0.5, then divide.",
    link=f"{CHAPTER}#when-queries-and-keys-agree",
)
scaled_mean_when_aligned.solutions += [
    Solution("scaled_mean_when_aligned = 0.5 * 64 / 64**0.5\n"),
    Solution("scaled_mean_when_aligned = 4.0\n"),
]


# -- T5's initialisation -------------------------------------------------------------------------

t5_query_weights = Exercise(
    "scaling.t5_query_weights",
    kind="implement",
    title="Put the scale into the initialisation",
    statement="""
T5 never divides its scores. Its query matrix starts smaller instead.

Tokens have $d_\\text{model}$ independent components with variance 1. The entries of $W_K$ have
standard deviation $1/\\sqrt{d_\\text{model}}$, so that the components of a key have variance 1.
Write `t5_query_weights(z)`: given `z` $(d_\\text{model}, d_k)$, independent standard normal
numbers, return the $W_Q$ $(d_\\text{model}, d_k)$ for which the **unscaled** score $q\\cdot k$
has variance 1.
""",
    link=f"{CHAPTER}#the-scale-folded-into-the-weights",
    goals={"factor": "unscaled scores with variance 1"},
    hints=(
        "First choose the factor that gives the components of a query variance 1. Then ask what"
        " else must be divided out.",
    ),
    reason="1/√d_model gives query components of variance 1, as for W_K; a further 1/√d_k is the"
    " scale, moved from the scores into the matrix: standard deviation 1/√(d_model·d_k).",
    question="The function at initialisation is the same. Is one gradient step the same too?",
    backends=("numpy", "torch"),
)


@t5_query_weights.stub
def t5_query_weights_stub(z):
    """W_Q (d_model, d_k) made of the standard normal numbers z (d_model, d_k)."""
    raise NotImplementedError


@t5_query_weights.inputs
def _(rng, d_model=12, d_k=7):
    return {"z": tokens(rng, d_model, d_k)}


t5_query_weights.probe("a small layer", d_model=5, d_k=3)
t5_query_weights.probe("a wider layer", d_model=12, d_k=7)
t5_query_weights.probe("d_k above d_model", d_model=6, d_k=10)


@t5_query_weights.model
def _(z, *, factor=lambda d_model, d_k: (d_model * d_k) ** -0.5):
    return z * factor(*z.shape)


for id, factor, says, why, hint in (
    (
        "init.scale_not_folded",
        lambda d_model, d_k: d_model**-0.5,
        "Your standard deviation is 1/√d_model, as for W_K: the score's variance is then d_k, not"
        " 1.",
        "That is the initialisation for a layer that scales its scores. Here W_Q must hold the"
        " scale too.",
        "What factor would you have applied to the scores?",
    ),
    (
        "init.variance_for_std",
        lambda d_model, d_k: 1 / (d_model * d_k),
        "You multiply by the variance 1/(d_model·d_k); numbers are multiplied by the standard"
        " deviation, its root.",
        "Multiplying by c multiplies the variance by c².",
        "Take the root.",
    ),
    (
        "init.d_model_forgotten",
        lambda d_model, d_k: d_k**-0.5,
        "Your standard deviation is 1/√d_k. A component of q is itself a sum over d_model numbers.",
        "Without 1/√d_model the components of q have variance d_model/d_k.",
        "How large is one component of x W_Q?",
    ),
    (
        "init.scaled_by_d_k",
        lambda d_model, d_k: d_model**-0.5 / d_k,
        "You fold 1/d_k into W_Q; the scale is 1/√d_k.",
        "The score's variance becomes 1/d_k.",
        "The standard deviation of a score is √d_k.",
    ),
    (
        "init.half_folded",
        lambda d_model, d_k: d_model**-0.5 * d_k**-0.25,
        "You fold d_k^-¼ into W_Q: half of the scale. The other half would have to be in W_K,"
        " which has none here.",
        "The score's variance becomes √d_k.",
        "All of the scale has to be in W_Q.",
    ),
    (
        "init.multiplied",
        lambda d_model, d_k: (d_k / d_model) ** 0.5,
        "You multiply by √d_k where you should divide by it.",
        "The score's variance becomes d_k².",
        "W_Q must become smaller as d_k grows.",
    ),
    (
        "init.xavier",
        lambda d_model, d_k: (2 / (d_model + d_k)) ** 0.5,
        "That is Xavier's standard deviation, √(2/(d_model + d_k)); it knows nothing of the"
        " scores.",
        "Xavier balances the sizes of activations and gradients of one matrix.",
        "Work out the variance of the score.",
    ),
    (
        "init.gpt2",
        lambda d_model, d_k: 0.02,
        "0.02 is GPT-2's constant; it fits neither d_model nor d_k.",
        "The score's variance then depends on both sizes.",
        "Work out the variance of the score.",
    ),
    (
        "init.unchanged",
        lambda d_model, d_k: 1.0,
        "You return z as it is: the score's variance is d_model·d_k.",
        "A component of q is a sum of d_model numbers, and a score a sum of d_k products.",
        "Two sums, two roots.",
    ),
):
    t5_query_weights.fault(
        id,
        says,
        why=why,
        hint=hint,
        link=f"{CHAPTER}#the-scale-folded-into-the-weights",
        factor=factor,
    )

t5_query_weights.add(
    Fit(
        "init.factor",
        "factor",
        "You multiply z by {found} (here {value}); variance 1 needs {right} here.",
        right=lambda dims: (dims["d_model"] * dims["d_k"]) ** -0.5,
        setting=lambda value: lambda d_model, d_k: value,
        why="Var(q·k) = d_k · Var(q_i) · Var(k_i), and Var(q_i) = d_model · std².",
        hint="Set the variance to 1 and solve for std.",
        link=f"{CHAPTER}#the-scale-folded-into-the-weights",
    )
)


@t5_query_weights.solution
def t5_query_weights_solution(z):
    d_model, d_k = z.shape
    return z / (d_model * d_k) ** 0.5


@t5_query_weights.solution
def t5_query_weights_two_roots(z):
    d_model, d_k = z.shape
    W_q = z * d_model**-0.5  # components of q with variance 1
    return W_q * d_k**-0.5  # the scale


@t5_query_weights.solution(shown=False)
def t5_query_weights_by_size(z):
    return z / np.sqrt(z.size)


@t5_query_weights.solution(backend="torch")
def t5_query_weights_torch(z):
    return z / math.sqrt(z.numel())


@t5_query_weights.solution(backend="torch", shown=False)
def t5_query_weights_torch_two_roots(z):
    return z * (z.shape[0] ** -0.5) * (z.shape[1] ** -0.5)


# -- fold the scale into a trained layer ---------------------------------------------------------

fold_scale = Exercise(
    "scaling.fold_scale",
    kind="fix",
    title="Fix an export",
    statement="""
A trained layer computes $q = x W_Q + b_Q$ and divides its scores by $\\sqrt{d_k}$. For a runtime
that cannot scale, `fold_scale(W_q, b_q)` should return `(W_q, b_q)` changed so that the
**unscaled** scores of the new layer are the scaled scores of the old one. $W_K$ and $b_K$ stay as
they are. `W_q` is $(d_\\text{model}, d_k)$, `b_q` is $(d_k)$.

The function below is nearly right. Repair it, without changing its inputs.
""",
    link=f"{CHAPTER}#the-scale-folded-into-the-weights",
    goals={"factor": "the factor is the scale", "where": "every part of the query gets it"},
    hints=("Write out (x W_Q + b_Q)·k / √d_k. What is multiplied by the scale?",),
    reason="(x W_Q + b_Q)/√d_k = x (W_Q/√d_k) + b_Q/√d_k: the scale multiplies the whole query,"
    " its bias too.",
    question="Why is it hard to see this mistake in a freshly initialised layer?",
    backends=("numpy", "torch"),
)


@fold_scale.stub
def fold_scale_stub(W_q, b_q):
    """(W_q, b_q) whose unscaled scores are the scaled scores of the ones given."""
    d_k = W_q.shape[1]
    return W_q / d_k**0.5, b_q


@fold_scale.inputs
def _(rng, d_model=12, d_k=7):
    return {"W_q": tokens(rng, d_model, d_k), "b_q": tokens(rng, d_k)}


fold_scale.probe("a small layer", d_model=5, d_k=3)
fold_scale.probe("a wider layer", d_model=12, d_k=7)
fold_scale.probe("d_k above d_model", d_model=6, d_k=10)


@fold_scale.model
def _(W_q, b_q, *, factor=lambda d_model, d_k: d_k**-0.5, where=(True, True)):
    scale = factor(*W_q.shape)
    return W_q * scale if where[0] else W_q, b_q * scale if where[1] else b_q


FOLDED = f"{CHAPTER}#the-scale-folded-into-the-weights"
fold_scale.fault(
    "fold.bias_left",
    "You scale W_Q and leave the bias as it was: the part b_Q·k of each score stays √d_k times"
    " too large.",
    why="A bias is part of the query. Biases start at zero, so a fresh layer does not show it.",
    hint="Write out (x W_Q + b_Q)/√d_k.",
    hidden="b_q = 0",
    link=FOLDED,
    where=(True, False),
)
fold_scale.fault(
    "fold.weight_left",
    "You scale the bias and leave W_Q as it was.",
    why="Both are parts of the query.",
    hint="Write out (x W_Q + b_Q)/√d_k.",
    link=FOLDED,
    where=(False, True),
)
fold_scale.fault(
    "fold.nothing",
    "You return both as they came.",
    why="The new layer would then have unscaled scores.",
    hint="Which factor must the query get?",
    link=FOLDED,
    factor=lambda d_model, d_k: 1.0,
    where=(False, False),
)
fold_scale.fault(
    "fold.d_model",
    "You fold 1/√d_model; the scale is 1/√d_k, for the d_k columns of W_Q.",
    why="A score sums over the d_k components of a query.",
    hint="Which axis of W_Q becomes the components of q?",
    hidden="d_model = d_k",
    link=FOLDED,
    factor=lambda d_model, d_k: d_model**-0.5,
)
fold_scale.fault(
    "fold.half",
    "You fold d_k^-¼, half of the scale; W_K would have to take the other half, and it stays as"
    " it is.",
    why="Both halves multiply to d_k^-½.",
    hint="All of it has to be in the query.",
    link=FOLDED,
    factor=lambda d_model, d_k: d_k**-0.25,
)
fold_scale.fault(
    "fold.d_k",
    "You fold 1/d_k; the scale is 1/√d_k.",
    why="The old layer divided by the root.",
    hint="Take the root.",
    link=FOLDED,
    factor=lambda d_model, d_k: 1 / d_k,
)
fold_scale.fault(
    "fold.multiplied",
    "You multiply by √d_k where the old layer divided.",
    why="The new query must be smaller.",
    hint="Divide.",
    link=FOLDED,
    factor=lambda d_model, d_k: d_k**0.5,
)
fold_scale.add(
    Fit(
        "fold.factor",
        "factor",
        "You fold the factor {found} (here {value}); the scale is 1/√d_k (here {right}).",
        right=lambda dims: dims["d_k"] ** -0.5,
        setting=lambda value: lambda d_model, d_k: value,
        why="The new query is the old one times the scale.",
        hint="Write out (x W_Q + b_Q)/√d_k.",
        link=FOLDED,
    )
)


@fold_scale.solution
def fold_scale_solution(W_q, b_q):
    scale = W_q.shape[1] ** -0.5
    return W_q * scale, b_q * scale


@fold_scale.solution
def fold_scale_by_the_bias(W_q, b_q):
    root = math.sqrt(len(b_q))
    return W_q / root, b_q / root


@fold_scale.solution(backend="torch")
def fold_scale_torch(W_q, b_q):
    root = W_q.size(1) ** 0.5
    return W_q / root, b_q / root


@fold_scale.solution(backend="torch", shown=False)
def fold_scale_torch_factor(W_q, b_q):
    return tuple(part * b_q.shape[0] ** -0.5 for part in (W_q, b_q))


# -- half precision ------------------------------------------------------------------------------

scale_in_half = Exercise(
    "scaling.scale_in_half",
    kind="parsons",
    title="Scale before it is too late",
    statement="""
float16 holds nothing above 65504. Put lines in order to make `scale_in_half(q, k)`, which
computes $QK^\\top/\\sqrt{d_k}$ in the dtype of its inputs and stays finite in float16 wherever
the *scaled* scores do. Not every line is needed. Set `scale_in_half` to the letters, as in
`"AB"`.
""",
    link=f"{CHAPTER}#scaling-after-a-half-precision-product",
    header="def scale_in_half(q, k):",
    lines={
        "A": "scores = q @ k.swapaxes(-1, -2)",
        "B": "scores = scores * q.shape[-1] ** -0.5",
        "C": "q = q * q.shape[-1] ** -0.5",
        "D": "return scores",
        "E": "q = q * q.shape[-1] ** 0.5",
    },
    hints=("What is the largest number on the way, and when does it appear?",),
    reason="The product of unscaled vectors can pass 65504 before the division brings it back."
    " Scaled first, no number on the way is larger than it has to be.",
    question="float32 goes up to 3·10³⁸. Does the order matter there?",
)


@scale_in_half.inputs
def _(rng, L=5, S=6, d_k=7):
    return {"q": tokens(rng, L, d_k, std=2), "k": tokens(rng, S, d_k)}


scale_in_half.probe("float64, a small head", L=2, S=3, d_k=6)
scale_in_half.probe("float64, a larger head", L=5, S=4, d_k=11)


@scale_in_half.special(
    "float16, scores that only the scale brings back into range", loose=1e-2, L=3, S=2, d_k=256
)
def _():
    rng = np.random.default_rng(0)  # powers of two: exact in float16, whatever the order
    sizes = np.array([16.0, 32.0])
    q, k = rng.choice(sizes, size=(3, 256)), rng.choice(sizes, size=(2, 256))
    return {"q": q.astype(np.float16), "k": k.astype(np.float16)}


@scale_in_half.model
def _(q, k):
    return (q * q.shape[-1] ** -0.5) @ k.swapaxes(-1, -2)


HALF = f"{CHAPTER}#scaling-after-a-half-precision-product"
scale_in_half.order(
    "scale.after_half_product",
    "ABD",
    "You scale after the product: in float16 the unscaled scores have become inf by then.",
    why="inf times any scale is still inf, and the softmax of such a row is NaN.",
    hint="Which of the three lines makes the largest number?",
    hidden="float32 and float64; small activations",
    cite="ultralytics/ultralytics PR#24990; philipturner/metal-flash-attention#8",
    link=HALF,
)
scale_in_half.order(
    "scale.forgotten",
    "AD",
    "Your scores are not scaled. (A query that is scaled after the product comes too late.)",
    why="The scores are √d_k times too large.",
    hint="The scale must act on something the product still uses.",
    link=NO_SCALE,
)
scale_in_half.order(
    "scale.d_k",
    "CABD",
    "You scale twice: the query before the product, and the scores after it. Together that is"
    " 1/d_k.",
    why="1/√d_k · 1/√d_k = 1/d_k, and the weights become too flat.",
    hint="One of the two lines is enough.",
    cite="huggingface/transformers PR#38290",
    link=TWICE,
)
scale_in_half.order(
    "scale.multiplied",
    "EAD",
    "You multiply the query by √d_k; it should be divided by it.",
    why="`d ** 0.5` is the root, `d ** -0.5` is one over the root.",
    hint="Look at the sign of the exponent.",
    cite="esceptico/perceiver-io#9",
    link=WRONG_WAY,
)
scale_in_half.solutions += [
    Solution("CAD", "The query is scaled first."),
]


# -- what the scale buys -------------------------------------------------------------------------

what_the_scale_does = Exercise(
    "scaling.what_the_scale_does",
    kind="quiz",
    title="What the scale does",
    statement="""
Which of these sentences about $1/\\sqrt{d_k}$ do the measurements of this chapter support?
""",
    link=f"{CHAPTER}#the-gradient-that-arrives-at-the-query",
)
what_the_scale_does.option(
    "A",
    "It brings the variance of the scores to 1 in any model.",
    "Only if the components of q and k have variance 1. Common initialisations give from less"
    " than 0.1 to more than 3.",
)
what_the_scale_does.option(
    "B",
    "It keeps the softmax in its sensitive region all through training.",
    "The scale is a constant, and W_Q and W_K are free to grow. A few dozen steps of training"
    " take the scores out of that region.",
)
what_the_scale_does.option(
    "C",
    "At the start of training, it makes the gradient that arrives at a query nearly the same for"
    " every d_k.",
    "Yes. Root mean square, median and tenth percentile all stay put from d_k = 16 to 1024.",
    right=True,
)
what_the_scale_does.option(
    "D",
    "Without it, the average gradient at d_k = 64 all but vanishes.",
    "The average is *larger* without it, several times over, and so is the median; a part of the"
    " rows goes silent. At d_k = 512 most of them do.",
)


EXERCISES = (
    score_variance_of_uniform,
    scale_scores,
    which_root,
    score_heads,
    weighted_values,
    expose_eight,
    scaled_mean_when_aligned,
    t5_query_weights,
    fold_scale,
    scale_in_half,
    what_the_scale_does,
)
