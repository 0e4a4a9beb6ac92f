"""Graded exercises of the chapter on lookup: attention as a soft dictionary."""

from __future__ import annotations

import math

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution

CHAPTER = "00-lookup"
FORMULA = f"{CHAPTER}#the-formula"
RATIO = f"{CHAPTER}#one-more-in-score"
TEMPERATURE = f"{CHAPTER}#from-soft-to-hard"
SMOOTHER = f"{CHAPTER}#an-older-name-for-it"
HULL = f"{CHAPTER}#between-the-values"
PATH = f"{CHAPTER}#how-far-apart-two-tokens-are"
PROPORTIONAL = f"{CHAPTER}#proportional-to-the-score"
UPSIDE_DOWN = f"{CHAPTER}#the-temperature-upside-down"
OVERFLOW = f"{CHAPTER}#too-cold-for-the-exponential"
SHARES = f"{CHAPTER}#shares-that-do-not-sum-to-one"
KEYS_MIXED = f"{CHAPTER}#keys-in-place-of-values"
BANDWIDTH = f"{CHAPTER}#a-bandwidth-of-one"


def tokens(rng, *shape, std=1.0):
    return rng.normal(size=shape) * std


def transposed(k):
    return k.swapaxes(-1, -2)


def row_max(z):
    return z.max(axis=-1, keepdims=True)


def row_sum(e):
    return e.sum(axis=-1, keepdims=True)


# -- predict a ratio of weights ------------------------------------------------------------------

weight_ratio = Exercise(
    "lookup.weight_ratio",
    kind="predict",
    title="One more in score",
    statement="""
A query scores 3 with one key and 2 with another; there are more keys. The weights are the softmax
of the scores.

How many times as heavy as the second key is the first? Set `weight_ratio` to your number. The
check computes the weights and divides; 1 % is close enough.
""",
    link=RATIO,
    tolerance=0.01,
    hints=("Write both weights as fractions. What cancels?",),
    reason="Both weights have the same denominator, so the ratio is exp(3)/exp(2) = exp(1): one"
    " more in score makes a key e times as heavy, wherever the scores lie.",
    question="What is the ratio for the scores 103 and 102? And for 3 and 2 at temperature 2?",
)


@weight_ratio.model
def _():
    exps = np.exp(np.array([3.0, 2.0, -1.0, 0.5]))
    weights = exps / exps.sum()
    return float(weights[0] / weights[1])


weight_ratio.wrong(
    1.5,
    "lookup.proportional_to_score",
    "1.5 = 3/2 would be right if weights were proportional to the scores. They are proportional to"
    " the exponentials of the scores.",
    why="Scores may be negative, and a share may not.",
    hint="What does a softmax do before it divides?",
    link=PROPORTIONAL,
)
weight_ratio.wrong(
    2.0,
    "lookup.base_two",
    "2 would be the ratio if the base were 2. A softmax has the base e.",
    hint="Which base does the exponential have?",
    link=RATIO,
)
weight_ratio.wrong(
    10.0,
    "lookup.base_ten",
    "10 would be the ratio if the base were 10. A softmax has the base e.",
    hint="Which base does the exponential have?",
    link=RATIO,
)
weight_ratio.wrong(
    1.0,
    "lookup.difference_for_ratio",
    "1 is the difference of the scores. The question is about the ratio of the weights.",
    hint="Take the exponential of the difference.",
    link=RATIO,
)
weight_ratio.wrong(
    math.exp(1.5),
    "lookup.exponential_of_ratio",
    "That is exp(3/2). A ratio of exponentials is the exponential of a difference, exp(3 - 2).",
    hint="exp(a)/exp(b) = exp(a - b).",
    link=RATIO,
)
weight_ratio.solutions += [
    Solution("weight_ratio = 2.718  # exp(3) / exp(2)\n"),
    Solution("import math\n\nweight_ratio = math.exp(3 - 2)\n"),
]


# -- the soft lookup -----------------------------------------------------------------------------

soft_lookup = Exercise(
    "lookup.soft_lookup",
    kind="implement",
    title="A soft lookup",
    statement="""
Write `soft_lookup(q, k, v, temperature)`: $\\mathrm{softmax}(QK^\\top/\\tau)\\,V$.

`q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$, `v` is $(\\dots, S, d_v)$ and `temperature` is
a number $\\tau > 0$, which may be very small. The result is $(\\dots, L, d_v)$: one blend of value
rows for each query. You may use `softmax` from `sdpa_course.with_numpy` (or `torch.softmax`).
""",
    link=FORMULA,
    goals={
        "keys": "1 scores: every query meets every key",
        "factor": "2 scale: divided by the temperature",
        "moved": "4 softmax: the best key gets the largest share",
        "exponential": "4 softmax: an exponential of each score",
        "shift": "4 softmax: safe at low temperature",
        "total": "4 softmax: the shares of each query sum to 1",
        "mix": "5 mix: the value rows",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.lookup.soft_lookup",
        "sdpa_course.with_torch.lookup.soft_lookup",
        "sdpa_course.with_numpy.attention.scaled_dot_product_attention",
        "sdpa_course.with_torch.attention.scaled_dot_product_attention",
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    hints=(
        "Write it as three lines: scores, weights, output. Put the shape at the end of each.",
        "Each query has one unit of weight to share out. Which axis of (…, L, S) holds the keys?",
    ),
    reason="A score says how well a key matches; the exponential makes it a positive share, the"
    " sum makes the shares add up to 1, and the shares mix the value rows.",
    question="For which temperature is this scaled dot-product attention?",
    next="Where the score comes from: chapter 01. Why the temperature is √d_k: chapter 02.",
)


@soft_lookup.stub
def soft_lookup_stub(q, k, v, temperature):
    """softmax(q kᵀ / temperature) v

    q (..., L, d_k), k (..., S, d_k), v (..., S, d_v) → (..., L, d_v)
    """
    raise NotImplementedError


@soft_lookup.inputs
def _(rng, B=2, L=5, S=6, d_k=7, d_v=9):
    lead = (B,) if B > 1 else ()
    temperature = float(rng.uniform(1.5, 4.0))
    q, k = tokens(rng, *lead, L, d_k, std=1.5), tokens(rng, *lead, S, d_k)
    return {"q": q, "k": k, "v": tokens(rng, *lead, S, d_v), "temperature": temperature}


soft_lookup.probe("queries without a batch", B=1, L=3, S=5, d_k=6, d_v=2)
soft_lookup.probe("a batch", B=2, L=5, S=6, d_k=7, d_v=9)
soft_lookup.probe("more queries than keys", B=3, L=7, S=2, d_k=5, d_v=3)


@soft_lookup.special("a very low temperature", magnitude=1e4)
def _():
    rng = np.random.default_rng(3)
    q, k, v = tokens(rng, 3, 5), tokens(rng, 4, 5), tokens(rng, 4, 2)
    q[0], q[1] = -q[0], q[1] / 1000  # huge scores beside scores of ordinary size
    return {"q": q, "k": k, "v": v, "temperature": 0.001}


def over_temperature(q, temperature):
    return 1 / temperature


@soft_lookup.model
def _(
    q,
    k,
    v,
    temperature,
    *,
    keys=transposed,
    factor=over_temperature,
    shift=row_max,
    moved=lambda z, m: z - m,
    exponential=np.exp,
    total=row_sum,
    weigh=lambda p, temperature: p,
    mix=lambda p, k, v: p @ v,
):
    z = (q @ keys(k)) * factor(q, temperature)
    e = exponential(moved(z, shift(z)))
    return mix(weigh(e / total(e), temperature), k, v)


soft_lookup.fault(
    "lookup.temperature_multiplied",
    "You multiply the scores by the temperature; they should be divided by it.",
    why="A low temperature must make differences larger. Multiplied, it makes them smaller, and"
    " the lookup gets softer as it should get harder.",
    hint="What should happen to the weights as the temperature goes to 0?",
    hidden="temperature = 1",
    link=UPSIDE_DOWN,
    factor=lambda q, temperature: temperature,
)
soft_lookup.fault(
    "lookup.temperature_ignored",
    "The temperature has no effect: you take the softmax of the plain scores. (A factor outside"
    " the exponential cancels when the row is normalised.)",
    why="It belongs inside the exponential, under the scores.",
    hint="Call your function with two temperatures. Does the result differ?",
    hidden="temperature = 1",
    link=UPSIDE_DOWN,
    factor=lambda q, temperature: 1.0,
)
soft_lookup.fault(
    "lookup.temperature_squared",
    "You divide by the square of the temperature.",
    why="The square belongs to the bandwidth of a Gaussian kernel: bandwidth² is a temperature.",
    hint="Which of the two is given here?",
    hidden="temperature = 1",
    link=SMOOTHER,
    factor=lambda q, temperature: temperature**-2,
)
soft_lookup.fault(
    "lookup.temperature_root",
    "You divide by the root of the temperature.",
    why="Attention divides by √d_k, which is a temperature; here the temperature is given.",
    hint="Nothing has to be rooted here.",
    hidden="temperature = 1",
    link=FORMULA,
    factor=lambda q, temperature: temperature**-0.5,
)
soft_lookup.fault(
    "lookup.scaled_as_well",
    "You divide by √d_k and by the temperature. One of the two is the other: √d_k *is* a"
    " temperature.",
    why="The formula here has the temperature alone.",
    hint="How many divisors does the formula have?",
    link=FORMULA,
    factor=lambda q, temperature: 1 / (temperature * q.shape[-1] ** 0.5),
)
soft_lookup.fault(
    "lookup.scale_for_temperature",
    "You divide by √d_k and not by the temperature that is given.",
    why="That is attention, a soft lookup at one particular temperature.",
    hint="Where does your function use its last argument?",
    link=FORMULA,
    factor=lambda q, temperature: q.shape[-1] ** -0.5,
)
soft_lookup.fault(
    "scores.key_reshaped",
    "You reshape k to (…, d_k, S) where it must be transposed: the numbers of one key end up in"
    " several columns.",
    why="A reshape keeps the order in memory and only cuts it at other places.",
    hint="Swap the last two axes.",
    hidden="never by its shape",
    cite="hyunwoongko/transformer, first versions",
    link=FORMULA,
    keys=lambda k: k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
)
soft_lookup.fault(
    "scores.all_axes_reversed",
    "`.T` reverses every axis of k, the batch too.",
    why="With two axes that is a transpose; with three the shapes no longer fit.",
    hint="Swap only the last two axes.",
    hidden="two axes",
    cite="theorempath.com, attention-shape-trace",
    link=FORMULA,
    keys=lambda k: k.T,
)
soft_lookup.fault(
    "softmax.no_max",
    "You exponentiate the scores as they are. At a low temperature they are huge, exp overflows,"
    " and inf/inf is NaN.",
    why="The largest score of a row may be subtracted first: it cancels in the fraction, and no"
    " exponential is larger than 1.",
    hint="What may you subtract from all scores of a row without changing its weights?",
    hidden="scores below 709",
    cite="tenstorrent/tt-metal#12661; prescient-design/e3tools PR#3",
    link=OVERFLOW,
    shift=lambda z: 0.0,
)
soft_lookup.fault(
    "softmax.global_max",
    "You subtract one maximum, that of the whole array. At a low temperature the other rows"
    " underflow: all their exponentials are 0.",
    why="Each row needs its own largest score subtracted, so that one exponential is 1.",
    hint="Give the maximum an axis, and keep that axis.",
    hidden="rows of similar height",
    link=OVERFLOW,
    shift=lambda z: z.max(),
)
soft_lookup.fault(
    "lookup.negated",
    "The smallest score gets the largest weight: a sign is turned round.",
    why="A larger score is a better match. (A *distance* would want the minus.)",
    hint="Which key should weigh most?",
    hidden="equal scores",
    cite="CASIA-IVA-Lab/DANet#48 (there on purpose)",
    link=FORMULA,
    shift=lambda z: z.min(axis=-1, keepdims=True),
    moved=lambda z, m: m - z,
)
soft_lookup.fault(
    "softmax.no_exponential",
    "Your weights are proportional to the scores themselves; there is no exponential.",
    why="Scores may be negative, and may sum to nearly 0: shares below 0 and far above 1 come out.",
    hint="What makes every score positive and keeps their order?",
    link=PROPORTIONAL,
    shift=lambda z: 0.0,
    exponential=lambda z: z,
)
soft_lookup.fault(
    "lookup.clipped_at_zero",
    "Your weights are proportional to the positive scores, and 0 for the rest.",
    why="0 is no border: a score says something only next to the others of its row.",
    hint="What are the weights for the scores (-1, -2, -3)?",
    hidden="positive scores, where it is proportionality",
    link=PROPORTIONAL,
    shift=lambda z: 0.0,
    exponential=lambda z: np.maximum(z, 0),
)
soft_lookup.fault(
    "softmax.over_queries",
    "You share out over the queries: the columns of your weights sum to 1, the rows do not.",
    why="Each query has one unit of weight, and shares it out among the keys.",
    hint="Which axis of (…, L, S) runs over the keys?",
    hidden="L = 1",
    cite="labmlai/annotated_deep_learning_paper_implementations#146;"
    " nerminnuraydogan/vision-transformer#1",
    link=SHARES,
    shift=lambda z: z.max(axis=-2, keepdims=True),
    total=lambda e: e.sum(axis=-2, keepdims=True),
)
soft_lookup.fault(
    "softmax.sum_over_queries",
    "Your maximum runs over the keys and your sum over the queries: the columns of your weights"
    " sum to 1, the rows do not.",
    why="Each query has one unit of weight, and shares it out among the keys.",
    hint="Which axis of (…, L, S) runs over the keys?",
    link=SHARES,
    total=lambda e: e.sum(axis=-2, keepdims=True),
)
soft_lookup.fault(
    "softmax.over_batch",
    "You share out over axis 0: the samples of the batch, or the queries where there is no batch.",
    why="Counted from the front, an axis moves when a batch is added. Counted from the back, -1 is"
    " always the keys.",
    hint="Count the axis from the back.",
    cite="PetrochukM/PyTorch-NLP#2",
    link=SHARES,
    shift=lambda z: z.max(axis=0, keepdims=True),
    total=lambda e: e.sum(axis=0, keepdims=True),
)
soft_lookup.fault(
    "softmax.over_everything",
    "You divide by the sum of the whole array: all weights together sum to 1, not those of each"
    " query.",
    why="Each query has one unit of weight of its own.",
    hint="Give the sum an axis, and keep it.",
    hidden="one query",
    link=SHARES,
    shift=lambda z: z.max(),
    total=lambda e: e.sum(),
)
soft_lookup.fault(
    "softmax.not_normalised",
    "You do not divide by the sum: your shares do not sum to 1.",
    why="The output is then no average of the values, and grows with the number of keys.",
    hint="Look up among equal values. What should come out?",
    link=SHARES,
    total=lambda e: 1.0,
)
soft_lookup.fault(
    "softmax.mean_for_sum",
    "You divide by the mean of the exponentials: your shares sum to S, not to 1.",
    why="The mean is S times smaller than the sum.",
    hint="Look up among equal values. What should come out?",
    link=SHARES,
    total=lambda e: e.mean(axis=-1, keepdims=True),
)
soft_lookup.fault(
    "lookup.temperature_on_weights",
    "You divide the weights by the temperature, after the softmax.",
    why="The shares then no longer sum to 1, and are no sharper than before.",
    hint="Which comes first, step 2 or step 4?",
    hidden="temperature = 1",
    link=UPSIDE_DOWN,
    factor=lambda q, temperature: 1.0,
    weigh=lambda p, temperature: p / temperature,
)
soft_lookup.fault(
    "lookup.mixes_keys",
    "You mix the key rows. Keys are there to be found; what a lookup returns comes from the"
    " values.",
    why="In a dictionary, too, `d[key]` is not the key.",
    hint="Which of the three inputs should the result be made of?",
    hidden="self-attention without projections, where k is v",
    link=KEYS_MIXED,
    mix=lambda p, k, v: p @ k,
)
soft_lookup.fault(
    "lookup.returns_weights",
    "You return the weights; the values have not been mixed.",
    hint="One step is missing: 5 mix.",
    link=FORMULA,
    mix=lambda p, k, v: p,
)


@soft_lookup.program(
    "lookup.hard",
    "You return the value of the best key alone: a hard lookup.",
    why="It is what a soft lookup becomes as the temperature goes to 0. Here every key has a say.",
    hint="What is the share of the second-best key?",
    hidden="a temperature near 0",
    link=TEMPERATURE,
)
def _(q, k, v, temperature):
    best = (q @ k.swapaxes(-1, -2)).argmax(axis=-1)[..., None]
    return np.take_along_axis(v, best, axis=-2)


@soft_lookup.program(
    "lookup.mean",
    "You return the mean of all values, whatever the query is.",
    why="It is what a soft lookup becomes as the temperature grows without end.",
    hint="Does your result depend on q?",
    link=TEMPERATURE,
)
def _(q, k, v, temperature):
    return np.zeros((*q.shape[:-1], 1)) + v.mean(axis=-2, keepdims=True)


@soft_lookup.program(
    "lookup.distance",
    "Your scores are squared distances to the keys, with a minus, halved; the formula has dot"
    " products.",
    why="A Gaussian kernel does that. The two agree where all keys have the same length.",
    hint="What is q · k?",
    hidden="keys of one length",
    link=SMOOTHER,
)
def _(q, k, v, temperature):
    gaps = q[..., :, None, :] - k[..., None, :, :]
    z = -(gaps**2).sum(axis=-1) / (2 * temperature)
    e = np.exp(z - row_max(z))
    return e / row_sum(e) @ v


@soft_lookup.program(
    "lookup.cosine",
    "Your scores are cosines; the formula has dot products, in which lengths count.",
    why="Dividing by both lengths is another lookup, in which a long key wins nothing.",
    hint="Does your result change when one key is made twice as long?",
    hidden="vectors of length 1",
    link=FORMULA,
)
def _(q, k, v, temperature):
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    z = q @ transposed(k) / temperature
    e = np.exp(z - row_max(z))
    return e / row_sum(e) @ v


soft_lookup.add(
    Fit(
        "lookup.factor",
        "factor",
        "Beside 1/temperature, your scores are multiplied by {found} (here {value}); the formula"
        " multiplies them by nothing else.",
        right=lambda dims: 1.0,
        setting=lambda value: lambda q, temperature: value / temperature,
        why="A factor inside the exponential is a temperature too. (Another base than e is one:"
        " 2^x = e^(x·ln 2).)",
        hint="Which number multiplies your scores, or which base do you raise to a power?",
        link=UPSIDE_DOWN,
    )
)


@soft_lookup.solution
def soft_lookup_solution(q, k, v, temperature):
    scores = q @ k.swapaxes(-1, -2) / temperature  # (..., L, S)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = exps / exps.sum(axis=-1, keepdims=True)
    return weights @ v  # (..., L, d_v)


@soft_lookup.solution("With the softmax of the package.")
def soft_lookup_with_softmax(q, k, v, temperature):
    from sdpa_course.with_numpy import softmax

    return softmax(q @ k.swapaxes(-1, -2) / temperature) @ v


@soft_lookup.solution(shown=False)
def soft_lookup_einsum(q, k, v, temperature):
    z = np.einsum("...ld,...sd->...ls", q / temperature, k)
    p = np.exp(z - np.logaddexp.reduce(z, axis=-1, keepdims=True))
    return np.einsum("...ls,...sd->...ld", p, v)


@soft_lookup.solution(shown=False)
def soft_lookup_divided_last(q, k, v, temperature):
    z = np.matmul(q, np.swapaxes(k, -1, -2)) / temperature
    z -= z.max(-1)[..., None]
    np.exp(z, out=z)
    return (z @ v) / z.sum(-1)[..., None]


@soft_lookup.solution(shown=False)
def soft_lookup_loop(q, k, v, temperature):
    rows = []
    for i in range(q.shape[-2]):
        z = (q[..., i : i + 1, :] * k).sum(-1) / temperature
        e = np.exp(z - z.max(-1, keepdims=True))
        p = e / e.sum(-1, keepdims=True)
        rows.append((p[..., None] * v).sum(-2))
    return np.stack(rows, axis=-2)


@soft_lookup.solution(backend="torch")
def soft_lookup_torch(q, k, v, temperature):
    scores = q @ k.transpose(-2, -1) / temperature
    return scores.softmax(dim=-1) @ v


@soft_lookup.solution(backend="torch", shown=False)
def soft_lookup_torch_exponentials(q, k, v, temperature):
    z = (q / temperature) @ k.mT
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


# -- at which temperature ------------------------------------------------------------------------

half_the_weight = Exercise(
    "lookup.half_the_weight",
    kind="predict",
    title="A temperature for one half",
    statement="""
One key scores 1 with a query, and nine others score 0. At temperature 1 the best key gets less
than a quarter of the weight.

At which temperature does it get **half**? Set `half_the_weight` to your number. The check finds it
by bisection; 2 % is close enough.
""",
    link=TEMPERATURE,
    tolerance=0.02,
    hints=(
        "Half the weight means: as much as the nine others together.",
        "Solve exp(1/τ) = 9.",
    ),
    reason="The best key has the share exp(1/τ)/(exp(1/τ) + 9), which is ½ where exp(1/τ) = 9:"
    " τ = 1/ln 9.",
    question="And with 999 others? How does the temperature fall as keys are added?",
    next="That a gap must grow as ln n is measured in chapter 03.",
)


@half_the_weight.model
def _():
    low, high = 0.01, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        share = 1 / (1 + 9 * math.exp(-1 / middle))
        low, high = (middle, high) if share > 0.5 else (low, middle)
    return low


half_the_weight.wrong(
    math.log(9),
    "lookup.inverse_temperature",
    "That is ln 9, the factor by which the scores have to be multiplied. The temperature divides"
    " them.",
    why="The gap must become ln 9, and the gap is 1/τ.",
    hint="Is your temperature above or below 1? Should the lookup get harder or softer?",
    link=UPSIDE_DOWN,
)
half_the_weight.wrong(
    1 / math.log(10),
    "lookup.counts_itself",
    "You counted ten others. The best key has to outweigh the nine that are left.",
    hint="How much do the others weigh together, if the best one has half?",
    link=TEMPERATURE,
)
half_the_weight.wrong(
    1 / 9,
    "lookup.no_logarithm",
    "1/9 multiplies the gap by 9. It is the exponential of the gap that has to be 9.",
    hint="Take a logarithm.",
    link=TEMPERATURE,
)
half_the_weight.wrong(
    0.5,
    "lookup.half_temperature",
    "Half the temperature does not mean half the weight: at 0.5 the best key has 0.45.",
    hint="Write the share of the best key as a formula with τ in it.",
    link=TEMPERATURE,
)
half_the_weight.wrong(
    1 / math.log2(9),
    "lookup.base_two_logarithm",
    "You took the logarithm to the base 2. A softmax has the base e.",
    hint="Use the natural logarithm.",
    link=RATIO,
)
half_the_weight.solutions += [
    Solution("half_the_weight = 0.455  # 1 / ln 9\n"),
    Solution("import math\n\nhalf_the_weight = 1 / math.log(9)\n"),
]


# -- catch a lookup that is only nearly soft -----------------------------------------------------

expose_hard = Exercise(
    "lookup.expose_hard",
    kind="catch",
    title="When cold is not hard",
    statement="""
"At temperature 0.01 a soft lookup *is* a hard lookup", says a colleague, and puts
`v[scores.argmax()]` in place of `softmax(scores / 0.01) @ v`.

Write `expose_hard()`, which returns `(scores, v)`, two 1-D arrays of one length: the scores of one
query, and a number as the value of each key. The two functions should differ on them.
""",
    link=TEMPERATURE,
    hints=("How far ahead is the best key in your input, measured in temperatures?",),
    reason="The runner-up's share is about exp(-gap/τ). It vanishes only if the best key is many"
    " temperatures ahead. Two equal scores share the weight at every temperature.",
    question="Both functions agree on most random inputs. Would a random test have found this?",
)


def cold(scores, v):
    e = np.exp((scores - np.max(scores)) / 0.01)
    return e @ v / e.sum()


@expose_hard.inputs
def _(rng, S=5):
    return {"scores": tokens(rng, S), "v": tokens(rng, S)}


@expose_hard.model
def _(scores, v):
    return cold(np.asarray(scores, float), np.asarray(v, float))


@expose_hard.black_box
def _(scores, v):
    return np.asarray(v, float)[np.argmax(scores)]


def lead(scores):
    """How far the best score is ahead of the second best."""
    first, second = np.sort(np.asarray(scores, float).ravel())[[-1, -2]]
    return float(first - second)


@expose_hard.program(
    "catch.one_key",
    "With a single key there is nothing to share: its weight is 1 at any temperature.",
    hint="Add a second key.",
    link=TEMPERATURE,
    when=lambda scores, v: np.size(scores) == 1,
)
def _():
    return np.array([1.0]), np.array([2.0])


@expose_hard.program(
    "catch.equal_values",
    "All your values are the same, so it does not matter who gets the weight.",
    why="A blend of equal values is that value.",
    hint="Give each key a value of its own.",
    link=HULL,
    when=lambda scores, v: np.size(scores) > 1 and np.ptp(v) == 0,
)
def _():
    return np.array([1.0, 1.0, 0.5]), np.array([2.0, 2.0, 2.0])


@expose_hard.program(
    "catch.clear_winner",
    "Your best key is far ahead. Measured in temperatures its lead is so large that the others get"
    " nothing.",
    why="A gap of 0.5 is 50 temperatures, and exp(-50) is below rounding.",
    hint="Let two scores lie closer together.",
    link=TEMPERATURE,
    when=lambda scores, v: np.size(scores) > 1 and np.ptp(v) > 0 and lead(scores) > 0.3,
)
def _():
    return np.array([3.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])


@expose_hard.solution
def expose_hard_solution():
    return np.array([1.0, 1.0]), np.array([10.0, 20.0])  # equal scores: half of each


@expose_hard.solution("Not equal, only close.")
def expose_hard_close():
    return np.array([0.0, 2.0, 1.995, -1.0]), np.array([1.0, 2.0, 3.0, 4.0])


# -- the bounds of a blend -----------------------------------------------------------------------

output_bounds = Exercise(
    "lookup.output_bounds",
    kind="implement",
    title="Between the values",
    statement="""
Whatever the query, a soft lookup returns a weighted mean of the value rows. So each coordinate of
the output lies between two numbers that depend on `v` alone.

Write `output_bounds(v)`, which returns `(low, high)`: the tightest bounds that hold for every
query, every key and every temperature. `v` is $(\\dots, S, d_v)$; `low` and `high` are
$(\\dots, d_v)$.
""",
    link=HULL,
    goals={
        "extent": "the smallest and the largest value",
        "axis": "among the keys, for each coordinate",
        "order": "the lower bound first",
    },
    backends=("numpy", "torch"),
    outputs=("low", "high"),
    hints=("Which weights would push one coordinate of the output as high as possible?",),
    reason="All weight on the key with the largest (smallest) value in a coordinate reaches the"
    " bound there. No blend of numbers lies outside of the largest and the smallest.",
    question="Is every point within these bounds an output that some query could get?",
)


@output_bounds.stub
def output_bounds_stub(v):
    """(low, high): bounds of every coordinate of a soft lookup among v (..., S, d_v)."""
    raise NotImplementedError


@output_bounds.inputs
def _(rng, B=2, S=5, d_v=7):
    lead = (B,) if B > 1 else ()
    return {"v": tokens(rng, *lead, S, d_v, std=2) + 0.5}


output_bounds.probe("values without a batch", B=1, S=3, d_v=2)
output_bounds.probe("a batch", B=2, S=5, d_v=7)
output_bounds.probe("more coordinates than keys", B=3, S=2, d_v=6)


def smallest_and_largest(v, axis):
    return v.min(axis=axis), v.max(axis=axis)


@output_bounds.model
def _(v, *, extent=smallest_and_largest, axis=-2, order=(0, 1)):
    bounds = extent(v, axis)
    return tuple(bounds[i] for i in order)


output_bounds.fault(
    "hull.over_coordinates",
    "You look along d_v: one bound for each key. Keys are what gets mixed, so the bound of a"
    " coordinate runs over them.",
    why="Coordinates are never mixed with each other by a lookup.",
    hint="Which axis of v disappears when the value rows are mixed?",
    link=HULL,
    axis=-1,
)
output_bounds.fault(
    "hull.over_batch",
    "You look along axis 0, which holds the samples where there is a batch.",
    why="Samples are never mixed with each other.",
    hint="Count the axis from the back.",
    hidden="no batch",
    link=HULL,
    axis=0,
)
output_bounds.fault(
    "hull.over_everything",
    "You give two numbers for the whole array. They hold, but each coordinate has tighter bounds"
    " of its own.",
    hint="Give the minimum and the maximum an axis.",
    link=HULL,
    axis=None,
)
output_bounds.fault(
    "hull.symmetric",
    "You take ± the largest absolute value. It holds, but it is not tight: values need not lie"
    " around 0.",
    why="With the values 10 and 20 no blend is below 10.",
    hint="What is the smallest output for the values 10 and 20?",
    link=HULL,
    extent=lambda v, axis: (-np.abs(v).max(axis=axis), np.abs(v).max(axis=axis)),
)
output_bounds.fault(
    "hull.mean_and_deviation",
    "You take the mean ± one standard deviation. All weight on one key reaches further than that.",
    why="A mean and a deviation describe equal weights; a query may choose any.",
    hint="Which weights push a coordinate as high as possible?",
    link=HULL,
    extent=lambda v, axis: (
        v.mean(axis=axis) - v.std(axis=axis),
        v.mean(axis=axis) + v.std(axis=axis),
    ),
)
output_bounds.fault(
    "hull.zero_included",
    "Your bounds always include 0. A blend has no share of nothing: its weights sum to 1.",
    why="With the values 10 and 20 no blend is below 10.",
    hint="What is the smallest output for the values 10 and 20?",
    hidden="values on both sides of 0",
    link=HULL,
    extent=lambda v, axis: (
        np.minimum(v.min(axis=axis), 0),
        np.maximum(v.max(axis=axis), 0),
    ),
)
output_bounds.fault(
    "hull.sum",
    "You add the negative values for the lower bound and the positive ones for the upper. The"
    " weights sum to 1, so one key's worth of value is all there is.",
    why="Those would be the bounds if every weight could be 1 at once, as with sigmoids.",
    hint="How much weight is there in all?",
    link=HULL,
    extent=lambda v, axis: (np.minimum(v, 0).sum(axis=axis), np.maximum(v, 0).sum(axis=axis)),
)
output_bounds.fault(
    "hull.swapped",
    "You return (high, low); the order asked for is (low, high).",
    hint="Look at the last line.",
    link=HULL,
    order=(1, 0),
)


@output_bounds.solution
def output_bounds_solution(v):
    return v.min(axis=-2), v.max(axis=-2)


@output_bounds.solution("By sorting the keys in each coordinate.")
def output_bounds_sorted(v):
    ordered = np.sort(v, axis=-2)
    return ordered[..., 0, :], ordered[..., -1, :]


@output_bounds.solution(shown=False)
def output_bounds_loop(v):
    low = high = v[..., 0, :]
    for s in range(1, v.shape[-2]):
        low, high = np.minimum(low, v[..., s, :]), np.maximum(high, v[..., s, :])
    return low, high


@output_bounds.solution(backend="torch")
def output_bounds_torch(v):
    return v.amin(dim=-2), v.amax(dim=-2)


@output_bounds.solution(backend="torch", shown=False)
def output_bounds_torch_sorted(v):
    ordered = v.sort(dim=-2).values
    return ordered[..., 0, :], ordered[..., -1, :]


# -- which output is out of reach ----------------------------------------------------------------

out_of_reach = Exercise(
    "lookup.out_of_reach",
    kind="quiz",
    title="Out of reach",
    statement="""
Three keys have the value rows $(0, 0)$, $(1, 0)$ and $(0, 1)$. You may choose query, keys and
temperature as you like, as long as all numbers are finite. Which statement is right?
""",
    link=HULL,
)
out_of_reach.option(
    "A",
    "(0.2, 0.3) cannot come out: it is none of the three rows.",
    "A blend need not be a row. The weights 0.5, 0.2 and 0.3 give it.",
)
out_of_reach.option(
    "B",
    "(0.6, 0.6) cannot come out, although each coordinate lies between its smallest and its"
    " largest value.",
    "Yes. The last two weights would have to be 0.6 each, and all three sum to 1. Bounds for each"
    " coordinate are necessary, not sufficient: the output lies in the convex hull, here a"
    " triangle.",
    right=True,
)
out_of_reach.option(
    "C",
    "(0.4, 0.4) cannot come out: its two coordinates sum to less than 1.",
    "The first row takes up what is left: the weights 0.2, 0.4 and 0.4 give it.",
)
out_of_reach.option(
    "D",
    "Everything within the square from (0, 0) to (1, 1) can come out.",
    "The corner (1, 1) would need the weight 1 twice. What can come out is the triangle between"
    " the three rows.",
)


# -- fix a kernel smoother -----------------------------------------------------------------------

smooth = Exercise(
    "lookup.smooth",
    kind="fix",
    title="Fix a smoother",
    statement="""
`smooth(x, x_known, y_known, bandwidth)` should be Nadaraya-Watson regression: at each `x` $(L)$ the
mean of `y_known` $(S)$, weighted by $\\exp\\left(-\\frac{(x - x_j)^2}{2h^2}\\right)$ for the known
point $x_j$ in `x_known` $(S)$ and the bandwidth $h$. The result is $(L)$.

It was tried with a bandwidth of 1 and gave the right curve. Repair it.
""",
    link=SMOOTHER,
    goals={
        "exponent": "the exponent -(x - x_j)²/(2h²)",
        "total": "weights that sum to 1 for each x",
    },
    backends=("numpy", "torch"),
    built_from=("sdpa_course.with_numpy.lookup.kernel_smoother",),
    hints=("Put brackets around what stands under the fraction line.",),
    reason="`a / 2 * h**2` is `(a / 2) * h**2`: Python goes from left to right. With h = 1 nobody"
    " can see it.",
    question="Which bandwidth would you test such a function with?",
)


@smooth.stub
def smooth_stub(x, x_known, y_known, bandwidth):
    """The curve through (x_known, y_known), smoothed with a Gaussian kernel, at each x."""
    gaps = x[:, None] - x_known[None, :]  # (L, S)
    weights = np.exp(-(gaps**2) / 2 * bandwidth**2)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ y_known


@smooth.inputs
def _(rng, L=5, S=6):
    x, x_known, y_known = tokens(rng, L), tokens(rng, S), tokens(rng, S, std=2)
    bandwidth = float(rng.choice([0.6, 0.8, 1.7, 2.3]))
    return {"x": x, "x_known": x_known, "y_known": y_known, "bandwidth": bandwidth}


smooth.probe("a few points", seed=0, L=3, S=2)
smooth.probe("more points", seed=2, L=5, S=6)
smooth.probe("as many points as known ones", seed=5, L=7, S=7)


@smooth.model
def _(
    x,
    x_known,
    y_known,
    bandwidth,
    *,
    exponent=lambda gap, h: -(gap**2) / (2 * h**2),
    total=lambda w: w.sum(axis=1, keepdims=True),
):
    w = np.exp(exponent(x[:, None] - x_known[None, :], bandwidth))
    return (w / total(w)) @ y_known


for id, exponent, says, why, hint in (
    (
        "kernel.precedence",
        lambda gap, h: -(gap**2) / 2 * h**2,
        "You multiply by the squared bandwidth: `a / 2 * h**2` is `(a / 2) * h**2`.",
        "A larger bandwidth should make a smoother curve; this one gets rougher.",
        "Put brackets around what stands under the fraction line.",
    ),
    (
        "kernel.bandwidth_not_squared",
        lambda gap, h: -(gap**2) / (2 * h),
        "You divide by 2h; the formula has 2h².",
        "The gap is squared, so what it is measured with has to be squared too. h² is the"
        " temperature.",
        "In which unit is h, if x is in metres?",
    ),
    (
        "kernel.no_half",
        lambda gap, h: -(gap**2) / h**2,
        "The 2 under the fraction line is missing: your bandwidth is √2 times too small.",
        "exp(-(gap/h)²) is a Gaussian with another width.",
        "Compare your exponent with the formula, factor by factor.",
    ),
    (
        "kernel.bandwidth_ignored",
        lambda gap, h: -(gap**2) / 2,
        "The bandwidth has no effect: your curve is the one for h = 1.",
        "It has to divide the gap.",
        "Call your function with two bandwidths. Does the curve differ?",
    ),
    (
        "kernel.gap_not_squared",
        lambda gap, h: -np.abs(gap) / h,
        "Your exponent has |x - x_j|/h, not its square halved: a Laplace kernel, with a corner at"
        " each known point.",
        "A Gaussian has the square.",
        "Compare your exponent with the formula.",
    ),
    (
        "kernel.sign",
        lambda gap, h: gap**2 / (2 * h**2),
        "The minus is missing: the farther away a point is, the more it weighs.",
        "A large gap must give a small weight.",
        "Which point should weigh most?",
    ),
    (
        "kernel.bandwidth_on_wrong_side",
        lambda gap, h: -(gap**2) * (2 * h**2),
        "You multiply by 2h²; the formula divides by it.",
        "A larger bandwidth should make a smoother curve.",
        "Look at the sign between the gap and the bandwidth.",
    ),
):
    smooth.fault(
        id, says, why=why, hint=hint, hidden="bandwidth = 1" * (id != "kernel.sign"),
        link=BANDWIDTH, exponent=exponent,
    )  # fmt: skip
smooth.fault(
    "kernel.over_queries",
    "Your weights sum to 1 along the axis of x; for each x they have to sum to 1 along the known"
    " points.",
    why="Each x asks for one weighted mean.",
    hint="Which axis of (L, S) runs over the known points?",
    hidden="a single x",
    link=SHARES,
    total=lambda w: w.sum(axis=0, keepdims=True),
)
smooth.fault(
    "kernel.not_normalised",
    "You do not divide by the sum of the weights: your curve rises where points are dense.",
    why="A mean has weights that sum to 1.",
    hint="What should come out if all of y_known is 1?",
    link=SHARES,
    total=lambda w: 1.0,
)
smooth.fault(
    "kernel.divided_by_count",
    "You divide by the number of points; a weighted mean divides by the sum of the weights.",
    why="The weights do not sum to S.",
    hint="What should come out if all of y_known is 1?",
    link=SHARES,
    total=lambda w: w.shape[1],
)
smooth.fault(
    "kernel.sum_over_everything",
    "You divide by the sum of the whole array.",
    why="Each x has a sum of its own.",
    hint="Give the sum an axis, and keep it.",
    hidden="a single x",
    link=SHARES,
    total=lambda w: w.sum(),
)


@smooth.solution
def smooth_solution(x, x_known, y_known, bandwidth):
    gaps = x[:, None] - x_known[None, :]  # (L, S)
    weights = np.exp(-(gaps**2) / (2 * bandwidth**2))
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ y_known


@smooth.solution("The gap measured in bandwidths.")
def smooth_in_bandwidths(x, x_known, y_known, bandwidth):
    gaps = (x[:, None] - x_known[None, :]) / bandwidth
    weights = np.exp(-0.5 * gaps**2)
    return (weights @ y_known) / weights.sum(axis=1)


@smooth.solution(shown=False)
def smooth_shifted(x, x_known, y_known, bandwidth):
    z = -0.5 * ((x[:, None] - x_known) / bandwidth) ** 2
    w = np.exp(z - z.max(axis=1, keepdims=True))
    return np.average(np.broadcast_to(y_known, w.shape), axis=1, weights=w)


@smooth.solution(backend="torch")
def smooth_torch(x, x_known, y_known, bandwidth):
    gaps = x[:, None] - x_known[None, :]
    return (-(gaps**2) / (2 * bandwidth**2)).softmax(dim=1) @ y_known


@smooth.solution(backend="torch", shown=False)
def smooth_torch_exponentials(x, x_known, y_known, bandwidth):
    w = (-0.5 * ((x[:, None] - x_known) / bandwidth) ** 2).exp()
    return (w @ y_known) / w.sum(1)


# -- how many layers for a distance --------------------------------------------------------------

window_layers = Exercise(
    "lookup.window_layers",
    kind="predict",
    title="How many layers apart",
    statement="""
In each layer of a model, token $i$ attends to itself and to the 15 tokens before it, and to no
others. How many layers are needed until the output for token 100 can depend on token 0?

Set `window_layers` to your number. The check stacks layers and looks.
""",
    link=PATH,
    tolerance=0.02,
    hints=("How far back does one layer reach? And the next, from there?",),
    reason="Each layer reaches 15 tokens further back: 6 layers reach 90, 7 reach 105.",
    question="How many layers without the window? How many steps for a recurrent network?",
)


@window_layers.model
def _():
    gap = np.arange(101)[:, None] - np.arange(101)
    window = (gap >= 0) & (gap <= 15)
    reaches = np.eye(101, dtype=bool)
    layers = 0
    while not reaches[100, 0]:
        reaches = (window.astype(int) @ reaches) > 0
        layers += 1
    return float(layers)


window_layers.wrong(
    1.0,
    "path.no_window",
    "One layer is enough without the window. Here it reaches 15 tokens back.",
    hint="Where does token 100 get its news from in the last layer?",
    link=PATH,
)
window_layers.wrong(
    100.0,
    "path.recurrent",
    "100 steps is what a recurrent network needs, one token at a time. A layer here reaches 15"
    " tokens back at once.",
    hint="How far does one layer reach?",
    link=PATH,
)
window_layers.wrong(
    6.0,
    "path.rounded_down",
    "Six layers reach 6 · 15 = 90 tokens back. Token 0 is 100 away.",
    hint="Round up.",
    link=PATH,
)
window_layers.wrong(
    100 / 15,
    "path.not_rounded",
    "There is no fraction of a layer.",
    hint="Round up.",
    link=PATH,
)
window_layers.wrong(
    2.0,
    "path.logarithm",
    "The reach does not multiply from layer to layer, it adds: 15 further back each time. (It"
    " multiplies in dilated convolutions.)",
    hint="How far back do two layers reach?",
    link=PATH,
)
window_layers.solutions += [
    Solution("window_layers = 7  # 100 / 15, rounded up\n"),
    Solution("import math\n\nwindow_layers = math.ceil(100 / 15)\n"),
]


EXERCISES = (
    weight_ratio,
    soft_lookup,
    half_the_weight,
    expose_hard,
    output_bounds,
    out_of_reach,
    smooth,
    window_layers,
)
