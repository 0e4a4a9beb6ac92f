"""Graded exercises of the chapter on softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution
from sdpa_course.grading.properties import rows_sum_to_one, shift_changes_nothing

CHAPTER = "03-softmax"
DIFFERENCES = f"{CHAPTER}#only-differences-count"
GAP = f"{CHAPTER}#how-large-a-gap"
OVERFLOW = f"{CHAPTER}#the-largest-exponent"
LOG_SUM_EXP = f"{CHAPTER}#log-sum-exp"
ENTROPY = f"{CHAPTER}#entropy"
DERIVATIVE = f"{CHAPTER}#the-derivative"
ROW_BY_ROW = f"{CHAPTER}#saturation-row-by-row"
NO_MAX = f"{CHAPTER}#no-maximum-subtracted"
ONE_MAX = f"{CHAPTER}#one-maximum-for-all-rows"
FROM_ZERO = f"{CHAPTER}#a-maximum-that-starts-at-zero"
CONSTANT = f"{CHAPTER}#a-constant-for-the-maximum"
TURNED = f"{CHAPTER}#the-sign-turned-round"
AXIS = f"{CHAPTER}#the-wrong-axis"
BASE = f"{CHAPTER}#two-as-the-base"
ELEMENTWISE = f"{CHAPTER}#a-derivative-taken-element-by-element"
ZERO_LOG = f"{CHAPTER}#zero-times-minus-infinity"


def scores(rng, *shape):
    return rng.normal(size=shape) * 2


def weights(rng, *shape):
    """Positive rows that sum to 1."""
    e = np.exp(scores(rng, *shape))
    return e / e.sum(axis=-1, keepdims=True)


def row_max(z, axis=-1):
    return z.max(axis=axis, keepdims=True)


def subtracted(z, m):
    return z - m


def row_sum(e):
    return e.sum(axis=-1, keepdims=True)


def add_wrong_shifts(exercise: Exercise, **with_min: Any) -> None:
    """What people subtract from the scores, as settings of the switch `shift`.

    ``with_min`` are switches that the smallest score is not combined with.
    """
    exercise.fault(
        "softmax.no_max",
        "You exponentiate the scores as they are. In float64, exp overflows above 709 and is 0"
        " below -745.",
        why="Subtracting the largest score of a row changes no weight, and leaves exp with"
        " numbers from 0 down.",
        hint="What may you subtract from all scores of a row without changing its weights? Which"
        " choice can never overflow?",
        hidden="scores below 88 (float32) or 709 (float64)",
        cite="tenstorrent/tt-metal#12661; prescient-design/e3tools PR#3; DingKe/ml-tutorial PR#1",
        link=NO_MAX,
        shift=lambda z, axis=-1: 0.0,
    )
    exercise.fault(
        "softmax.global_max",
        "You subtract one maximum, that of the whole array. A row far below it underflows: all of"
        " its exponentials are 0.",
        why="Each row has its own largest score, and needs it subtracted so that at least one"
        " exponential is 1.",
        hint="Give the maximum an axis, and keep that axis.",
        hidden="rows of similar height",
        link=ONE_MAX,
        shift=lambda z, axis=-1: z.max(),
    )
    exercise.fault(
        "softmax.max_from_zero",
        "Your maximum starts at 0, so a row of negative scores has 0 subtracted. If they are far"
        " below 0, all exponentials vanish.",
        why="A maximum over nothing is -∞. Started at 0 it is right only for rows with a score"
        " above 0.",
        hint="What is your maximum for the row (-800, -801)?",
        hidden="a score above 0 in each row",
        cite="microsoft/onnxruntime PR#2715; Dao-AILab/flash-attention#2082",
        link=FROM_ZERO,
        shift=lambda z, axis=-1: np.maximum(row_max(z, axis), 0),
    )
    exercise.fault(
        "softmax.constant_for_max",
        "You subtract a constant. It moves the point of overflow, and does not remove it.",
        why="Only the largest score of the row itself is large enough for every row.",
        hint="Which scores would break it?",
        hidden="scores near the constant",
        cite="HabanaAI/vllm-fork#275",
        link=CONSTANT,
        shift=lambda z, axis=-1: 10.0,
    )
    exercise.fault(
        "softmax.absolute_max",
        "You subtract the largest absolute value. In a row of negative scores that pushes them"
        " further down, until all exponentials are 0.",
        why="The largest absolute value of (-500, -501) is 501, and exp(-1001) is 0.",
        hint="Which score of (-500, -501) should become 0?",
        hidden="a largest score above 0",
        link=FROM_ZERO,
        shift=lambda z, axis=-1: np.abs(z).max(axis=axis, keepdims=True),
    )
    exercise.fault(
        "softmax.mean_for_max",
        "You subtract the mean of the row. A score far above the mean still overflows.",
        why="Any number may be subtracted as far as the weights go; only the maximum leaves"
        " nothing above 0.",
        hint="What is left of (0, 0, 0, 0, 0, 1500) after your subtraction?",
        hidden="scores that lie close together",
        link=CONSTANT,
        shift=lambda z, axis=-1: z.mean(axis=axis, keepdims=True),
    )
    exercise.fault(
        "softmax.min_for_max",
        "You subtract the smallest score of the row, so that the exponents run upwards from 0 and"
        " may overflow.",
        why="exp of something at most 0 is at most 1. exp of something at least 0 has no bound.",
        hint="Should the exponents be positive or negative?",
        hidden="scores that lie close together",
        link=CONSTANT,
        shift=lambda z, axis=-1: z.min(axis=axis, keepdims=True),
        **with_min,
    )
    exercise.fault(
        "softmax.first_for_max",
        "You subtract the first score of the row. A score far above it still overflows.",
        why="Any number may be subtracted as far as the weights go; only the maximum leaves"
        " nothing above 0.",
        hint="What is left of (0, 0, 0, 0, 0, 1500) after your subtraction?",
        hidden="scores that lie close together",
        link=CONSTANT,
        shift=lambda z, axis=-1: np.take(z, [0], axis),
    )


def add_softmax_faults(exercise: Exercise) -> None:
    """The mistakes of a softmax over the last axis."""
    # min - x and -x - max(-x) are one thing, and as a softmax of -x it is safe.
    add_wrong_shifts(exercise, moved=subtracted)
    exercise.fault(
        "softmax.max_over_queries",
        "You subtract the maximum over axis -2, one for each column. That shifts the scores of a"
        " row by different amounts.",
        why="Only a number that is the same for the whole row cancels.",
        hint="Which axis does the sum run over? The maximum belongs to the same one.",
        hidden="one row",
        link=AXIS,
        shift=lambda z: row_max(z, -2),
    )
    exercise.fault(
        "softmax.max_not_kept",
        "Your maximum loses its axis: (…, L) is then lined up with the last axis of (…, L, n)."
        " That raises an error, or fits by accident where L = n.",
        why="With keepdims=True the maximum has the shape (…, L, 1) and meets its own row.",
        hint="Print the shapes of the two arrays that you subtract.",
        hidden="a single row",
        link=AXIS,
        shift=lambda z: z.max(axis=-1),
    )
    exercise.fault(
        "softmax.max_minus_x",
        "You take exp(max - x): the signs are turned round, and the smallest score gets the"
        " largest weight.",
        why="Subtracting the maximum must leave the order of the scores as it is.",
        hint="Which score gets the largest weight in your function?",
        hidden="rows of equal scores",
        cite="CASIA-IVA-Lab/DANet#48 (there on purpose)",
        link=TURNED,
        moved=lambda z, m: m - z,
    )
    exercise.fault(
        "softmax.divided_by_max",
        "You divide the scores by their maximum. That changes their differences; only a"
        " subtraction cancels.",
        why="exp(x - m) = exp(x)·exp(-m), and exp(-m) cancels in the fraction. exp(x/m) has no"
        " such factor.",
        hint="Which operation on all scores of a row leaves the weights alone?",
        link=DIFFERENCES,
        moved=lambda z, m: z / m,
    )
    exercise.fault(
        "softmax.max_added",
        "You add the maximum where you should subtract it.",
        why="It cancels as well, but the exponents become twice as large, not at most 0.",
        hint="What should the largest exponent be?",
        hidden="scores below 350",
        link=NO_MAX,
        moved=lambda z, m: z + m,
    )
    exercise.fault(
        "softmax.negated",
        "You take the softmax of -x: the smallest score gets the largest weight.",
        why="A larger score means a larger weight.",
        hint="Try the scores (1, 2).",
        link=TURNED,
        factor=-1.0,
        moved=subtracted,  # turned round twice it would be right
    )
    exercise.fault(
        "softmax.base_two",
        "You use 2 as the base. 2^x is e^(x·ln 2), so your scores are multiplied by 0.693: a"
        " temperature of 1.44.",
        why="Kernels use 2 because it is fast, and multiply the scores by log₂e first.",
        hint="Which base does the formula have?",
        link=BASE,
        factor=math.log(2),
    )
    exercise.fault(
        "softmax.base_two_twice",
        "You multiply the scores by log₂e and use e as the base. The factor belongs to the base 2.",
        why="2^(x·log₂e) = e^x. With e as the base the factor is a temperature of 0.69.",
        hint="Either base 2 and the factor, or base e and none.",
        cite="flagos-ai/FlagGems PR#424 (the factor)",
        link=BASE,
        factor=math.log2(math.e),
    )
    exercise.fault(
        "softmax.no_exponential",
        "You normalise without an exponential.",
        why="Scores may be negative, so a plain fraction gives weights below 0 or a division by"
        " nearly nothing.",
        hint="What makes every score positive and keeps their order?",
        link=f"{CHAPTER}#the-formula",
        exponential=lambda z: z,
    )
    exercise.fault(
        "softmax.sum_over_queries",
        "Your sum runs over axis -2: the columns of your weights sum to 1, the rows do not.",
        why="Each query shares out one unit of weight among the keys, which lie along the last"
        " axis.",
        hint="Print the sums of the rows.",
        hidden="one axis only, where it raises an error",
        link=AXIS,
        total=lambda e: e.sum(axis=-2, keepdims=True),
    )
    for id, axis, what in (
        ("softmax.sum_over_heads", 1, "the heads where there are any"),
        ("softmax.sum_over_batch", 0, "the samples of the batch"),
    ):
        exercise.fault(
            id,
            f"Your sum runs over axis {axis}, {what}; each row has to sum to 1 along the last"
            " axis.",
            why="Counted from the front, an axis moves when a batch or heads are added.",
            hint="Count the axis from the back.",
            hidden="fewer axes",
            link=AXIS,
            total=lambda e, axis=axis: e.sum(axis=axis, keepdims=True),
        )
    exercise.fault(
        "softmax.sum_over_everything",
        "You divide by the sum over the whole array; each row has to sum to 1 by itself.",
        why="Each row shares out one unit of weight of its own.",
        hint="Give the sum an axis, and keep that axis.",
        hidden="a single row",
        link=AXIS,
        total=lambda e: e.sum(),
    )
    exercise.fault(
        "softmax.sum_not_kept",
        "Your sum loses its axis: (…, L) is then lined up with the last axis of (…, L, n). That"
        " raises an error, or fits by accident where L = n.",
        why="With keepdims=True the sum has the shape (…, L, 1) and meets its own row.",
        hint="Print the shapes of the two arrays that you divide.",
        hidden="a single row",
        link=AXIS,
        total=lambda e: e.sum(axis=-1),
    )
    exercise.fault(
        "softmax.mean_for_sum",
        "You divide by the mean of the exponentials: your rows sum to n, not to 1.",
        why="The mean is n times smaller than the sum.",
        hint="Print the sums of the rows.",
        link=f"{CHAPTER}#the-formula",
        total=lambda e: e.mean(axis=-1, keepdims=True),
    )
    exercise.fault(
        "softmax.not_normalised",
        "You do not divide by the sum of the exponentials: your largest weight is 1 in every row.",
        why="Weights are shares, and shares sum to 1.",
        hint="Print the sums of the rows.",
        link=f"{CHAPTER}#the-formula",
        total=lambda e: 1.0,
    )
    for id, words, over, hidden, cite in (
        (
            "softmax.over_queries",
            "over axis -2, the queries",
            -2,
            "L = 1",
            "labmlai/annotated_deep_learning_paper_implementations#146;"
            " nerminnuraydogan/vision-transformer#1; nerdai/llms-from-scratch-rs PR#30",
        ),
        (
            "softmax.over_heads",
            "over axis 1, which holds the heads",
            1,
            "two axes",
            "hyunwoongko/transformer, first version; jadore801120/attention-is-all-you-need-pytorch"
            "#52; FudanNLP/fastNLP#254",
        ),
        (
            "softmax.over_batch",
            "over axis 0, the samples of the batch",
            0,
            "one axis",
            "PetrochukM/PyTorch-NLP#2; DEEP-PolyU/KEQA_WSDM19#2",
        ),
        ("softmax.over_everything", "over the whole array at once", None, "a single row", ""),
    ):
        exercise.fault(
            id,
            f"You normalise {words}; each row has to sum to 1 along the last axis, the keys.",
            why="The result has the right shape and positive numbers either way. Only the sums"
            " tell.",
            hint="Count the axis from the back. Which one runs over the keys?",
            hidden=hidden,
            cite=cite,
            link=AXIS,
            shift=lambda z, axis=over: row_max(z, axis),
            total=lambda e, axis=over: e.sum(axis=axis, keepdims=True),
        )
    exercise.fault(
        "softmax.unit_norm",
        "You divide by the root of the sum of the squares: the row has length 1, and not sum 1.",
        why="Weights are shares. A row of length 1 sums to anything between 1 and √n.",
        hint="Print the sums of the rows.",
        link=f"{CHAPTER}#the-formula",
        total=lambda e: np.sqrt((e**2).sum(axis=-1, keepdims=True)),
    )
    exercise.fault(
        "softmax.log_returned",
        "You return the logarithms of the weights.",
        why="That is log-softmax, a useful function of its own; its exponential is asked for.",
        hint="Can a weight be negative?",
        link=LOG_SUM_EXP,
        last=np.log,
    )

    @exercise.program(
        "softmax.sigmoid",
        "You return 1/(1 + exp(-x)), a sigmoid: it looks at each score by itself.",
        why="The weights of a row share one unit. A sigmoid's do not, and their sum is anything.",
        hint="Does your weight for one score change when another score does?",
        link=f"{CHAPTER}#the-formula",
    )
    def _(x):
        return 1 / (1 + np.exp(-x))

    @exercise.program(
        "softmax.hard",
        "You give the whole weight to the largest score of a row.",
        why="That is argmax. Softmax comes near to it where one score lies far above the others.",
        hint="What are the weights of two equal scores? And of two that are nearly equal?",
        link=f"{CHAPTER}#the-formula",
    )
    def _(x):
        return (x == x.max(axis=-1, keepdims=True)).astype(np.float64)

    @exercise.program(
        "softmax.infinity_as_zero",
        "You put 0 where a score is -∞: exp(0) is 1, so that key gets weight after all.",
        why="-∞ needs no care: exp(-∞) is 0. In place of it, 0 is a score like any other.",
        hint="What does np.exp(-np.inf) return?",
        link=f"{CHAPTER}#the-formula",
    )
    def _(x):
        return softmax_model(np.where(np.isinf(x), 0.0, x))

    @exercise.program(
        "softmax.clipped",
        "You limit the scores to ±500 against the overflow: scores beyond it get equal weights.",
        why="It is the difference to the largest score that must not overflow. Subtract that.",
        hint="What are the weights of 800 and 812?",
        link=OVERFLOW,
    )
    def _(x):
        return softmax_model(np.clip(x, -500, 500))

    exercise.add(
        Fit(
            "softmax.temperature",
            "factor",
            "Your scores are multiplied by {found} (here {value}) before the exponential; here"
            " nothing scales them.",
            right=lambda dims: 1.0,
            why="A factor on the scores is a temperature: it changes how far the weights lie"
            " apart.",
            hint="Which number multiplies your scores, or which base do you raise to a power?",
            link=BASE,
        ),
        Fit(
            "softmax.constant_in_sum",
            "extra",
            "You add {found} to the sum of the exponentials, so that your rows sum to less than 1.",
            right=lambda dims: 0.0,
            why="Once the maximum is subtracted the sum is at least 1, so nothing has to protect"
            " the division.",
            hint="Can the sum be 0, if the largest exponential is 1?",
            link=f"{CHAPTER}#the-formula",
        ),
    )


def softmax_model(
    x,
    *,
    factor=1.0,
    shift=row_max,
    moved=subtracted,
    exponential=np.exp,
    total=row_sum,
    extra=0.0,
    last=lambda p: p,
):
    z = x * factor
    e = exponential(moved(z, shift(z)))
    return last(e / (total(e) + extra))


SOFTMAX_GOALS = {
    "factor": "the scores go into the exponential as they are",
    "moved": "the maximum is subtracted",
    "shift": "each row's own maximum",
    "exponential": "an exponential",
    "total": "each row sums to 1",
    "last": "weights, not their logarithms",
}
THE_ANSWER = (
    "sdpa_course.with_numpy.softmax.softmax",
    "sdpa_course.with_numpy.softmax.log_softmax",
    "sdpa_course.with_numpy.softmax.softmax_with_temperature",
    "sdpa_course.with_torch.softmax.softmax",
    "sdpa_course.with_torch.softmax.log_softmax",
    "torch.softmax",
    "torch.log_softmax",
    "torch.nn.functional.softmax",
    "torch.nn.functional.log_softmax",
    "scipy.special.softmax",
    "scipy.special.log_softmax",
)


def add_softmax_probes(exercise: Exercise) -> None:
    """Rows of every kind; what is wrong on which of them tells the mistakes apart."""

    @exercise.inputs
    def _(rng, B=2, H=3, L=5, n=6):
        lead = (B, H) if H > 1 else ()
        return {"x": scores(rng, *lead, L, n)}

    exercise.probe("rows of one matrix", B=1, H=1, L=3, n=5)
    exercise.probe("batch and heads", B=2, H=3, L=5, n=6)
    exercise.probe("as many heads as samples", B=3, H=3, L=2, n=7)

    @exercise.special("as many rows as columns", L=5, n=5)
    def _():
        return {"x": scores(np.random.default_rng(3), 5, 5)}

    @exercise.special("a single row, with one axis only", n=7)
    def _():
        return {"x": scores(np.random.default_rng(4), 7)}

    @exercise.special("large scores", magnitude=800, L=3, n=5)
    def _():
        offsets = np.array([[800.0], [712.0], [712.0]])
        return {"x": scores(np.random.default_rng(5), 3, 5) / 2 + offsets}

    @exercise.special("very negative scores", magnitude=800, L=2, n=6)
    def _():
        return {"x": scores(np.random.default_rng(6), 2, 6) - 800}

    @exercise.special("rows at different heights", magnitude=500, L=3, n=5)
    def _():
        offsets = np.array([[500.0], [-500.0], [0.0]])
        return {"x": scores(np.random.default_rng(7), 3, 5) + offsets}

    @exercise.special("scores far apart in a row", magnitude=1500, L=3, n=6)
    def _():
        x = scores(np.random.default_rng(8), 3, 6)
        x[0, 2:5] += 900
        x[1, -1] += 1500
        x[2, 1] -= 1500
        return {"x": x}

    @exercise.special("a score of -∞ gets no weight", magnitude=1500, L=3, n=5)
    def _():
        x = scores(np.random.default_rng(9), 3, 5)
        x[2] -= 1500  # below what stands for -∞ where that is a number such as -1000
        x[0, 1] = x[1, 0] = x[1, 3] = x[2, 2] = -np.inf
        return {"x": x}


# -- predict the mean gradient -------------------------------------------------------------------


def mean_jacobian_norm(std, n=64, rows=10_000):
    x = std * np.random.default_rng(0).normal(size=(rows, n))
    p = softmax_model(x)
    squares, cubes = (p**2).sum(axis=-1), (p**3).sum(axis=-1)
    return np.sqrt(squares - 2 * cubes + squares**2).mean()


mean_gradient = Exercise(
    "softmax.mean_gradient",
    kind="predict",
    title="Does the mean gradient vanish?",
    statement="""
The Jacobian of softmax, $\\mathrm{diag}(p) - pp^\\top$, is what a gradient is multiplied by on its
way back. Take rows of 64 random scores. With standard deviation 1 (as after scaling) the
Jacobian has a certain mean norm. Now leave the scale out at $d_k = 64$: the standard deviation is
8.

By which **factor** does the mean norm change? (0.5: it halves. 1: it stays. 2: it doubles.) Set
`mean_gradient` to your number. The check measures it on 10,000 rows; 20 % is close enough.
""",
    link=ROW_BY_ROW,
    tolerance=0.2,
    hints=(
        "Look at a row whose weights are nearly uniform, and at one with two large scores close"
        " together. Which has the larger Jacobian?",
    ),
    reason="Rows with one clear winner have almost no gradient, rows with two rivals have a large"
    " one. At a standard deviation of 8 the two kinds balance, and the mean stays about where it"
    " was. What changes is the spread over the rows.",
    question="Which statistic of the rows would have told you that something happened?",
)


@mean_gradient.model
def _():
    return float(mean_jacobian_norm(8.0) / mean_jacobian_norm(1.0))


mean_gradient.wrong(
    0.0,
    "softmax.mean_gradient_vanishes",
    "The popular account says so, but on average nothing vanishes at d_k = 64.",
    why="A saturated row loses its gradient; a row with two rivals gains. The mean sees both.",
    hint="Only some of the rows have one clear winner.",
    link=ROW_BY_ROW,
)
mean_gradient.wrong(
    1 / 8,
    "softmax.mean_gradient_as_std",
    "You let the norm shrink as the standard deviation grows, by 8. It does not: most rows are"
    " not saturated.",
    why="At n = 64 four rows in five still have no weight above 0.99.",
    hint="Measure it for a row with two equal large scores.",
    link=ROW_BY_ROW,
)
mean_gradient.wrong(
    1 / 64,
    "softmax.mean_gradient_as_variance",
    "You let the norm shrink as the variance grows, by 64. It does not: most rows are not"
    " saturated.",
    why="At n = 64 four rows in five still have no weight above 0.99.",
    hint="Measure it for a row with two equal large scores.",
    link=ROW_BY_ROW,
)
mean_gradient.wrong(
    8.0,
    "softmax.mean_gradient_grows_as_std",
    "The norm does not grow with the scores: no weight can pass 1, and the norm never passes ½.",
    why="The largest Jacobian belongs to a row with two weights of one half.",
    hint="What is diag(p) - ppᵀ for p = (½, ½)?",
    link=DERIVATIVE,
)
mean_gradient.solutions += [
    Solution("mean_gradient = 1.1\n"),
    Solution("mean_gradient = 1.0\n"),
]


# -- softmax -------------------------------------------------------------------------------------

softmax = Exercise(
    "softmax.softmax",
    kind="implement",
    title="Softmax, for scores of any size",
    statement="""
Write `softmax(x)`: $\\exp(x_i)/\\sum_j \\exp(x_j)$ along the **last** axis.

`x` is $(\\dots, n)$, with any number of axes in front, or none; the result has the same shape.
Scores may be as large as 1500 or as small as -1500, and rows may lie far apart. A score of
$-\\infty$ gets weight 0; each row has at least one finite score. Do not change `x`.
""",
    link=f"{CHAPTER}#the-formula",
    goals=SOFTMAX_GOALS,
    backends=("numpy", "torch"),
    built_from=THE_ANSWER,
    hints=(
        "Try your function on (1, 2), then on (1001, 1002). The answer should be the same.",
        "Print the sums of the rows of your result.",
    ),
    reason="Subtracting the row's maximum changes no weight, since the factor exp(-max) cancels."
    " It leaves exponents of at most 0, and at least one exponential of 1, so neither the"
    " numerator overflows nor the sum is 0.",
    question="Why may some exponentials underflow to 0 without harm?",
    next="The logarithm of that sum is worth a function of its own: `logsumexp`.",
    properties=(rows_sum_to_one(), shift_changes_nothing("x")),
)
softmax.model(softmax_model)
add_softmax_probes(softmax)
add_softmax_faults(softmax)


@softmax.stub
def softmax_stub(x):
    """Weights of the scores x (..., n) along the last axis: (..., n)."""
    raise NotImplementedError


@softmax.solution
def softmax_solution(x):
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


@softmax.solution("Through the logarithm: x minus the log-sum-exp of its row.")
def softmax_by_lse(x):
    highest = x.max(axis=-1, keepdims=True)
    lse = highest + np.log(np.exp(x - highest).sum(axis=-1, keepdims=True))
    return np.exp(x - lse)


@softmax.solution(shown=False)
def softmax_logaddexp(x):
    return np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True))


@softmax.solution(shown=False)
def softmax_loops(x):
    rows = []
    for row in np.reshape(x, (-1, x.shape[-1])):
        highest = max(row)
        exps = [math.exp(score - highest) for score in row]
        rows.append([e / sum(exps) for e in exps])
    return np.array(rows).reshape(x.shape)


@softmax.solution(shown=False)
def softmax_pairwise(x):
    # 1 / Σ_j exp(x_j - x_i): no maximum in sight; an overflow makes the weight 0, as it should.
    with np.errstate(over="ignore", invalid="ignore"):
        p = 1 / np.exp(x[..., None, :] - x[..., :, None]).sum(axis=-1)
    return np.where(x == -np.inf, 0, p)


@softmax.solution(shown=False)
def softmax_in_place(x):
    p = np.array(x)
    p -= p.max(-1)[..., None]
    np.exp(p, out=p)
    p /= np.einsum("...n->...", p)[..., None]
    return p


@softmax.solution(shown=False)
def softmax_base_two(x):
    z = x * np.log2(np.e)
    exps = np.exp2(z - z.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@softmax.solution(shown=False)
def softmax_online(x):
    highest, total = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])
    for i in range(x.shape[-1]):
        new = np.maximum(highest, x[..., i])
        safe = np.where(np.isinf(new), 0, new)
        total = total * np.exp(highest - safe) + np.exp(x[..., i] - safe)
        highest = new
    return np.exp(x - highest[..., None]) / total[..., None]


@softmax.solution(backend="torch")
def softmax_torch(x):
    exps = (x - x.amax(dim=-1, keepdim=True)).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


@softmax.solution(backend="torch", shown=False)
def softmax_torch_lse(x):
    return (x - x.logsumexp(-1, keepdim=True)).exp()


# -- the largest exponent ------------------------------------------------------------------------

overflow_in_half = Exercise(
    "softmax.overflow_in_half",
    kind="predict",
    title="Where float16 ends",
    statement="""
The largest number in float16 is 65504. Without subtracting a maximum, from which **score** on does
a softmax in float16 overflow?

Set `overflow_in_half` to your number. The check looks for the first float16 number whose `exp` is
infinite; 5 % is close enough.
""",
    link=OVERFLOW,
    tolerance=0.05,
    hints=("Which x has e^x = 65504?",),
    reason="ln 65504 = 11.09. A score of 12 is nothing unusual: without a scale it is one and a"
    " half standard deviations at d_k = 64.",
    question="bfloat16 has fewer digits than float16. Why does it overflow only near 88.7?",
)


@overflow_in_half.model
def _():
    halves = np.arange(0x4000, 0x7C00, dtype=np.uint16).view(np.float16)  # from 2 to 65504
    with np.errstate(over="ignore"):
        return float(halves[np.isinf(np.exp(halves))][0])


overflow_in_half.wrong(
    65504.0,
    "softmax.largest_number_as_exponent",
    "65504 is the largest result that exp may have, not the largest score that it may get.",
    why="exp of a score near 65504 is beyond every format there is.",
    hint="Take a logarithm.",
    link=OVERFLOW,
)
overflow_in_half.wrong(
    16.0,
    "softmax.exponent_in_base_two",
    "2^16 is just above 65504; the exponential has the base e.",
    why="In powers of 2 the limit is 16, in powers of e it is smaller by ln 2.",
    hint="Take the natural logarithm.",
    link=OVERFLOW,
)
overflow_in_half.wrong(
    math.log10(65504),
    "softmax.exponent_in_base_ten",
    "That is the logarithm to the base 10; the exponential has the base e.",
    why="10^4.8 is 65504, and e^4.8 only 123.",
    hint="Take the natural logarithm.",
    link=OVERFLOW,
)
overflow_in_half.wrong(
    math.log(float(np.finfo(np.float32).max)),
    "softmax.limit_of_float32",
    "That is the limit of float32, and of bfloat16, which has the same exponents.",
    why="float16 has five bits for the exponent, float32 has eight.",
    hint="The largest number of float16 is 65504.",
    link=OVERFLOW,
)
overflow_in_half.wrong(
    math.log(float(np.finfo(np.float64).max)),
    "softmax.limit_of_float64",
    "That is the limit of float64.",
    why="float16 has five bits for the exponent, float64 has eleven.",
    hint="The largest number of float16 is 65504.",
    link=OVERFLOW,
)
overflow_in_half.solutions += [
    Solution("import math\n\noverflow_in_half = math.log(65504)\n"),
    Solution("overflow_in_half = 11.1\n"),
]


# -- catch a softmax without maximum -------------------------------------------------------------

expose_no_max = Exercise(
    "softmax.expose_no_max",
    kind="catch",
    title="Catch a softmax without a maximum",
    statement="""
Somebody's softmax returns `np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)`, with no maximum
subtracted. It passes all of their tests.

Write `expose_no_max()`, which returns `x`, an array of **finite** scores $(\\dots, n)$ on which
that function gives a wrong answer.
""",
    link=NO_MAX,
    hints=(
        "There are two ways to break it: an exponential that is too large for the dtype, and"
        " exponentials that are all too small.",
    ),
    reason="Where an exponential is infinite the weight is ∞/∞; where all of a row are 0 it is"
    " 0/0. NaN both times.",
    question="A test of a softmax needs one row of each kind. Which row would catch a maximum that"
    " starts at 0?",
)


@expose_no_max.inputs
def _(rng, L=2, n=5):
    return {"x": scores(rng, L, n)}


@expose_no_max.model
def _(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@expose_no_max.black_box
def _(x):
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


def naive_is_right(x):
    with np.errstate(over="ignore"):
        sums = np.exp(x).sum(axis=-1)
    return bool(np.isfinite(x).all() and np.isfinite(sums).all() and (sums > 0).all())


@expose_no_max.program(
    "catch.exponentials_in_range",
    "All exponentials of your scores fit the dtype: none is infinite, and no row is all 0."
    " There both functions agree.",
    why="Subtracting the maximum changes nothing but the overflow.",
    hint="In float64, exp overflows above 709.",
    link=NO_MAX,
    when=naive_is_right,
)
def _():
    return np.array([[30.0, -300.0, 5.0]])


@expose_no_max.program(
    "catch.not_finite",
    "Your scores contain NaN or infinity. The exercise asks for finite ones.",
    why="A softmax with a maximum has no answer for NaN or +∞ either.",
    hint="A large but finite score does it.",
    link=NO_MAX,
    when=lambda x: not np.isfinite(x).all(),
)
def _():
    return np.array([[np.inf, 1.0]])


@expose_no_max.solution
def expose_no_max_solution():
    return np.array([[1000.0, 1001.0]])


@expose_no_max.solution
def expose_no_max_far_below():
    return np.full((2, 3), -800.0)


@expose_no_max.solution(shown=False)
def expose_no_max_single():
    return np.array([90.0, 1.0], dtype=np.float32)


# -- fix one maximum for all rows ----------------------------------------------------------------

softmax_rows = Exercise(
    "softmax.softmax_rows",
    kind="fix",
    title="Fix a maximum",
    statement="""
`softmax_rows(x)` should return the softmax of each row of `x` $(\\dots, n)$, for scores of any
size. It subtracts a maximum, and never overflows. Yet some rows come out as NaN. Repair it.
""",
    link=ONE_MAX,
    goals=SOFTMAX_GOALS,
    backends=("numpy", "torch"),
    built_from=THE_ANSWER,
    hints=("Try two rows, one around 500 and one around -500. What is subtracted from each?",),
    reason="The maximum of the whole array protects the row that contains it. A row 1000 below has"
    " nothing but exponentials of 0, and 0/0 is NaN.",
    question="Why is a batch with one extreme sample more dangerous here than one extreme score in"
    " each sample?",
    properties=(rows_sum_to_one(), shift_changes_nothing("x")),
)
softmax_rows.model(softmax_model)
add_softmax_probes(softmax_rows)
add_softmax_faults(softmax_rows)


@softmax_rows.stub
def softmax_rows_stub(x):
    """Softmax of each row of x (..., n)."""
    exps = np.exp(x - x.max())
    return exps / exps.sum(axis=-1, keepdims=True)


@softmax_rows.solution
def softmax_rows_solution(x):
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


@softmax_rows.solution
def softmax_rows_moved(x):
    z = np.moveaxis(x, -1, 0)  # (n, ...): then nothing has to be kept
    exps = np.exp(z - z.max(0))
    return np.moveaxis(exps / exps.sum(0), 0, -1)


@softmax_rows.solution(backend="torch")
def softmax_rows_torch(x):
    exps = (x - x.max(dim=-1, keepdim=True).values).exp()
    return exps / exps.sum(dim=-1, keepdim=True)


@softmax_rows.solution(backend="torch", shown=False)
def softmax_rows_torch_detached(x):
    exps = (x - x.detach().amax(-1)[..., None]).exp()  # the shift cancels: no gradient needed
    return exps / exps.sum(-1)[..., None]


# -- one row, in order ---------------------------------------------------------------------------

stable_softmax = Exercise(
    "softmax.stable_softmax",
    kind="parsons",
    title="A stable softmax, in order",
    statement="""
Put lines in order to make `stable_softmax(x)`, the softmax of **one row** `x` $(n)$ of finite
scores of any size. Not every line is needed. Set `stable_softmax` to the letters, as in `"AB"`.
""",
    link=f"{CHAPTER}#the-code",
    header="def stable_softmax(x):",
    lines={
        "A": "exps = np.exp(highest - x)",
        "B": "highest = 0.0",
        "C": "return exps / exps.sum()",
        "D": "for score in x:",
        "E": "exps = np.exp(x - highest)",
        "F": "    highest = max(highest, score)",
        "G": "highest = -np.inf",
        "H": "return exps / exps.max()",
    },
    goals={
        "start": "the largest score is found, whatever its sign",
        "moved": "it is subtracted",
        "divisor": "the weights sum to 1",
    },
    hints=("What has to be known before the first exponential can be taken?",),
    reason="The maximum must be known before any exponential is taken, and a maximum over nothing"
    " is -∞. So a softmax reads its row twice.",
    question="How could one pass be enough? (What would have to be corrected when a larger score"
    " turns up?)",
    next="Chapter 12 does it in one pass.",
)


@stable_softmax.inputs
def _(rng, n=6):
    return {"x": scores(rng, n)}


stable_softmax.probe("a short row", n=3)
stable_softmax.probe("a longer row", n=7)


@stable_softmax.special("large scores", magnitude=800, n=5)
def _():
    return {"x": scores(np.random.default_rng(5), 5) + 800}


@stable_softmax.special("very negative scores", magnitude=800, n=6)
def _():
    return {"x": scores(np.random.default_rng(6), 6) - 800}


@stable_softmax.model
def _(x, *, start=np.max, moved=lambda x, m: x - m, divisor=np.sum):
    e = np.exp(moved(x, start(x)))
    return e / divisor(e)


stable_softmax.fault(
    "softmax.max_from_zero",
    "Your maximum starts at 0. In a row of very negative scores it stays there, and every"
    " exponential is 0.",
    why="A maximum over nothing is -∞.",
    hint="Follow `highest` through the row (-800, -801).",
    hidden="a score above 0",
    cite="microsoft/onnxruntime PR#2715; Dao-AILab/flash-attention#2082",
    link=FROM_ZERO,
    start=lambda x: max(x.max(), 0.0),
)
stable_softmax.fault(
    "softmax.max_minus_x",
    "You take exp(max - x): the smallest score gets the largest weight.",
    why="Subtracting the maximum must leave the order of the scores as it is.",
    hint="Should the exponents be positive or negative?",
    cite="CASIA-IVA-Lab/DANet#48 (there on purpose)",
    link=TURNED,
    moved=lambda x, m: m - x,
)
stable_softmax.fault(
    "softmax.not_normalised",
    "You divide by the largest exponential, which is 1 already, and not by the sum.",
    why="Weights are shares, and shares sum to 1.",
    hint="What do your weights sum to?",
    link=f"{CHAPTER}#the-formula",
    divisor=np.max,
)
stable_softmax.fault(
    "softmax.max_too_late",
    "You take the exponentials while `highest` is still -∞: x - (-∞) is ∞.",
    why="The largest score is known only after the whole row has been read.",
    hint="Which line makes `highest` right, and which one uses it?",
    link=f"{CHAPTER}#the-code",
    start=lambda x: -np.inf,
)
stable_softmax.fault(
    "softmax.no_max",
    "You subtract 0, which is nothing: exp overflows above 709 and vanishes below -745.",
    why="The loop that finds the largest score is missing, or comes too late.",
    hint="Which line makes `highest` right, and which one uses it?",
    cite="tenstorrent/tt-metal#12661; prescient-design/e3tools PR#3",
    link=NO_MAX,
    start=lambda x: 0.0,
)
stable_softmax.solutions += [Solution("GDFEC", "First the maximum, then the exponentials.")]


# -- log-sum-exp ---------------------------------------------------------------------------------

logsumexp = Exercise(
    "softmax.logsumexp",
    kind="implement",
    title="Log-sum-exp",
    statement="""
Write `logsumexp(x)`: $\\ln \\sum_j \\exp(x_j)$ along the last axis, which disappears. `x` is
$(\\dots, n)$, the result is $(\\dots)$.

Scores may be of any size, as in `softmax`; each row has at least one finite score.
""",
    link=LOG_SUM_EXP,
    goals={
        "shift": "each row's own maximum is subtracted",
        "axis": "along the last axis",
        "mean": "a sum, not a mean",
        "log": "the natural logarithm of it",
        "back": "the maximum comes back",
        "kept": "the axis disappears",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.softmax.logsumexp",
        "sdpa_course.with_torch.softmax.logsumexp",
        "torch.logsumexp",
        "scipy.special.logsumexp",
    ),
    hints=("Σ exp(x) = exp(m) · Σ exp(x - m). Take the logarithm of both sides.",),
    reason="ln Σ exp(x) = m + ln Σ exp(x - m). The sum lies between 1 and n, so its logarithm is"
    " harmless; the size of the scores stays outside, in m.",
    question="By how much can logsumexp(x) exceed max(x), for n scores?",
    next="softmax(x) = exp(x - logsumexp(x)). Chapter 12 builds fast attention on this.",
)


@logsumexp.stub
def logsumexp_stub(x):
    """ln Σ exp(x) along the last axis: x (..., n) → (...)."""
    raise NotImplementedError


logsumexp.make_inputs = softmax.make_inputs
logsumexp.probe("rows of one matrix", B=1, H=1, L=3, n=5)
logsumexp.probe("batch and heads", B=2, H=3, L=5, n=6)
logsumexp.probe("as many heads as samples", B=3, H=3, L=2, n=7)


@logsumexp.special("a single row, with one axis only", n=7)
def _():
    return {"x": scores(np.random.default_rng(4), 7)}


@logsumexp.special("large scores", L=3, n=5)
def _():
    offsets = np.array([[800.0], [712.0], [712.0]])
    return {"x": scores(np.random.default_rng(5), 3, 5) / 2 + offsets}


@logsumexp.special("very negative scores", L=2, n=6)
def _():
    return {"x": scores(np.random.default_rng(6), 2, 6) - 800}


@logsumexp.special("rows at different heights", L=3, n=5)
def _():
    offsets = np.array([[500.0], [-500.0], [0.0]])
    return {"x": scores(np.random.default_rng(7), 3, 5) + offsets}


@logsumexp.special("scores far apart in a row", L=3, n=6)
def _():
    x = scores(np.random.default_rng(8), 3, 6)
    x[0, 2:5] += 900
    x[1, -1] += 1500
    x[2, 1] -= 1500
    return {"x": x}


@logsumexp.special("a score of -∞ adds nothing", L=2, n=5)
def _():
    x = scores(np.random.default_rng(9), 2, 5)
    x[0, 1] = x[1, 0] = x[1, 3] = -np.inf
    return {"x": x}


@logsumexp.model
def _(x, *, shift=row_max, axis=-1, mean=False, log=np.log, back=np.add, kept=False):
    m = shift(x, axis)
    e = np.exp(x - m)
    total = e.mean(axis=axis, keepdims=True) if mean else e.sum(axis=axis, keepdims=True)
    result = back(log(total), m)
    return result if kept else result.squeeze(axis)


add_wrong_shifts(logsumexp)
logsumexp.fault(
    "lse.max_not_added",
    "You subtract the maximum and do not add it back: your result is too small by it.",
    why="In softmax the factor exp(-m) cancels in a fraction. Here there is no fraction.",
    hint="ln(exp(m) · Σ exp(x - m)) = ?",
    hidden="a largest score of 0",
    link=LOG_SUM_EXP,
    back=lambda log, m: log,
)
logsumexp.fault(
    "lse.max_subtracted_again",
    "You subtract the maximum a second time where it should be added back.",
    why="ln(exp(m) · Σ) = m + ln Σ.",
    hint="Try it on two scores of 1000. The answer is a little above 1000.",
    link=LOG_SUM_EXP,
    back=lambda log, m: log - m,
)
logsumexp.fault(
    "lse.log_two",
    "You take the logarithm to the base 2.",
    why="The exponential has the base e, so its inverse is the natural logarithm.",
    hint="Which base undoes exp?",
    link=LOG_SUM_EXP,
    log=np.log2,
)
logsumexp.fault(
    "lse.log_ten",
    "You take the logarithm to the base 10.",
    why="The exponential has the base e, so its inverse is the natural logarithm.",
    hint="Which base undoes exp?",
    link=LOG_SUM_EXP,
    log=np.log10,
)
logsumexp.fault(
    "lse.log_one_plus",
    "You take ln(1 + Σ). That counts one score more than there are.",
    why="After the maximum is subtracted the extra 1 stands for another score as large as the"
    " maximum.",
    hint="Try a row with one score only: the answer is that score.",
    link=LOG_SUM_EXP,
    log=np.log1p,
)
logsumexp.fault(
    "lse.no_log",
    "You do not take the logarithm of the sum.",
    why="m + Σ exp(x - m) adds a score and a sum of exponentials: two different things.",
    hint="Log, sum, exp: all three.",
    link=LOG_SUM_EXP,
    log=lambda total: total,
)
logsumexp.fault(
    "lse.only_max",
    "You return the maximum alone.",
    why="Log-sum-exp lies above the maximum, by as much as ln n where all scores are equal.",
    hint="Try it on two equal scores.",
    hidden="one score far above all others",
    link=LOG_SUM_EXP,
    log=lambda total: 0 * total,
)
logsumexp.fault(
    "lse.mean",
    "You take the mean of the exponentials: your result is too small by ln n.",
    why="ln(Σ/n) = ln Σ - ln n.",
    hint="Log, sum, exp.",
    hidden="n = 1",
    link=LOG_SUM_EXP,
    mean=True,
)
logsumexp.fault(
    "lse.axis_kept",
    "Your result has the shape (…, 1); the last axis should disappear.",
    why="keepdims is needed on the way, to subtract the maximum, and not in the result.",
    hint="Remove the axis at the end.",
    link=LOG_SUM_EXP,
    kept=True,
)
for id, words, axis in (
    ("softmax.over_queries", "over axis -2, the queries", -2),
    ("softmax.over_heads", "over axis 1, which holds the heads", 1),
    ("softmax.over_batch", "over axis 0, the samples of the batch", 0),
):
    logsumexp.fault(
        id,
        f"You sum {words}; the sum has to run along the last axis.",
        why="There is one log-sum-exp for each query: that of its scores with all keys.",
        hint="Count the axis from the back.",
        link=AXIS,
        axis=axis,
    )
logsumexp.fault(
    "softmax.over_everything",
    "You sum over the whole array and return one number; each row has its own.",
    why="There is one log-sum-exp for each query: that of its scores with all keys.",
    hint="Give the sum an axis.",
    hidden="a single row",
    link=AXIS,
    axis=None,
)


@logsumexp.solution
def logsumexp_solution(x):
    highest = x.max(axis=-1)
    return highest + np.log(np.exp(x - highest[..., None]).sum(axis=-1))


@logsumexp.solution("Pair by pair: ln(e^a + e^b) has a function of its own.")
def logsumexp_pairs(x):
    return np.logaddexp.reduce(x, axis=-1)


@logsumexp.solution(shown=False)
def logsumexp_kept(x):
    m = np.max(x, -1, keepdims=True)
    return (m + np.log(np.sum(np.exp(x - m), -1, keepdims=True))).squeeze(-1)


@logsumexp.solution(shown=False)
def logsumexp_sorted(x):
    z = np.sort(x, axis=-1)  # ln(1 + the rest), with the largest taken out
    return z[..., -1] + np.log1p(np.exp(z[..., :-1] - z[..., -1:]).sum(-1))


@logsumexp.solution(backend="torch")
def logsumexp_torch(x):
    highest = x.amax(dim=-1)
    return highest + (x - highest[..., None]).exp().sum(dim=-1).log()


@logsumexp.solution(backend="torch", shown=False)
def logsumexp_torch_through_softmax(x):
    import torch

    best, where = x.max(dim=-1, keepdim=True)
    return (best - torch.log_softmax(x, -1).gather(-1, where)).squeeze(-1)


# -- how large a gap -----------------------------------------------------------------------------

gap_for_half = Exercise(
    "softmax.gap_for_half",
    kind="predict",
    title="How far above the others?",
    statement="""
A query meets 1025 keys. 1024 of them have the score 0. How high must the score of the remaining
one be for that key to get **half** of the weight?

Set `gap_for_half` to your number. The check finds it with a softmax, by bisection; 3 % is close
enough.
""",
    link=GAP,
    tolerance=0.03,
    hints=("What do 1024 exponentials of 0 add up to?",),
    reason="1024 · exp(0) = 1024, so exp(g) = 1024 and g = ln 1024 = 6.93. The gap grows as the"
    " logarithm of the number of keys.",
    question="Scaled scores have standard deviation 1 at first. What does that say about a"
    " context of a million keys?",
)


@gap_for_half.model
def _():
    low, high = 0.0, 1000.0
    row = np.zeros(1025)
    for _ in range(60):
        row[0] = (low + high) / 2
        if softmax_model(row)[0] < 0.5:
            low = row[0]
        else:
            high = row[0]
    return high


gap_for_half.wrong(
    10.0,
    "softmax.gap_in_base_two",
    "2^10 is 1024; the exponential has the base e.",
    why="e^10 is 22026: the key would get nearly all of the weight.",
    hint="Take the natural logarithm.",
    link=GAP,
)
gap_for_half.wrong(
    math.log10(1024),
    "softmax.gap_in_base_ten",
    "That is the logarithm to the base 10; the exponential has the base e.",
    why="e^3 is 20, and the others add up to 1024.",
    hint="Take the natural logarithm.",
    link=GAP,
)
gap_for_half.wrong(
    1024.0,
    "softmax.gap_as_sum",
    "Weights are proportional to the exponentials of the scores, not to the scores.",
    why="A score of 1024 would leave nothing at all for the others.",
    hint="exp(g) has to be as large as the other exponentials together.",
    link=GAP,
)
gap_for_half.wrong(
    math.log(2),
    "softmax.gap_twice_one_other",
    "ln 2 above the others makes the key's weight twice that of *each* of them, not as much as all"
    " of them together.",
    why="2 against 1024 is a small share.",
    hint="There are 1024 others.",
    link=GAP,
)
gap_for_half.wrong(
    0.0,
    "softmax.gap_zero",
    "At 0 the key is like the other 1024, and gets a 1025th of the weight.",
    why="Equal scores get equal weights.",
    hint="exp(g) has to be as large as the other exponentials together.",
    link=GAP,
)
gap_for_half.solutions += [
    Solution("import math\n\ngap_for_half = math.log(1024)\n"),
    Solution("gap_for_half = 6.9\n"),
]


# -- entropy -------------------------------------------------------------------------------------

entropy = Exercise(
    "softmax.entropy",
    kind="implement",
    title="Entropy of a row of weights",
    statement="""
Write `entropy(p)`: $-\\sum_i p_i \\ln p_i$ along the last axis, in nats, with $0 \\ln 0 = 0$. `p`
is $(\\dots, n)$, weights of which some may be exactly 0; the result is $(\\dots)$. It should be
exact to rounding, so no small constant is to be added to `p`.
""",
    link=ENTROPY,
    goals={
        "safe": "a weight of 0 counts nothing",
        "log": "the natural logarithm",
        "factor": "the sign, and nothing else",
        "reduce": "a sum along the last axis",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.softmax.entropy",
        "sdpa_course.with_torch.softmax.entropy",
        "scipy.stats.entropy",
        "scipy.special.entr",
        "torch.special.entr",
    ),
    hints=("What do you get for the row (1, 0)? It should be 0.",),
    reason="x ln x tends to 0 with x, so a weight of 0 counts nothing. NumPy computes 0·(-∞), which"
    " is NaN; the logarithm must be kept from seeing the 0.",
    question="Which rows have entropy 0, and which have the largest entropy, ln n?",
)


@entropy.stub
def entropy_stub(p):
    """-Σ p ln p along the last axis, in nats: weights p (..., n) → (...)."""
    raise NotImplementedError


@entropy.inputs
def _(rng, B=2, H=3, L=5, n=6):
    lead = (B, H) if H > 1 else ()
    return {"p": weights(rng, *lead, L, n)}


entropy.probe("rows of one matrix", B=1, H=1, L=3, n=5)
entropy.probe("batch and heads", B=2, H=3, L=5, n=6)
entropy.probe("as many heads as samples", B=3, H=3, L=2, n=7)


@entropy.special("a single row, with one axis only", n=7)
def _():
    return {"p": weights(np.random.default_rng(4), 7)}


@entropy.special("weights of exactly 0", L=3, n=5)
def _():
    p = weights(np.random.default_rng(5), 3, 5)
    p[0], p[1, 1], p[2, 3:] = np.eye(5)[2], 0, 0
    return {"p": p / p.sum(axis=-1, keepdims=True)}


@entropy.special("weights close to 0", magnitude=1000, L=3, n=4)
def _():
    small = np.array([[1e-5, 0, 0], [1e-4, 1e-4, 1e-4], [1e-7, 1e-8, 0]])
    return {"p": np.hstack([small, 1 - small.sum(axis=-1, keepdims=True)])}


def log_of_positive(p, log):
    return log(np.where(p == 0, 1, p))


@entropy.model
def _(
    p,
    *,
    safe=log_of_positive,
    log=np.log,
    factor=-1.0,
    weight=lambda p: p,
    reduce=lambda t: t.sum(axis=-1),
    epsilon=0.0,
):
    return factor * reduce(weight(p) * safe(p + epsilon, log))


entropy.fault(
    "entropy.zero_log_zero",
    "A weight of 0 makes your result NaN: 0 · ln 0 is 0 · (-∞).",
    why="x ln x tends to 0 with x, so the term has to be 0. A mask makes such weights all the"
    " time.",
    hint="Replace the weights that are 0 before the logarithm sees them.",
    hidden="no weight of exactly 0",
    link=ZERO_LOG,
    safe=lambda p, log: log(p),
)
entropy.fault(
    "entropy.bits",
    "You take the logarithm to the base 2: that is the entropy in bits, and nats are asked for.",
    why="One nat is 1.44 bits.",
    hint="Take the natural logarithm.",
    link=ENTROPY,
    log=np.log2,
)
entropy.fault(
    "entropy.log_ten",
    "You take the logarithm to the base 10.",
    why="Nats have the base e.",
    hint="Take the natural logarithm.",
    link=ENTROPY,
    log=np.log10,
)
entropy.fault(
    "entropy.negative",
    "Your entropy is negative: the minus sign is missing.",
    why="The logarithm of a weight is at most 0, so the sum has to be turned round.",
    hint="What is the sign of ln p?",
    link=ENTROPY,
    factor=1.0,
)
entropy.fault(
    "entropy.mean",
    "You take the mean of the terms; entropy is their sum.",
    why="The weights already do the averaging: -Σ p ln p is the mean of -ln p under p.",
    hint="Uniform weights over n keys have entropy ln n.",
    link=ENTROPY,
    reduce=lambda t: t.mean(axis=-1),
)
entropy.fault(
    "entropy.unweighted",
    "You add up -ln p without weighting each by p.",
    why="A weight close to 0 would then count the most.",
    hint="Which factor stands before ln p?",
    link=ENTROPY,
    weight=lambda p: 1.0,
)
entropy.fault(
    "entropy.squared",
    "You weight -ln p by p² and not by p.",
    why="Entropy is the mean of -ln p under p, so each term is weighted once.",
    hint="Which factor stands before ln p?",
    link=ENTROPY,
    weight=lambda p: p * p,
)
entropy.fault(
    "entropy.axis_kept",
    "Your result has the shape (…, 1); the last axis should disappear.",
    why="There is one number for each row.",
    hint="Remove the axis at the end.",
    link=ENTROPY,
    reduce=lambda t: t.sum(axis=-1, keepdims=True),
)
entropy.fault(
    "entropy.not_summed",
    "You return the terms -p ln p; their sum is asked for.",
    why="Each term is the part of one key; the entropy belongs to the row.",
    hint="The result has one axis less than p.",
    link=ENTROPY,
    reduce=lambda t: t,
)
entropy.fault(
    "entropy.over_queries",
    "You sum over axis -2, the queries. The entropy is that of a row, along the last axis.",
    why="Each query has a distribution over the keys. A column is none.",
    hint="Count the axis from the back.",
    link=AXIS,
    reduce=lambda t: t.sum(axis=-2),
)
entropy.fault(
    "entropy.over_batch",
    "You sum over axis 0. The entropy is that of a row, along the last axis.",
    why="Each query has a distribution over the keys.",
    hint="Count the axis from the back.",
    link=AXIS,
    reduce=lambda t: t.sum(axis=0),
)
entropy.fault(
    "entropy.over_everything",
    "You sum over the whole array and return one number; each row has its own entropy.",
    why="Each query has a distribution of its own.",
    hint="Give the sum an axis.",
    hidden="a single row",
    link=AXIS,
    reduce=lambda t: t.sum(),
)
entropy.fault(
    "entropy.normalised",
    "You divide by ln n: that is the share of the largest possible entropy, and nats are asked"
    " for.",
    why="H/ln n lies between 0 and 1. It is what this chapter plots, and another quantity.",
    hint="Uniform weights should give ln n.",
    link=ENTROPY,
    reduce=lambda t: t.sum(axis=-1) / np.log(t.shape[-1]),
)
entropy.fault(
    "entropy.perplexity",
    "You return exp of the entropy. That is the perplexity, the number of weights that count.",
    why="The entropy of n equal weights is ln n, their perplexity is n.",
    hint="Uniform weights should give ln n.",
    link=ENTROPY,
    reduce=lambda t: np.exp(-t.sum(axis=-1)),
    factor=1.0,
)
entropy.add(
    Fit(
        "entropy.epsilon",
        "epsilon",
        "You add {found} to the weights inside the logarithm. That keeps the NaN away and makes"
        " every entropy a little wrong.",
        right=lambda dims: 0.0,
        grid=(1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2),
        why="The constant acts on every weight, not only on those that are 0; for a one-hot row"
        " the entropy even falls below 0.",
        hint="Treat the weights that are 0, and no others.",
        link=ZERO_LOG,
    )
)


@entropy.solution
def entropy_solution(p):
    logs = np.log(np.where(p == 0, 1, p))
    return -(p * logs).sum(axis=-1)


@entropy.solution("The logarithm is asked only where there is something to take it of.")
def entropy_where(p):
    logs = np.log(p, where=p > 0, out=np.zeros_like(p))
    return -np.einsum("...n,...n->...", p, logs)


@entropy.solution(shown=False)
def entropy_nan_sum(p):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.nansum(p * np.log(p), axis=-1)


@entropy.solution(shown=False)
def entropy_power(p):
    return -np.log(p**p).sum(-1)  # 0 ** 0 is 1


@entropy.solution(shown=False)
def entropy_tiny_constant(p):
    return -(p * np.log(p + 1e-12)).sum(-1)


@entropy.solution(shown=False)
def entropy_loops(p):
    rows = [
        sum(-w * math.log(w) for w in row if w > 0) for row in p.reshape(-1, p.shape[-1]).tolist()
    ]
    return np.array(rows, dtype=float).reshape(p.shape[:-1])


@entropy.solution(backend="torch")
def entropy_torch(p):
    logs = p.masked_fill(p == 0, 1).log()
    return -(p * logs).sum(dim=-1)


@entropy.solution(backend="torch", shown=False)
def entropy_torch_xlogy(p):
    import torch

    return -torch.xlogy(p, p).sum(-1)


# -- the derivative ------------------------------------------------------------------------------

softmax_vjp = Exercise(
    "softmax.softmax_vjp",
    kind="implement",
    title="Back through the softmax",
    statement="""
A row of scores $x$ has the weights $p = \\mathrm{softmax}(x)$, and a loss has the gradient
$\\partial\\ell/\\partial p$ at the weights. Write `softmax_vjp(p, d_p)`, which returns the gradient
at the scores,

$$\\frac{\\partial\\ell}{\\partial x} = \\left(\\mathrm{diag}(p) - pp^\\top\\right)
\\frac{\\partial\\ell}{\\partial p},$$

for each row: `p` and `d_p` are $(\\dots, n)$, and so is the result. You need not build a matrix.
""",
    link=DERIVATIVE,
    goals={
        "first": "a weight passes on its own gradient",
        "mean": "less the row's average",
        "axis": "row by row",
        "outer": "times the weight",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.softmax.softmax_vjp",
        "sdpa_course.with_numpy.softmax.softmax_jvp",
        "sdpa_course.with_numpy.softmax.softmax_jacobian",
        "sdpa_course.with_torch.softmax.softmax_vjp",
        "sdpa_course.with_torch.softmax.softmax_jvp",
        "sdpa_course.with_torch.softmax.softmax_jacobian",
    ),
    hints=(
        "Multiply it out: diag(p) g is p ∘ g, and p pᵀ g is p times one number.",
        "Each row of the result sums to 0. Does yours?",
    ),
    reason="p ∘ g - p (p·g) = p ∘ (g - Σ p g): each score gets the gradient of its weight, less"
    " the average under the weights. The rows sum to 0, as adding a constant to a row of scores"
    " changes nothing.",
    question="Which gradients g at the weights give no gradient at the scores at all?",
    next="Chapter 07 puts this between dV and dQ, dK.",
)


@softmax_vjp.stub
def softmax_vjp_stub(p, d_p):
    """Gradient at the scores from that at the weights, both (..., n), along the last axis."""
    raise NotImplementedError


@softmax_vjp.inputs
def _(rng, B=2, H=3, L=5, n=6):
    lead = (B, H) if H > 1 else ()
    return {"p": weights(rng, *lead, L, n), "d_p": scores(rng, *lead, L, n) + 1}


softmax_vjp.probe("rows of one matrix", B=1, H=1, L=3, n=5)
softmax_vjp.probe("batch and heads", B=2, H=3, L=5, n=6)
softmax_vjp.probe("as many heads as samples", B=3, H=3, L=2, n=7)


@softmax_vjp.special("as many rows as columns", L=5, n=5)
def _():
    rng = np.random.default_rng(3)
    return {"p": weights(rng, 5, 5), "d_p": scores(rng, 5, 5) + 1}


@softmax_vjp.special("a single row, with one axis only", n=7)
def _():
    rng = np.random.default_rng(4)
    return {"p": weights(rng, 7), "d_p": scores(rng, 7) + 1}


def weighted_average(p, g, total):
    return total(p * g)


@softmax_vjp.model
def _(
    p,
    d_p,
    *,
    again=lambda p: p,
    average=weighted_average,
    total=row_sum,
    share=1.0,
    outer=lambda p, g, mean: p * (g - mean),
):
    p = again(p)
    return outer(p, d_p, share * average(p, d_p, total))


softmax_vjp.fault(
    "softmax.jacobian_diagonal",
    "You multiply by p(1 - p): that is the diagonal of the Jacobian alone, the derivative of a"
    " sigmoid.",
    why="Raising one score lowers all other weights of the row, and the gradient has to count"
    " that.",
    hint="What does raising score 1 do to weight 2?",
    cite="AkiRusProd/numpy-transformer 654440e; HomericIntelligence/Odyssey#2134;"
    " pocketpy/cTensor PR#31",
    link=ELEMENTWISE,
    outer=lambda p, g, mean: p * (1 - p) * g,
)
softmax_vjp.fault(
    "softmax.jacobian_identity",
    "You pass the gradient through as it is, as if the weights were the scores.",
    why="A gradient at the scores sums to 0 in each row, since adding a constant to a row changes"
    " nothing.",
    hint="Sum each row of your result.",
    cite="pjreddie/darknet PR#96",
    link=ELEMENTWISE,
    outer=lambda p, g, mean: g,
)
softmax_vjp.fault(
    "softmax.jacobian_row_term_missing",
    "You return p ∘ g: the part -p(p·g) is missing.",
    why="That part says that the weights of a row share one unit: what one gains the others lose.",
    hint="Sum each row of your result. It should be 0.",
    link=ELEMENTWISE,
    share=0.0,
)
softmax_vjp.fault(
    "softmax.jacobian_row_term_added",
    "You add the row's average; it has to be subtracted.",
    why="The Jacobian is diag(p) minus p pᵀ.",
    hint="Sum each row of your result. It should be 0.",
    link=DERIVATIVE,
    share=-1.0,
)
softmax_vjp.fault(
    "softmax.jacobian_weights_forgotten",
    "You return g - Σ p g without the factor p in front.",
    why="A weight that is nearly 0 must pass on nearly nothing.",
    hint="What should become of the score of a key whose weight is 0?",
    link=DERIVATIVE,
    outer=lambda p, g, mean: g - mean,
)
softmax_vjp.fault(
    "softmax.jacobian_brackets",
    "You return p ∘ g - Σ p g: the factor p stands before the first term only.",
    why="p ∘ g - p (p·g) = p ∘ (g - p·g): the factor belongs to both.",
    hint="Where do the brackets open?",
    link=DERIVATIVE,
    outer=lambda p, g, mean: p * g - mean,
)
softmax_vjp.fault(
    "softmax.jacobian_sign",
    "Your result has the wrong sign.",
    why="Raising a score raises its weight, so the two gradients agree in sign for the weight"
    " that stands out.",
    hint="Try two scores and g = (1, 0).",
    link=DERIVATIVE,
    outer=lambda p, g, mean: p * (mean - g),
)
softmax_vjp.fault(
    "softmax.jacobian_outer_squared",
    "You multiply by p twice: p² ∘ (g - Σ p g).",
    why="diag(p) holds each weight once.",
    hint="Is one of your factors in the brackets already?",
    link=DERIVATIVE,
    outer=lambda p, g, mean: p * p * (g - mean),
)
softmax_vjp.fault(
    "softmax.jacobian_plain_sum",
    "You subtract the plain sum of g; each term has to be weighted with p.",
    why="The row vector pᵀ stands before g: p pᵀ g = p (Σ p g).",
    hint="pᵀg is a sum of products.",
    link=DERIVATIVE,
    average=lambda p, g, total: total(g),
)
softmax_vjp.fault(
    "softmax.jacobian_plain_mean",
    "You subtract the plain mean of g; the average has to be taken with the weights p.",
    why="The two agree only where all weights of the row are equal.",
    hint="pᵀg is a sum of products.",
    hidden="uniform weights",
    link=DERIVATIVE,
    average=lambda p, g, total: g.mean(axis=-1, keepdims=True),
)
for id, words, total, hidden in (
    (
        "softmax.jacobian_over_queries",
        "Your sum runs over axis -2, the queries",
        lambda t: t.sum(axis=-2, keepdims=True),
        "",
    ),
    (
        "softmax.jacobian_over_everything",
        "Your sum runs over the whole array",
        lambda t: t.sum(),
        "a single row",
    ),
    (
        "softmax.jacobian_sum_not_kept",
        "Your sum loses its axis and is lined up with the columns",
        lambda t: t.sum(axis=-1),
        "a single row",
    ),
):
    softmax_vjp.fault(
        id,
        f"{words}; each row has a sum of its own, along the last axis, (…, L, 1).",
        why="The rows of a softmax know nothing of each other, so neither do their gradients.",
        hint="Which axis, and is it kept?",
        hidden=hidden,
        link=AXIS,
        total=total,
    )
softmax_vjp.fault(
    "softmax.applied_again",
    "You take a softmax of p, which already holds the weights.",
    why="The softmax of weights is nearly uniform, so the gradient is that of another function.",
    hint="Is p the scores or the weights?",
    link=DERIVATIVE,
    again=lambda p: softmax_model(p),
)
softmax_vjp.add(
    Fit(
        "softmax.jacobian_share",
        "share",
        "You subtract {found} times the row's average (here {value}); once is right.",
        right=lambda dims: 1.0,
        why="Only with the factor 1 do the rows of the gradient sum to 0.",
        hint="Sum each row of your result.",
        link=DERIVATIVE,
    )
)


@softmax_vjp.solution
def softmax_vjp_solution(p, d_p):
    return p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))


@softmax_vjp.solution("With the matrix: n² numbers for each row, and easy to read.")
def softmax_vjp_matrix(p, d_p):
    jacobian = p[..., :, None] * (np.eye(p.shape[-1]) - p[..., None, :])  # (..., n, n)
    return (jacobian @ d_p[..., None])[..., 0]


@softmax_vjp.solution(shown=False)
def softmax_vjp_two_terms(p, d_p):
    g = p * d_p
    return g - p * np.einsum("...i->...", g)[..., None]


@softmax_vjp.solution(shown=False)
def softmax_vjp_loops(p, d_p):
    result = np.zeros(p.shape)
    n = p.shape[-1]
    for i in range(n):
        for j in range(n):
            result[..., i] += p[..., i] * ((i == j) - p[..., j]) * d_p[..., j]
    return result


@softmax_vjp.solution(backend="torch")
def softmax_vjp_torch(p, d_p):
    return p * (d_p - (p * d_p).sum(dim=-1, keepdim=True))


@softmax_vjp.solution(backend="torch", shown=False)
def softmax_vjp_torch_matrix(p, d_p):
    import torch

    jacobian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.einsum("...ij,...j->...i", jacobian, d_p)


# -- which rows ----------------------------------------------------------------------------------

which_rows = Exercise(
    "softmax.which_rows",
    kind="quiz",
    title="Which rows saturate?",
    statement="""
Rows of 64 random scores with standard deviation 8, as at $d_k = 64$ without a scale. Which
sentence do the measurements of this chapter support?
""",
    link=ROW_BY_ROW,
)
which_rows.option(
    "A",
    "Every row is saturated: the largest weight is above 0.99 nearly always.",
    "About one row in five is that far. The *mean* largest weight is high, and a mean says nothing"
    " about every row.",
)
which_rows.option(
    "B",
    "No row is saturated, since the mean norm of the Jacobian has not fallen.",
    "The mean hides it: rows with two rivals have a larger Jacobian than any scaled row, and make"
    " up for the rows that have almost none.",
)
which_rows.option(
    "C",
    "Some rows have almost no gradient, others more than any scaled row; the mean is about the"
    " same.",
    "Yes. The tenth percentile falls to a small part of what it was, the mean does not fall at"
    " all. It takes the quantiles to see both.",
    right=True,
)
which_rows.option(
    "D",
    "The rows with the largest scores are saturated.",
    "A large score does not saturate a row: add 1000 to all of its scores and nothing changes. What"
    " counts is the gap between the largest score and the next.",
)


EXERCISES = (
    mean_gradient,
    softmax,
    overflow_in_half,
    expose_no_max,
    softmax_rows,
    stable_softmax,
    logsumexp,
    gap_for_half,
    entropy,
    softmax_vjp,
    which_rows,
)
