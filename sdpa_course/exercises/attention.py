"""Graded exercises of the chapter on the whole operation, and the model that masking shares."""

from __future__ import annotations

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fault, Fit, Solution
from sdpa_course.grading.properties import keys_may_be_permuted, rows_sum_to_one, stays_within

from .scaling import right_factor, tokens, transposed
from .scaling import weighted_values as unmasked

CHAPTER = "04-attention"
STEPS = f"{CHAPTER}#the-five-steps"
ON_PAPER = f"{CHAPTER}#on-paper"
ORDER = f"{CHAPTER}#the-order-of-the-tokens"
WEIGHTS = f"{CHAPTER}#weights-are-not-explanations"
BETWEEN_HEADS = f"{CHAPTER}#attention-between-heads"
EXCHANGED = f"{CHAPTER}#query-and-key-exchanged"
MASK = f"{CHAPTER}#a-mask"
MASK_LATE = f"{CHAPTER}#a-mask-after-the-softmax"
MASK_TURNED = f"{CHAPTER}#a-mask-the-wrong-way-round"
MASK_NUMBERS = f"{CHAPTER}#a-mask-taken-for-numbers"
NOTHING = f"{CHAPTER}#nothing-to-attend-to"

LIBRARY = (
    "sdpa_course.with_numpy.attention.scaled_dot_product_attention",
    "sdpa_course.with_torch.attention.scaled_dot_product_attention",
    "torch.nn.functional.scaled_dot_product_attention",
)
GOALS = {
    "keys": "1 scores: every query meets every key",
    "factor": "2 scale: by one over the root of d_k",
    "hide": "3 mask: only what may be attended to",
    "axis": "4 softmax: over the keys",
    "mixed": "5 mix: weights times values",
}


# -- the model: five steps, each with its mistakes ------------------------------------------------


def hidden(scores, mask):
    return scores if mask is None else np.where(mask, scores, -np.inf)


def shifted(scores, axis):
    """Exponentials of which the largest along the axis is 1; of a row of -inf, all are 0."""
    highest = scores.max(axis, keepdims=True)
    return np.exp(scores - np.where(np.isfinite(highest), highest, 0))


def zero_where_empty(scores, axis=-1):
    """Softmax in which a row of -inf gives zeros."""
    exps = shifted(scores, axis)
    total = exps.sum(axis, keepdims=True)
    return exps / np.where(total == 0, 1, total)


def nan_where_empty(scores, axis):
    """Softmax in which a row of -inf gives NaN: 0/0."""
    exps = np.exp(scores - scores.max(axis, keepdims=True))
    return exps / exps.sum(axis, keepdims=True)


def mixed(weights, v):
    return weights @ v


def pipeline(
    q,
    k,
    v,
    mask=None,
    *,
    keys=transposed,
    factor=right_factor,
    hide=hidden,
    axis=-1,
    normalised=zero_where_empty,
    weight_factor=None,
    value_factor=None,
    late=None,
    mixed=mixed,
):
    """(output, weights): 1 scores, 2 scale, 3 mask, 4 softmax, 5 mix, as switches."""
    scores = (q @ keys(k)) * factor(q, k, v)
    scores = hide(scores, mask)
    weights = scores if axis == "none" else normalised(scores, axis)
    weights = weights if weight_factor is None else weights * weight_factor(q, k, v)
    weights = weights if late is None else late(weights, mask)
    v = v if value_factor is None else v * value_factor(q, k, v)
    return mixed(weights, v), weights


# Without a mask, the mistakes are those of the chapter on scaling, on the same switches.
LATE_SCALES = tuple(
    fault for fault in unmasked.faults if fault.id in ("scale.after_softmax", "scale.on_values")
)
SCORES_FAULTS = tuple(fault for fault in unmasked.faults if fault.id.startswith("scores."))
SCALE_FAULTS = tuple(
    fault for fault in unmasked.faults if fault.id.startswith("scale.") and fault not in LATE_SCALES
)
SCALE_FIT = next(fit for fit in unmasked.fits if fit.id == "scale.factor")
RARE_SCALES = ("scale.padded_size", "scale.measured_std", "scale.precedence_multiplied")
SOFTMAX_FAULTS = (
    *(fault for fault in unmasked.faults if fault.id.startswith("softmax.")),
    *LATE_SCALES,
    Fault(
        "softmax.not_normalised",
        "You do not divide by the sum of the exponentials: your largest weight is 1 in every row.",
        "Weights are shares, and shares sum to 1.",
        "03-softmax#the-formula",
        "Print the sums of the rows.",
        switches={"axis": -1, "normalised": shifted},
    ),
    Fault(
        "softmax.exponentials_only",
        "Your weights are the exponentials of the scores: nothing divides them by their sum.",
        "Weights are shares, and shares sum to 1.",
        "03-softmax#the-formula",
        "Print the sums of the rows.",
        switches={"axis": -1, "normalised": lambda scores, axis: np.exp(scores)},
    ),
)

MIX_FAULTS = (
    Fault(
        "mix.one_value",
        "You return the value of the key with the largest weight, not a mean of the values.",
        "That is a hard lookup. It has no gradient that says which key would have been better.",
        STEPS,
        "All values take part, each by its weight.",
        switches={"mixed": lambda w, v: np.take_along_axis(v, w.argmax(-1)[..., None], -2)},
    ),
    Fault(
        "mix.values_untouched",
        "Your output is the mean of the values, whatever the scores are.",
        "The weights take no part: every query gets the same row.",
        STEPS,
        "Multiply the weights with the values.",
        switches={"mixed": lambda w, v: np.repeat(v.mean(-2, keepdims=True), w.shape[-2], -2)},
    ),
)

MASK_FAULTS = (
    Fault(
        "mask.ignored",
        "Your mask has no effect: every query attends to every key.",
        "Padding and the future take part in the weights.",
        MASK,
        "Where does mask appear in your code, and is the result used?",
        hidden="a mask that is True everywhere",
        cite="keras-team/keras#23038; facebookresearch/xformers#103",
        switches={"hide": lambda s, m: s},
    ),
    Fault(
        "mask.inverted",
        "Your mask is the wrong way round: you hide what may be attended to.",
        "Here True means *may attend*. In nn.MultiheadAttention it means the opposite.",
        MASK_TURNED,
        "Which value of the mask leaves a score as it is?",
        hidden="a mask that is True everywhere",
        cite="rasbt/LLMs-from-scratch#1061; lucidrains/x-transformers#164; "
        "NVIDIA/TransformerEngine#614",
        switches={"hide": lambda s, m: np.where(m, -np.inf, s)},
    ),
    Fault(
        "mask.added_as_numbers",
        "You add the mask to the scores as 0 and 1, so nothing is hidden: keys that may be "
        "attended to get 1 more.",
        "Only a mask of 0 and -inf may be added.",
        MASK_NUMBERS,
        "What does exp do with a score that was raised by 1, and with one raised by 0?",
        cite="huggingface/diffusers#14342; pytorch/pytorch#103963",
        switches={"hide": lambda s, m: s + m},
    ),
    Fault(
        "mask.multiplied_into_scores",
        "You multiply the scores by the mask: hidden scores become 0, and exp(0) is 1.",
        "A score of 0 is no small score. It is larger than every negative one.",
        MASK_NUMBERS,
        "Which score has the weight 0?",
        switches={"hide": lambda s, m: s * m},
    ),
    Fault(
        "mask.after_softmax",
        "You set weights to 0 after the softmax, and do not normalise again.",
        "The hidden keys stay in the denominator, so the rows sum to less than 1.",
        MASK_LATE,
        "What do the rows of your weights sum to?",
        hidden="a mask that is True everywhere",
        cite="huggingface/pytorch-image-models PR#2236",
        switches={"hide": lambda s, m: s, "late": lambda w, m: w * m},
    ),
    Fault(
        "mask.plus_infinity",
        "You fill hidden scores with +∞: the maximum of the row is ∞, and ∞ - ∞ is NaN.",
        "-float('-inf') is +∞. A hidden score must be the smallest of all, not the largest.",
        MASK_NUMBERS,
        "Which number has the exponential 0?",
        hidden="a mask that is True everywhere",
        cite="lucidrains/memory-compressed-attention#2",
        switches={"hide": lambda s, m: np.where(m, s, np.nan)},
    ),
    Fault(
        "mask.zero_times_infinity",
        "You multiply -∞ by 0 where a score should stay as it is: 0 · ∞ is NaN.",
        "(1 - mask) * -inf is meant to be 0 where the mask is True, and it is NaN there.",
        MASK_NUMBERS,
        "Choose between two numbers, and do not compute with infinity.",
        hidden="a compiler that rewrites the product, as XLA does",
        cite="onnx/onnx PR#8068; ml-explore/mlx#1725",
        switches={"hide": lambda s, m: np.where(m, np.nan, -np.inf)},
    ),
    Fault(
        "mask.mean_of_values",
        "A query with nothing to attend to gets the mean of all values from you; it should get 0.",
        "A large finite number in place of -inf makes such a row uniform. Padding leaks into it.",
        NOTHING,
        "What is softmax of a row in which all entries are equal?",
        hidden="every query may attend to something",
        cite="microsoft/onnxruntime PR#28958; hyunwoongko/transformer PR#40",
        switches={"hide": lambda s, m: np.where(m, s, -1e9)},
    ),
    Fault(
        "mask.nan_row",
        "A query with nothing to attend to gets NaN from you; it should get 0.",
        "Its weights are 0/0. One NaN spreads to everything computed from it.",
        NOTHING,
        "What is the sum of the exponentials in a row of -inf?",
        hidden="every query may attend to something",
        cite="pytorch/pytorch#41508",
        switches={"normalised": nan_where_empty},
    ),
    Fault(
        "mask.queries_hidden",
        "You apply the mask to the wrong axis: it is turned round, queries for keys.",
        "mask[i, j] says whether query i may attend to key j.",
        MASK,
        "The shape of the mask is (L, S), like that of the scores.",
        hidden="a symmetric mask",
        cite="hyunwoongko/transformer PR#40; keras-team/keras-io PR#1254",
        switches={"hide": lambda s, m: np.where(np.swapaxes(m, -1, -2), s, -np.inf)},
    ),
)

FILL_FIT = Fit(
    "mask.fill_value",
    "hide",
    "You put {value} where a score is hidden: that is a score like any other, and it keeps weight.",
    right=lambda dims: -np.inf,
    setting=lambda c: lambda s, m: np.where(m, s, c),
    grid=(-1.0, -2.0, -3.0, -5.0, -8.0, 0.0, 1.0, 3.0),
    why="exp(-10) is not 0, and scores may be below -10 themselves.",
    link=MASK,
    hint="Which number has the exponential 0?",
)


def add_pipeline_faults(exercise: Exercise, *, masked: bool) -> None:
    """The mistakes of all five steps, for an exercise that returns (output, weights) if masked."""
    # Fewer scales where there is a mask, so that three mistakes at once are found in time.
    scales = [f for f in SCALE_FAULTS if not (masked and f.id in RARE_SCALES)]
    # The output alone does not tell a factor on the weights from one on the values.
    late = [f for f in SOFTMAX_FAULTS if masked or f.id != "scale.on_values"]
    exercise.add(*SCORES_FAULTS, *scales, SCALE_FIT, *late, *MIX_FAULTS)
    if masked:
        exercise.add(*MASK_FAULTS, FILL_FIT)


# -- on paper --------------------------------------------------------------------------------------

one_row = Exercise(
    "attention.one_row",
    kind="predict",
    title="One row by hand",
    statement="""
One query attends to two keys, with $d_k = 4$. Its dot products with them are
$2\\ln 3 \\approx 2.197$ and $0$. The values are the numbers 8 and 0. What is the output?
""",
    link=ON_PAPER,
    tolerance=0.01,
    hints=("Divide by √4 first.", "exp(ln 3) = 3, exp(0) = 1: what are the weights?"),
    reason="Scaled, the scores are ln 3 and 0. Their exponentials are 3 and 1, the weights 3/4 and "
    "1/4, and the output is 3/4 · 8 + 1/4 · 0.",
    question="What would three more keys with dot product 0 and value 0 change?",
)


@one_row.model
def _():
    scores = np.array([2 * np.log(3), 0.0]) / np.sqrt(4)
    return float(zero_where_empty(scores) @ np.array([8.0, 0.0]))


one_row.wrong(
    7.2,
    "attention.one_row_unscaled",
    "You left the scale out: exp(2 ln 3) is 9, and the weights would be 9/10 and 1/10.",
    hint="Divide by √4 before the exponential.",
)
one_row.wrong(
    8.0,
    "attention.one_row_hard",
    "That is the value of the better key alone. Attention mixes.",
    hint="The other key has a weight too.",
)
one_row.wrong(
    4.0,
    "attention.one_row_mean",
    "That is the plain mean. The first key fits better, and its value counts more.",
    hint="What are the two exponentials?",
)
one_row.wrong(
    2.0,
    "attention.one_row_turned",
    "Your weights are the wrong way round: the key with the larger score gets the larger weight.",
    hint="exp(ln 3) = 3 belongs to the first key.",
)


# -- weights ---------------------------------------------------------------------------------------

attention_weights = Exercise(
    "attention.attention_weights",
    kind="implement",
    title="The weights",
    statement="""
Write `attention_weights(q, k)`: steps 1, 2 and 4, softmax of the scaled scores.

`q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$; the result is $(\\dots, L, S)$, and its
rows sum to 1. Some scores are large: a row may lie around 800.
""",
    link=STEPS,
    goals=GOALS,
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=("Which two arrays have the axis d_k?", "Subtract each row's maximum before exp."),
    reason="Each row is a softmax of its own, and shifting a row does not change it.",
    question="How would you get the weights of one query without computing the others?",
    properties=(rows_sum_to_one(0),),
)


@attention_weights.stub
def attention_weights_stub(q, k):
    """Weights (..., L, S) of q (..., L, d_k) over k (..., S, d_k)."""
    raise NotImplementedError


@attention_weights.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    lead = (B, H) if H > 1 else ()
    return {"q": tokens(rng, *lead, L, d_k, std=1.5), "k": tokens(rng, *lead, S, d_k)}


attention_weights.probe("one head, no batch", H=1, L=3, S=5, d_k=6)
attention_weights.probe("batch and heads", L=5, S=8, d_k=7)
attention_weights.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_k=5)


@attention_weights.special("rows with large scores", magnitude=2000)
def _():
    rng = np.random.default_rng(3)
    q, k = tokens(rng, 3, 5), tokens(rng, 6, 5)
    k[:, 0] = 1.0  # so that a multiple of √d_k on the query's first entry shifts its row
    q[:, 0] = np.array([800.0, 0.0, -800.0]) * np.sqrt(5)
    return {"q": q, "k": k}


def shifted_by(highest):
    """Softmax after subtracting something else than each row's maximum."""

    def normalised(scores, axis):
        exps = np.exp(scores - highest(scores, axis))
        return exps / exps.sum(axis, keepdims=True)

    return normalised


@attention_weights.model
def _(q, k, **switches):
    return pipeline(q, k, np.zeros((*k.shape[:-1], 1)), **switches)[1]


attention_weights.add(
    *SCORES_FAULTS,
    *(fault for fault in SCALE_FAULTS if fault.id != "scale.sqrt_d_v"),
    SCALE_FIT,
    *(fault for fault in SOFTMAX_FAULTS if fault.id != "scale.on_values"),
    Fault(
        "softmax.no_max",
        "You do not subtract the row's maximum: exp(800) overflows and inf/inf is NaN.",
        "Softmax does not change when a row is shifted, so shift its largest entry to 0.",
        "03-softmax#no-maximum-subtracted",
        "What is exp(800) in float64?",
        hidden="small scores",
        cite="tenstorrent/tt-metal#12661",
        switches={"normalised": shifted_by(lambda s, axis: 0.0)},
    ),
    Fault(
        "softmax.global_max",
        "You subtract the largest score of all rows. A row far below it underflows to 0/0.",
        "Each row needs its own maximum.",
        "03-softmax#one-maximum-for-all-rows",
        "max over which axis?",
        hidden="rows of similar size",
        switches={"normalised": shifted_by(lambda s, axis: s.max())},
    ),
)


@attention_weights.solution
def attention_weights_numpy(q, k):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # (..., L, S)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@attention_weights.solution("log-sum-exp as the normaliser")
def attention_weights_lse(q, k):
    scores = np.einsum("...ld,...sd->...ls", q * q.shape[-1] ** -0.5, k)
    return np.exp(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))


@attention_weights.solution(shown=False)
def attention_weights_loops(q, k):
    weights = np.empty((*q.shape[:-1], k.shape[-2]))
    for index in np.ndindex(q.shape[:-1]):
        scores = k[index[:-1]] @ q[index] / np.sqrt(len(q[index]))
        e = np.exp(scores - max(scores))
        weights[index] = e / sum(e)
    return weights


@attention_weights.solution(backend="torch")
def attention_weights_torch(q, k):
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)


@attention_weights.solution(backend="torch", shown=False)
def attention_weights_torch_lse(q, k):
    scores = q @ k.mT * q.size(-1) ** -0.5
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


# -- the whole operation ---------------------------------------------------------------------------

attention = Exercise(
    "attention.attention",
    kind="implement",
    title="The whole operation",
    statement="""
Write `attention(q, k, v)`: $\\mathrm{softmax}(QK^\\top/\\sqrt{d_k})V$.

`q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$, `v` is $(\\dots, S, d_v)$; the result is
$(\\dots, L, d_v)$.
""",
    link=STEPS,
    goals={name: goal for name, goal in GOALS.items() if name != "hide"},
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=("Four lines will do: scores, scale, softmax, mix.", "Check the shape after each line."),
    reason="Each line is one step of the formula, and the shapes lead: (…, L, S) until the mix, "
    "(…, L, d_v) after it.",
    question="Which lines would change if there were a mask?",
    next="Masks: `masked_attention`, and chapter 05.",
    properties=(keys_may_be_permuted("k", "v"),),
)


@attention.stub
def attention_stub(q, k, v):
    """Output (..., L, d_v) of q (..., L, d_k), k (..., S, d_k), v (..., S, d_v)."""
    raise NotImplementedError


@attention.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=9):
    lead = (B, H) if H > 1 else ()
    q, k = tokens(rng, *lead, L, d_k, std=1.5), tokens(rng, *lead, S, d_k)
    return {"q": q, "k": k, "v": tokens(rng, *lead, S, d_v)}


attention.probe("batch and heads", B=2, H=3, L=5, S=8, d_k=7, d_v=9)
attention.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_k=5, d_v=8)


@attention.special("one head, no batch", L=3, S=5, d_k=6, d_v=2)
def _():
    rng = np.random.default_rng(5)
    return {"q": tokens(rng, 3, 6, std=1.5), "k": tokens(rng, 5, 6), "v": tokens(rng, 5, 2)}


@attention.special("as many queries as keys", B=2, H=3, L=5, S=5, d_k=6, d_v=7)
def _():
    rng = np.random.default_rng(6)
    q, k = tokens(rng, 2, 3, 5, 6, std=1.5), tokens(rng, 2, 3, 5, 6)
    return {"q": q, "k": k, "v": tokens(rng, 2, 3, 5, 7)}


@attention.model
def _(q, k, v, *, exchanged=False, **switches):
    q, k = (k, q) if exchanged else (q, k)
    return pipeline(q, k, v, **switches)[0]


add_pipeline_faults(attention, masked=False)
attention.fault(
    "scores.query_key_exchanged",
    "Query and key are exchanged: your rows belong to keys.",
    why="Row i of the weights is the share-out of query i. With L ≠ S the shapes tell; with L = S "
    "nothing does.",
    hint="What does row i of your scores stand for?",
    hidden="q equal to k, as in a test that gives one array for both",
    link=EXCHANGED,
    exchanged=True,
)


@attention.solution
def attention_numpy(q, k, v):
    scores = q @ k.swapaxes(-1, -2)  # 1 scores (..., L, S)
    scores = scores / q.shape[-1] ** 0.5  # 2 scale
    e = np.exp(scores - scores.max(-1, keepdims=True))  # 4 softmax
    weights = e / e.sum(-1, keepdims=True)
    return weights @ v  # 5 mix (..., L, d_v)


@attention.solution("mix first, then normalise: L·d_v divisions and not L·S")
def attention_late(q, k, v):
    e = np.exp(np.einsum("...ld,...sd->...ls", q, k) * q.shape[-1] ** -0.5)
    return (e @ v) / e.sum(-1, keepdims=True)


@attention.solution(shown=False)
def attention_loops(q, k, v):
    output = np.zeros((*q.shape[:-1], v.shape[-1]))
    for index in np.ndindex(q.shape[:-1]):
        scores = k[index[:-1]] @ q[index] / q.shape[-1] ** 0.5
        e = np.exp(scores - scores.max())
        for weight, value in zip(e / e.sum(), v[index[:-1]], strict=True):
            output[index] += weight * value
    return output


@attention.solution(shown=False)
def attention_in_blocks(q, k, v):
    """Two keys at a time, with a running maximum."""
    highest = np.full(q.shape[:-1], -np.inf)
    total, output = np.zeros(q.shape[:-1]), np.zeros((*q.shape[:-1], v.shape[-1]))
    for j in range(0, k.shape[-2], 2):
        scores = q @ k[..., j : j + 2, :].swapaxes(-1, -2) / q.shape[-1] ** 0.5
        new = np.maximum(highest, scores.max(-1))
        old, e = np.exp(highest - new), np.exp(scores - new[..., None])
        total, output = total * old + e.sum(-1), output * old[..., None] + e @ v[..., j : j + 2, :]
        highest = new
    return output / total[..., None]


@attention.solution(backend="torch")
def attention_torch(q, k, v):
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
    return weights @ v


@attention.solution(backend="torch", shown=False)
def attention_torch_both_sides(q, k, v):
    root = q.size(-1) ** -0.25
    return ((q * root) @ (k * root).mT).softmax(dim=-1).matmul(v)


# -- the five steps in order -----------------------------------------------------------------------

five_steps = Exercise(
    "attention.five_steps",
    kind="parsons",
    title="The five steps in order",
    statement="""
Put the lines in order, so that they make `five_steps(q, k, v, mask)`: attention with a boolean
mask in which True means *may attend*. Every query may attend to something.

Three of the lines belong nowhere. Answer with letters, such as `"BAD"`.
""",
    link=STEPS,
    header="def five_steps(q, k, v, mask):",
    lines={
        "A": "weights = weights / weights.sum(-1, keepdims=True)",
        "B": "scores = np.where(mask, scores, -np.inf)",
        "C": "return weights @ v",
        "D": "scores = q @ k.swapaxes(-1, -2)",
        "E": "weights = weights / weights.sum(-2, keepdims=True)",
        "F": "scores = scores / np.sqrt(q.shape[-1])",
        "G": "scores = np.where(mask, -np.inf, scores)",
        "H": "weights = np.exp(scores - scores.max(-1, keepdims=True))",
        "I": "scores = scores / np.sqrt(v.shape[-1])",
    },
    goals=GOALS,
    hints=(
        "Start with what needs nothing but q and k.",
        "The scale and the mask may change places.",
    ),
    reason="Scores, scale, mask, softmax in two lines, mix. Scale and mask may change places: "
    "-inf stays -inf when it is divided.",
    question="Why may the mask not come after the exponential?",
)


@five_steps.inputs
def _(rng, B=2, L=5, S=6, d_k=7, d_v=9):
    mask = rng.random((B, L, S)) < 0.6
    mask[..., 0] = True
    q, k = tokens(rng, B, L, d_k, std=1.5), tokens(rng, B, S, d_k)
    return {"q": q, "k": k, "v": tokens(rng, B, S, d_v), "mask": mask}


five_steps.probe("a batch", L=5, S=8, d_k=7, d_v=9)
five_steps.probe("as many queries as keys", B=3, L=6, S=6, d_k=5, d_v=8)


@five_steps.model
def _(q, k, v, mask, **switches):
    return pipeline(q, k, v, mask, normalised=nan_where_empty, **switches)[0]


five_steps.add(
    *(f for f in unmasked.faults if f.id in ("scale.forgotten", "softmax.over_queries")),
    *(f for f in unmasked.faults if f.id == "scale.sqrt_d_v"),
    *(f for f in MASK_FAULTS if f.id in ("mask.ignored", "mask.inverted")),
)
five_steps.solutions += [Solution("DFBHAC"), Solution("DBFHAC", "the mask before the scale")]


# -- with a mask -----------------------------------------------------------------------------------

masked_attention = Exercise(
    "attention.masked_attention",
    kind="implement",
    title="Attention with a mask",
    statement="""
Write `masked_attention(q, k, v, mask)`: attention in which query $i$ may attend to key $j$ only
where `mask[..., i, j]` is True. It returns two arrays, `(output, weights)`.

`q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$, `v` is $(\\dots, S, d_v)$, and `mask`
broadcasts to $(\\dots, L, S)$. A query that may attend to nothing gets zeros, in its weights and
in its output.
""",
    link=MASK,
    outputs=("output", "weights"),
    goals=GOALS,
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=(
        "A hidden score should have the exponential 0.",
        "A row of -inf gives 0/0. What can you divide by instead?",
    ),
    reason="The mask acts on the scores, so hidden keys leave the denominator too; the row with "
    "nothing to attend to is the one case where the sum is 0.",
    question="Would a mask of 0 and -inf, added to the scores, do the same? For every row?",
    next="How masks are built: chapter 05.",
    properties=(rows_sum_to_one(1),),
)


@masked_attention.stub
def masked_attention_stub(q, k, v, mask):
    """(output, weights) of q (..., L, d_k), k (..., S, d_k), v (..., S, d_v), mask (..., L, S).

    output (..., L, d_v), weights (..., L, S); True in mask means: may attend
    """
    raise NotImplementedError


@masked_attention.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=9):
    mask = rng.random((B, 1, L, S)) < 0.6
    mask[:, :, 0, :] = False  # a query with nothing to attend to
    mask[:, :, 1:, 0] = True
    q, k = tokens(rng, B, H, L, d_k, std=1.5), tokens(rng, B, H, S, d_k)
    return {"q": q, "k": k, "v": tokens(rng, B, H, S, d_v), "mask": mask}


masked_attention.probe("more keys than queries", B=2, H=3, L=5, S=8, d_k=7, d_v=9)
masked_attention.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_k=5, d_v=8)


@masked_attention.special("as many queries as keys", B=2, H=3, L=5, S=5, d_k=6, d_v=7)
def _():
    rng = np.random.default_rng(6)
    q, k = tokens(rng, 2, 3, 5, 6, std=1.5), tokens(rng, 2, 3, 5, 6)
    mask = np.tril(np.ones((5, 5), bool))
    mask[2] = False
    return {"q": q, "k": k, "v": tokens(rng, 2, 3, 5, 7), "mask": mask}


@masked_attention.special("one head, no batch", L=3, S=5, d_k=6, d_v=2)
def _():
    rng = np.random.default_rng(5)
    mask = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1]], bool)
    q, k = tokens(rng, 3, 6, std=1.5), tokens(rng, 5, 6)
    return {"q": q, "k": k, "v": tokens(rng, 5, 2), "mask": mask}


@masked_attention.model
def _(q, k, v, mask, **switches):
    return pipeline(q, k, v, mask, **switches)


add_pipeline_faults(masked_attention, masked=True)


@masked_attention.solution
def masked_attention_numpy(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # (..., L, S)
    e = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    total = e.sum(-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    return weights @ v, weights


@masked_attention.solution("-inf first, empty rows made finite")
def masked_attention_where(q, k, v, mask):
    scores = np.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    weights = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    return weights @ v, weights


@masked_attention.solution(shown=False)
def masked_attention_finite(q, k, v, mask):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    scores = scores + (1.0 - mask) * -1e9
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True) * mask.any(-1, keepdims=True)
    return weights @ v, weights


@masked_attention.solution(shown=False)
def masked_attention_renormalised(q, k, v, mask):
    scores = np.einsum("...ld,...sd->...ls", q, k) / q.shape[-1] ** 0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True) * mask
    weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    return weights @ v, weights


@masked_attention.solution(backend="torch")
def masked_attention_torch(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~mask, -1e9)
    weights = scores.softmax(-1) * mask.any(-1, keepdim=True)
    return weights @ v, weights


@masked_attention.solution(backend="torch", shown=False)
def masked_attention_torch_exp(q, k, v, mask):
    scores = q @ k.mT * q.size(-1) ** -0.5
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    weights = e / e.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights @ v, weights


# -- mend an exchange of axes ----------------------------------------------------------------------

attend_tokens = Exercise(
    "attention.attend_tokens",
    kind="fix",
    title="Heads and tokens exchanged",
    statement="""
`attend_tokens(q, k, v)` gets arrays in the layout $(B, L, H, d)$, tokens before heads, as a
projection leaves them: `q` $(B, L, H, d_k)$, `k` $(B, S, H, d_k)$, `v` $(B, S, H, d_v)$.

It should return $(B, L, H, d_v)$, with every head attending over the tokens. Where $L = S$ it runs
and returns the right shape. Mend it.
""",
    link=BETWEEN_HEADS,
    goals={**GOALS, "layout": "every head attends over the tokens"},
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=(
        "The last two axes are multiplied. Which axes are those here?",
        "Bring the heads in front of the tokens, and back at the end.",
    ),
    reason="Matrix products act on the last two axes; the others are a batch. With (L, H) in "
    "the wrong order, the heads of one token attend to each other and tokens never mix.",
    question="How would a test notice that tokens never mix?",
    properties=(stays_within(0, ("q", "k", "v"), "sample"),),
)


@attend_tokens.stub
def attend_tokens_broken(q, k, v):
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@attend_tokens.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=9):
    q, k = tokens(rng, B, L, H, d_k, std=1.5), tokens(rng, B, S, H, d_k)
    return {"q": q, "k": k, "v": tokens(rng, B, S, H, d_v)}


attend_tokens.probe("as many queries as keys", B=2, H=3, L=5, S=5, d_k=7, d_v=9)
attend_tokens.probe("fewer queries than keys", B=3, H=2, L=3, S=6, d_k=5, d_v=8)
attend_tokens.probe("as many heads as tokens", B=2, H=5, L=5, S=5, d_k=6, d_v=3)


def heads_first(x):
    return x.swapaxes(1, 2)


def as_given(x):
    return x


def by_reshape(x):
    B, L, H, d = x.shape
    return x.reshape(B, H, L, d)


@attend_tokens.model
def _(q, k, v, *, layout=(heads_first, heads_first), **switches):
    before, after = layout
    return after(pipeline(before(q), before(k), before(v), **switches)[0])


attend_tokens.fault(
    "scores.heads_attend_to_heads",
    "The heads of one token attend to each other; tokens never mix.",
    why="The product acts on the last two axes, and here those are (H, d).",
    hint="Which axes does @ multiply?",
    hidden="never by its shape, where L = S",
    cite="the layout (B, L, H, d) given to a function that wants (B, H, L, d)",
    link=BETWEEN_HEADS,
    layout=(as_given, as_given),
)
attend_tokens.fault(
    "scores.not_transposed_back",
    "You bring the heads in front and leave them there: the result is (B, H, L, d_v).",
    why="The caller gave (B, L, H, d) and expects it back.",
    hint="Undo at the end what you did at the start.",
    hidden="H = L, by its shape",
    link=BETWEEN_HEADS,
    layout=(heads_first, as_given),
)
attend_tokens.fault(
    "heads.split_by_reshape",
    "You reshape where the axes must be exchanged: each of your heads is a slab of tokens.",
    why="A reshape keeps the order in memory and only cuts it at other places.",
    hint="swapaxes or transpose, not reshape.",
    cite="reczoo/FuxiCTR#30; bentrevett/pytorch-seq2seq#148",
    link=BETWEEN_HEADS,
    layout=(by_reshape, lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3])),
)
attend_tokens.add(*(f for f in unmasked.faults if f.id in ("scale.forgotten", "scale.sqrt_d_v")))


@attend_tokens.solution
def attend_tokens_swapped(q, k, v):
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))  # (B, H, L, d)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # (B, H, L, S)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    output = e / e.sum(-1, keepdims=True) @ v  # (B, H, L, d_v)
    return output.swapaxes(1, 2)  # (B, L, H, d_v)


@attend_tokens.solution("einsum names the axes, so nothing is moved")
def attend_tokens_einsum(q, k, v):
    e = np.exp(np.einsum("blhd,bshd->bhls", q, k) / q.shape[-1] ** 0.5)
    return np.einsum("bhls,bshd->blhd", e / e.sum(-1, keepdims=True), v)


@attend_tokens.solution(backend="torch")
def attend_tokens_torch(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
    return (weights @ v).transpose(1, 2)


@attend_tokens.solution(
    "softmax over axis 1, which holds the keys here", backend="torch", shown=False
)
def attend_tokens_torch_axis(q, k, v):
    scores = (q[:, None] * k[:, :, None]).sum(-1) * q.shape[-1] ** -0.5  # (B, S, L, H)
    return (scores.softmax(1)[..., None] * v[:, :, None]).sum(1)


# -- catch an exchange -----------------------------------------------------------------------------

expose_exchange = Exercise(
    "attention.expose_exchange",
    kind="catch",
    title="Catch an exchange",
    statement="""
Somebody's attention computes $KQ^\\top$ where it should compute $QK^\\top$. It passes their test,
which gives one array for all three inputs.

Write `expose_exchange()`, which returns `(q, k, v)`, three 2-D arrays with the same number of
rows, on which the result is wrong.
""",
    link=EXCHANGED,
    hints=("When is a matrix the same as its transpose?", "What if q and k differ?"),
    reason="K Qᵀ is the transpose of Q Kᵀ. With q = k the scores are symmetric and nothing shows.",
    question="Which other mistakes does a test with q = k = v hide?",
)


@expose_exchange.inputs
def _(rng, L=3, d_k=2, d_v=2):
    return {"q": tokens(rng, L, d_k), "k": tokens(rng, L, d_k), "v": tokens(rng, L, d_v)}


@expose_exchange.model
def _(q, k, v):
    return pipeline(q, k, v)[0]


@expose_exchange.black_box
def _(q, k, v):
    return pipeline(k, q, v)[0]


@expose_exchange.program(
    "catch.symmetric_scores",
    "Your scores are symmetric, so exchanging queries and keys changes nothing.",
    why="Q Kᵀ equals its transpose, for instance where q and k are the same array.",
    hint="Let q and k differ.",
    when=lambda q, k, v: q.shape == k.shape and bool(np.allclose(q @ k.T, k @ q.T)),
)
def one_array_for_all():
    x = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])
    return x, x, x


@expose_exchange.program(
    "catch.equal_values",
    "All your values are the same, so every mean of them is the same, whatever the weights.",
    why="A mean of equal things shows nothing of its weights.",
    hint="Let the rows of v differ.",
    when=lambda q, k, v: bool(np.allclose(v, v[:1])),
)
def equal_values():
    return np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[0.0, 1.0], [3.0, 1.0]]), np.ones((2, 3))


@expose_exchange.solution
def expose_exchange_small():
    q = np.array([[1.0, 0.0], [0.0, 0.0]])
    k = np.array([[0.0, 1.0], [3.0, 0.0]])
    return q, k, np.array([[0.0], [1.0]])


@expose_exchange.solution
def expose_exchange_random():
    rng = np.random.default_rng(0)
    return rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.normal(size=(4, 2))


# -- the order of the tokens -----------------------------------------------------------------------

shuffled_tokens = Exercise(
    "attention.shuffled_tokens",
    kind="quiz",
    title="Shuffled tokens",
    statement="""
In self-attention without a mask and without position information, you shuffle the tokens of the
input. What happens to the output?
""",
    link=ORDER,
)
shuffled_tokens.option(
    "A",
    "Nothing: every row is the same as before.",
    "The *set* of rows is the same. Row i belongs to token i, and the tokens have moved.",
)
shuffled_tokens.option(
    "B",
    "Its rows are shuffled in the same way, and nothing else changes.",
    "Yes. Each token sees the same keys and values in another order, and a sum has no order.",
    right=True,
)
shuffled_tokens.option(
    "C",
    "All rows change, as each token has other neighbours now.",
    "Attention knows no neighbours. Without a mask or positions, every token sees all others, near "
    "or far.",
)
shuffled_tokens.option(
    "D",
    "It depends on the weights W_Q, W_K and W_V.",
    "They are applied to each token by itself, so they move along with it.",
)

EXERCISES = (
    one_row,
    attention_weights,
    attention,
    shuffled_tokens,
    five_steps,
    masked_attention,
    attend_tokens,
    expose_exchange,
)
