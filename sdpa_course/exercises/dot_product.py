"""Graded exercises of the chapter on the dot product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution

CHAPTER = "01-dot_product"
LONG_KEY = f"{CHAPTER}#a-long-key-wins"
NEGATIVE = f"{CHAPTER}#negative-is-not-unrelated"
COSINE = f"{CHAPTER}#direction-alone"
CODE = f"{CHAPTER}#the-code"
EVERY_AXIS = f"{CHAPTER}#t-reverses-every-axis"
RESHAPED = f"{CHAPTER}#reshaped-not-transposed"
ONE_LETTER = f"{CHAPTER}#one-letter-for-two-axes"
TWO_LETTERS = f"{CHAPTER}#two-letters-for-one-axis"
ORIENTATION = f"{CHAPTER}#a-square-matrix-the-wrong-way-round"
HEADS = f"{CHAPTER}#heads-compared-with-each-other"
NOT_EVERY_PAIR = f"{CHAPTER}#not-every-pair"
ADDITIVE = f"{CHAPTER}#additive-attention"
TANH = f"{CHAPTER}#the-tanh-left-out"


def numbers(rng, *shape, std=1.0):
    return rng.normal(size=shape) * std


def leading(B, H):
    """The batch and head axes; none at all for B = H = 1."""
    return (B, H) if B > 1 or H > 1 else ()


def transposed(x):
    return x.swapaxes(-1, -2)


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


def softmax(scores):
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def one(*_):
    return 1.0


def add_wrong_factors(exercise: Exercise, says: str, link: str) -> None:
    """A number that does not belong into step 1, as settings of the switch `factor`."""
    exercise.fault(
        "scores.scaled_too_early",
        "You divide by the root of the size already. That is step 2; this exercise asks for the"
        " scores of step 1.",
        why="The scale is a step of its own, because not every kind of score has it.",
        hint="Return the scores as they come out of the sum.",
        link=link,
        factor=lambda d: d**-0.5,
    )
    exercise.fault(
        "scores.mean_for_sum",
        "You take the mean of the products where the sum is asked for.",
        why="The mean is the sum divided by the size of the vectors: another scale, 1/d.",
        hint="A dot product adds up. It does not average.",
        link=link,
        factor=lambda d: 1.0 / d,
    )
    exercise.add(
        Fit(
            "scores.factor",
            "factor",
            says,
            right=lambda dims: 1.0,
            setting=lambda value: lambda d: value,
            why="One factor explains all your numbers, and nothing in the formula multiplies them.",
            hint="Which number do you multiply by, for the sizes of the example?",
            link=link,
        )
    )


def add_turned(exercise: Exercise, **turned: Any) -> None:
    exercise.fault(
        "scores.turned",
        "Queries and keys have changed places: your result is (…, S, L), and its rows belong to"
        " keys.",
        why="Row i of the scores belongs to query i. The softmax of step 4 runs along it.",
        hint="Which of the two factors stands on the left, and which is transposed?",
        hidden="L = S, for the shape; q = k, for the numbers",
        link=NOT_EVERY_PAIR,
        **turned,
    )


# -- a long key ----------------------------------------------------------------------------------

weight_of_long_key = Exercise(
    "dot_product.weight_of_long_key",
    kind="predict",
    title="One key is made longer",
    statement="""
A query of length 2 and three keys of length 1. Each key makes an angle of 60° with the query, so
all scores are equal and each key gets a third of the weight. (There is no scale in this exercise:
weights are the softmax of the dot products.)

Now the first key is made **three times as long**. Its direction stays as it was. What weight does
it get? Set `weight_of_long_key` to your number; 5 % is close enough.
""",
    link=LONG_KEY,
    tolerance=0.05,
    hints=("Write down the three scores first. cos 60° = 1/2.",),
    reason="Each score was 2·1·½ = 1. The first becomes 3. Its weight is e³/(e³ + 2e), which is"
    " e²/(e² + 2).",
    question="What if the angle had been 120°?",
)


@weight_of_long_key.model
def _():
    angles = np.radians([60.0, -60.0, 60.0])
    k = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    k[0] *= 3
    return float(softmax(np.array([[2.0, 0.0]]) @ k.T)[0, 0])


weight_of_long_key.wrong(
    1 / 3,
    "similarity.direction_alone",
    "A third is what it had before. A dot product is |q|·|k|·cos θ: the length counts too.",
    why="Only the cosine ignores length, and attention does not divide by lengths.",
    hint="Compute q·k for the long key.",
    link=LONG_KEY,
)
weight_of_long_key.wrong(
    0.6,
    "similarity.proportional_weights",
    "3/(3 + 1 + 1) shares out the weight in proportion to the scores. Softmax shares it out in"
    " proportion to their exponentials.",
    why="With negative scores a share in proportion would not even be positive.",
    hint="e³ against e¹, twice.",
    link=LONG_KEY,
)
weight_of_long_key.wrong(
    1.0,
    "similarity.three_times_the_weight",
    "Three times a third would leave nothing for the others, and a softmax never does.",
    why="The score triples, not the weight.",
    hint="e³ against e¹, twice.",
    link=LONG_KEY,
)
weight_of_long_key.wrong(
    math.exp(3) / (math.exp(3) + 2),
    "similarity.others_at_zero",
    "You give the other two keys a score of 0. They kept their score of 1.",
    hint="Only the first key changed.",
    link=LONG_KEY,
)
weight_of_long_key.wrong(
    math.exp(6) / (math.exp(6) + 2 * math.exp(2)),
    "similarity.angle_ignored",
    "You left out the angle: |q|·|k| alone gives 6 and 2. cos 60° halves them.",
    hint="Multiply by the cosine.",
    link=LONG_KEY,
)
weight_of_long_key.solutions += [
    Solution("weight_of_long_key = np.exp(3) / (np.exp(3) + 2 * np.exp(1))\n"),
    Solution("weight_of_long_key = 1 / (1 + 2 * np.exp(-2))\n"),
]


# -- all scores ----------------------------------------------------------------------------------

pairwise_scores = Exercise(
    "dot_product.pairwise_scores",
    kind="implement",
    title="Every query with every key",
    statement="""
Write `pairwise_scores(q, k)`: step 1 of attention, the dot product of every query with every key.

`q` is $(\\dots, L, d_k)$ and `k` is $(\\dots, S, d_k)$; the result is $(\\dots, L, S)$. There may
be no leading axes, or a batch axis and heads. Nothing is divided yet. Do not change `q` or `k`.
""",
    link=CODE,
    goals={
        "keys": "each column of the second factor is one key",
        "product": "every query meets every key of its own sample and head",
        "turned": "rows belong to queries, columns to keys",
        "vectors": "vectors as long as they came",
        "factor": "no scale yet",
        "after": "scores of either sign, as they are",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.dot_product.dot_product_scores",
        "sdpa_course.with_torch.dot_product.dot_product_scores",
        "sdpa_course.with_numpy.scaling.scaled_scores",
        "sdpa_course.with_torch.scaling.scaled_scores",
    ),
    hints=(
        "A matrix product makes the dot product of each row on the left with each column on the"
        " right. So the keys have to be columns.",
        "Which two axes of k have to change places? Count them from the back.",
    ),
    reason="Rows of q meet columns of the transposed k. Only the last two axes are swapped, so"
    " batch and heads stay where they are.",
    question="Which of your axes would an einsum have to name twice, and which once?",
    next="Chapter 02: how large these numbers get, and what to divide them by.",
)


@pairwise_scores.stub
def pairwise_scores_stub(q, k):
    """The dot product of every q (..., L, d_k) with every k (..., S, d_k): (..., L, S)."""
    raise NotImplementedError


@pairwise_scores.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    lead = leading(B, H)
    return {"q": numbers(rng, *lead, L, d_k), "k": numbers(rng, *lead, S, d_k)}


pairwise_scores.probe("two axes", B=1, H=1, L=3, S=5, d_k=6)
pairwise_scores.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7)
pairwise_scores.probe("as many heads as samples", B=3, H=3, L=5, S=2, d_k=8)
pairwise_scores.probe("as many keys as queries", B=2, H=5, L=3, S=3, d_k=6)
pairwise_scores.probe("two axes, as many keys as queries", B=1, H=1, L=3, S=3, d_k=5)


def matmul(q, kt):
    return q @ kt


def unsummed(q, kt):
    return q[..., :, None, :] * transposed(kt)[..., None, :, :]


def distances(q, kt):
    return -((q[..., :, None, :] - transposed(kt)[..., None, :, :]) ** 2).sum(-1)


@pairwise_scores.model
def _(
    q,
    k,
    *,
    keys=transposed,
    product=matmul,
    turned=False,
    vectors=lambda q, k: (q, k),
    factor=one,
    after=lambda scores: scores,
):
    q, k = vectors(q, k)
    scores = product(q, keys(k)) * factor(q.shape[-1])
    return after(scores.swapaxes(-1, -2) if turned and scores.ndim > 1 else scores)


def all_keys_of_sample(k):
    return transposed(k.sum(-3, keepdims=True) if k.ndim > 2 else k)


def add_wrong_keys(exercise: Exercise) -> None:
    exercise.fault(
        "scores.all_axes_reversed",
        "Your function is right for two axes and fails for more. `.T` does that: it reverses"
        " *every* axis, batch and heads too. (So does an einsum that names two axes and has no"
        " `...` for the rest.)",
        why="With two axes `.T` is a transpose; with four, (B, H, S, d_k) becomes (d_k, S, H, B).",
        hint="Swap only the last two axes, counted from the back.",
        hidden="two axes; sizes that coincide",
        cite="theorempath.com, attention-shape-trace",
        link=EVERY_AXIS,
        keys=lambda k: k.T,
    )
    exercise.fault(
        "scores.key_reshaped",
        "You reshape k to (…, d_k, S) where it must be transposed: the numbers of one key end up"
        " in several columns.",
        why="A reshape keeps the order in memory and only cuts it at other places. The shape is"
        " right and the numbers are not.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        cite="hyunwoongko/transformer, first versions",
        link=RESHAPED,
        keys=lambda k: k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
    )


def four_axes_only(k):
    if k.ndim != 4:
        raise ValueError("bhsd names four axes")
    return transposed(k)


add_wrong_keys(pairwise_scores)
pairwise_scores.fault(
    "scores.leading_axes_fixed",
    "Your function is right for four axes and fails for two: it names the batch and the heads,"
    " which need not be there.",
    why="`bhld,bhsd->bhls` and `transpose(0, 1, 3, 2)` ask for exactly four axes. The same scores"
    " are needed for one sequence, and for a batch without heads.",
    hint="In an einsum, `...` stands for any number of axes. Without one, count from the back.",
    hidden="four axes",
    link=EVERY_AXIS,
    keys=four_axes_only,
)
pairwise_scores.fault(
    "scores.heads_summed",
    "Each query meets the sum of all heads' keys, not the keys of its own head.",
    why="An einsum adds up along a letter that does not return. If q and k name their head axis"
    " by different letters, one of them is lost that way.",
    hint="Which letter of your einsum stands on the left only?",
    hidden="one head",
    link=TWO_LETTERS,
    keys=all_keys_of_sample,
)
add_turned(pairwise_scores, turned=True)
pairwise_scores.fault(
    "scores.paired_by_position",
    "Query i meets key i only. There should be a score for every pair.",
    why="A sum of q * k, or an einsum with one letter for both positions, takes the diagonal of"
    " the (L, S) scores. Where L ≠ S it is an error.",
    hint="How many scores do 3 queries and 3 keys have?",
    hidden="L ≠ S, where it fails loudly",
    cite="decisionintelligence/DUET#6; hw-native-sys/pypto-lib PR#186",
    link=ONE_LETTER,
    product=lambda q, kt: (q * transposed(kt)).sum(-1),
)
pairwise_scores.fault(
    "scores.not_summed",
    "You multiply every query with every key and do not add up: your result still has d_k as its"
    " last axis.",
    why="One pair has one score, the sum of d_k products.",
    hint="Which axis should have gone?",
    link=NOT_EVERY_PAIR,
    product=unsummed,
)
pairwise_scores.fault(
    "scores.element_by_element",
    "`*` multiplies entry by entry: number i of query j with number i of key j. Nothing is added"
    " up, and no query meets another key.",
    why="A score is a sum of d_k products, and there is one for every pair. Where L ≠ S the shapes"
    " do not even fit.",
    hint="Which operator makes the dot product of each row with each column?",
    hidden="L ≠ S, where it fails loudly",
    link=NOT_EVERY_PAIR,
    product=lambda q, kt: q * transposed(kt),
)
pairwise_scores.fault(
    "scores.across_the_batch",
    "Every query meets the keys of all samples and heads, not only those of its own.",
    why="`np.dot`, `np.inner` and `np.tensordot` combine all leading axes with each other, where"
    " `@` keeps them in step.",
    hint="Is there a product that treats the leading axes as a batch?",
    hidden="two axes",
    link=TWO_LETTERS,
    product=np.dot,
)
pairwise_scores.fault(
    "scores.features_with_features",
    "You sum over the positions, and get (d_k, d_k): the wrong factor is transposed.",
    why="Rows of the left factor meet columns of the right one. Transposing q makes its rows the"
    " d_k features.",
    hint="Which axis should disappear: L, or d_k?",
    hidden="L ≠ S, where it fails loudly",
    link=NOT_EVERY_PAIR,
    product=lambda q, kt: transposed(q) @ transposed(kt),
)
pairwise_scores.fault(
    "scores.distance",
    "You return minus the squared distance of query and key; the dot product is asked for.",
    why="The two differ by |q|² + |k|² and a factor 2. In a softmax |q|² cancels, |k|² does not:"
    " a distance prefers near keys, a dot product long ones.",
    hint="Multiply and add up.",
    link=COSINE,
    product=distances,
)
pairwise_scores.fault(
    "scores.queries_with_queries",
    "You compare the queries with each other: k has no effect.",
    why="In self-attention both come from the same tokens, but through two different matrices.",
    hint="Both arguments have to appear.",
    hidden="q = k",
    link=NOT_EVERY_PAIR,
    vectors=lambda q, k: (q, q),
)
pairwise_scores.fault(
    "scores.keys_with_keys",
    "You compare the keys with each other: q has no effect.",
    why="In self-attention both come from the same tokens, but through two different matrices.",
    hint="Both arguments have to appear.",
    hidden="q = k",
    link=NOT_EVERY_PAIR,
    vectors=lambda q, k: (k, k),
)
pairwise_scores.fault(
    "scores.cosine",
    "You divide by the lengths: that is the cosine, which forgets how long the vectors are.",
    why="|q|·|k|·cos θ is what attention uses; the lengths take part.",
    hint="Leave q and k as they are.",
    link=COSINE,
    vectors=lambda q, k: (unit(q), unit(k)),
)
pairwise_scores.fault(
    "scores.unit_keys",
    "You make the keys length 1. The dot product keeps their length.",
    why="A long key scores high; it is part of what the layer can say.",
    hint="Leave q and k as they are.",
    link=COSINE,
    vectors=lambda q, k: (q, unit(k)),
)
pairwise_scores.fault(
    "scores.unit_queries",
    "You make the queries length 1. The dot product keeps their length.",
    why="The length of a query is the sharpness of its row of weights.",
    hint="Leave q and k as they are.",
    link=COSINE,
    vectors=lambda q, k: (unit(q), k),
)
add_wrong_factors(
    pairwise_scores,
    "Your scores are multiplied by {found} (here {value}). Step 1 multiplies by nothing.",
    CODE,
)
pairwise_scores.fault(
    "scores.negative_cut",
    "You set negative scores to 0. A negative score is no mistake and does not mean “unrelated”.",
    why="Only differences within a row count: −3 is as far below −1 as 1 is below 3. Cut off, such"
    " keys can no longer be told apart.",
    hint="Return the sums as they are.",
    link=NEGATIVE,
    after=lambda scores: np.maximum(scores, 0),
)
pairwise_scores.fault(
    "scores.absolute",
    "You take the absolute value: a key that points the other way would score as high as one that"
    " agrees.",
    why="The sign of a dot product says on which side of a right angle the key lies.",
    hint="Return the sums as they are.",
    link=NEGATIVE,
    after=np.abs,
)
pairwise_scores.fault(
    "scores.weights_returned",
    "You return weights: a softmax has been taken already. That is step 4.",
    why="Scale and mask come between, and act on scores.",
    hint="Stop after the product.",
    link=CODE,
    after=softmax,
)


@pairwise_scores.solution
def pairwise_scores_solution(q, k):
    return q @ k.swapaxes(-1, -2)  # (..., L, S)


@pairwise_scores.solution("With an einsum: one letter for each axis, and d does not return.")
def pairwise_scores_einsum(q, k):
    return np.einsum("...ld,...sd->...ls", q, k)


@pairwise_scores.solution(shown=False)
def pairwise_scores_broadcast(q, k):
    return (q[..., :, None, :] * k[..., None, :, :]).sum(axis=-1)


@pairwise_scores.solution(shown=False)
def pairwise_scores_turned_back(q, k):
    return np.swapaxes(np.matmul(k, np.swapaxes(q, -2, -1)), -2, -1)


@pairwise_scores.solution(shown=False)
def pairwise_scores_loops(q, k):
    scores = np.zeros(q.shape[:-1] + k.shape[-2:-1])
    for i in range(q.shape[-2]):
        for j in range(k.shape[-2]):
            scores[..., i, j] = (q[..., i, :] * k[..., j, :]).sum(-1)
    return scores


@pairwise_scores.solution(backend="torch")
def pairwise_scores_torch(q, k):
    return q @ k.transpose(-2, -1)


@pairwise_scores.solution(backend="torch", shown=False)
def pairwise_scores_torch_flat(q, k):
    if q.ndim == 2:
        return q.matmul(k.t())
    scores = q.flatten(0, -3).bmm(k.flatten(0, -3).mT)
    return scores.reshape(*q.shape[:-1], k.shape[-2])


# -- heads ---------------------------------------------------------------------------------------

heads_apart = Exercise(
    "dot_product.heads_apart",
    kind="fix",
    title="Heads that look at each other",
    statement="""
Here the tokens come with their heads *behind* the length: `q` is $(B, L, H, d_k)$ and `k` is
$(B, S, H, d_k)$. `heads_apart(q, k)` should return the scores of each head, $(B, H, L, S)$,
without a scale. It was tried with $L = S$ and did not complain. Its numbers are wrong all the
same, and for $L \\ne S$ it fails. Repair it.
""",
    link=HEADS,
    goals={
        "split": "the heads stand before the length",
        "keys": "every key of the same sample, and of no other",
        "out": "scores as (B, H, L, S)",
        "factor": "no scale yet",
    },
    backends=("numpy", "torch"),
    built_from=pairwise_scores.built_from,
    hints=(
        "`@` multiplies the last two axes. Which two are they here?",
        "Print the shape of the result for B=2, L=S=5, H=3.",
    ),
    reason="A matrix product works on the last two axes and takes all others in step. With the"
    " heads moved forward those two are (length, size), and each head is by itself.",
    question="Tokens never met tokens in the broken version. Which output would change if you"
    " changed token 0 alone?",
)


@heads_apart.stub
def heads_apart_stub(q, k):
    """Scores (B, H, L, S) of q (B, L, H, d_k) with k (B, S, H, d_k)."""
    return q @ k.swapaxes(-1, -2)


@heads_apart.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    return {"q": numbers(rng, B, L, H, d_k), "k": numbers(rng, B, S, H, d_k)}


heads_apart.probe("one sample, two heads", B=1, H=2, L=3, S=5, d_k=6)
heads_apart.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7)
heads_apart.probe("as many keys as queries", B=3, H=2, L=5, S=5, d_k=6)
heads_apart.probe("as many heads as samples", B=3, H=3, L=5, S=2, d_k=8)


def moved(x):
    return x.swapaxes(1, 2)


def cut_again(x):
    return x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3])


@heads_apart.model
def _(q, k, *, split=(moved, moved), keys=lambda k: k, out=lambda scores: scores, factor=one):
    q, k = split[0](q), split[1](keys(k))
    return out(q @ transposed(k) * factor(q.shape[-1]))


heads_apart.fault(
    "scores.heads_not_moved",
    "Your product compares the heads of one token with each other: tokens never meet.",
    why="`@` takes the last two axes, (H, d_k) here, and keeps the length in step. For L = S"
    " nothing complains.",
    hint="Bring the length next to d_k.",
    hidden="L ≠ S, where it fails loudly",
    cite="NVIDIA/cudnn-frontend#94 (the layout)",
    link=HEADS,
    split=(lambda x: x, lambda x: x),
)
heads_apart.fault(
    "scores.heads_reshaped",
    "You reshape (B, L, H, d_k) to (B, H, L, d_k). The shape is right; tokens and heads are mixed"
    " up.",
    why="A reshape keeps the order in memory. What you need is the other order: axes swapped.",
    hint="Swap two axes.",
    hidden="never by its shape",
    link=RESHAPED,
    split=(cut_again, cut_again),
)
heads_apart.fault(
    "scores.query_heads_reshaped",
    "You reshape q to (B, H, L, d_k) where its axes must be swapped.",
    why="A reshape keeps the order in memory.",
    hint="k is right. Treat q in the same way.",
    link=RESHAPED,
    split=(cut_again, moved),
)
heads_apart.fault(
    "scores.key_heads_reshaped",
    "You reshape k to (B, H, S, d_k) where its axes must be swapped.",
    why="A reshape keeps the order in memory.",
    hint="q is right. Treat k in the same way.",
    link=RESHAPED,
    split=(moved, cut_again),
)
heads_apart.fault(
    "scores.batch_summed",
    "Each query meets the sum of all samples' keys.",
    why="An einsum adds up along a letter that does not return: if q and k name the batch"
    " differently, one of the two letters is lost that way.",
    hint="Which letter of your einsum stands on the left only?",
    hidden="B = 1",
    cite="om-ai-lab/OmDet#19; pytorch/pytorch#122959 (samples that meet)",
    link=TWO_LETTERS,
    keys=lambda k: k.sum(0, keepdims=True) + 0 * k,
)
heads_apart.fault(
    "scores.heads_summed",
    "Each query meets the sum of all heads' keys, not the keys of its own head.",
    why="An einsum adds up along a letter that does not return. If q and k name their head axis"
    " by different letters, one of them is lost that way.",
    hint="Which letter of your einsum stands on the left only?",
    hidden="one head",
    link=TWO_LETTERS,
    keys=lambda k: k.sum(2, keepdims=True) + 0 * k,
)
heads_apart.fault(
    "scores.heads_behind",
    "Your scores are (B, L, S, H), with the heads last.",
    why="The softmax of step 4 runs over the last axis, which has to hold the keys.",
    hint="In which order do the letters stand on the right of your einsum?",
    link=HEADS,
    out=lambda scores: np.moveaxis(scores, 1, -1),
)
heads_apart.fault(
    "scores.heads_added_up",
    "Your scores are (B, L, S): the heads were added up.",
    why="A letter that does not return is summed over. Every head has scores of its own.",
    hint="Which letter is missing on the right?",
    link=TWO_LETTERS,
    out=lambda scores: scores.sum(1),
)
heads_apart.fault(
    "scores.heads_between",
    "Your scores are (B, L, H, S): the heads stand between queries and keys.",
    why="That is the layout of the inputs. The scores are asked for with the heads before the"
    " length.",
    hint="Which axes of the result have to change places?",
    link=HEADS,
    out=lambda scores: scores.swapaxes(1, 2),
)
add_turned(heads_apart, out=transposed)
add_wrong_factors(
    heads_apart,
    "Your scores are multiplied by {found} (here {value}). Step 1 multiplies by nothing.",
    CODE,
)


@heads_apart.solution
def heads_apart_solution(q, k):
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)  # (B, H, L, d_k), (B, H, S, d_k)
    return q @ k.swapaxes(-1, -2)  # (B, H, L, S)


@heads_apart.solution("With an einsum, which does both at once.")
def heads_apart_einsum(q, k):
    return np.einsum("blhd,bshd->bhls", q, k)


@heads_apart.solution(shown=False)
def heads_apart_transpose(q, k):
    return np.transpose(q, (0, 2, 1, 3)) @ np.transpose(k, (0, 2, 3, 1))


@heads_apart.solution(shown=False)
def heads_apart_loop(q, k):
    heads = [q[:, :, h] @ k[:, :, h].swapaxes(-1, -2) for h in range(q.shape[2])]
    return np.stack(heads, axis=1)


@heads_apart.solution(backend="torch")
def heads_apart_torch(q, k):
    return q.transpose(1, 2) @ k.transpose(1, 2).transpose(-2, -1)


@heads_apart.solution(backend="torch", shown=False)
def heads_apart_torch_permute(q, k):
    return q.permute(0, 2, 1, 3).matmul(k.permute(0, 2, 3, 1))


# -- cosine --------------------------------------------------------------------------------------

cosine = Exercise(
    "dot_product.cosine",
    kind="parsons",
    title="Direction alone",
    statement="""
Put lines in order to make `cosine(q, k)`: the cosine of the angle of every query with every key,
$(L, S)$, for `q` $(L, d_k)$ and `k` $(S, d_k)$. No vector is zero. Not every line is needed, and
more than one order is right. Set `cosine` to the letters, as in `"AB"`.
""",
    link=COSINE,
    goals={
        "query": "queries of length 1",
        "key": "keys of length 1",
        "turned": "rows belong to queries",
    },
    header="def cosine(q, k):",
    lines={
        "A": "q_length = np.sqrt((q * q).sum(axis=-1, keepdims=True))",
        "B": "return q @ k.T",
        "C": "k = k / k_length",
        "D": "k_length = np.sqrt((k * k).sum(axis=0, keepdims=True))",
        "E": "q = q / q_length",
        "F": "return k @ q.T",
        "G": "k_length = np.sqrt((k * k).sum(axis=-1, keepdims=True))",
    },
    hints=("Each vector is divided by its own length. Over which axis is a length summed?",),
    reason="q·k = |q|·|k|·cos θ, so with both lengths 1 the dot product is the cosine.",
    question="After this, which of a model's weights can still make a softmax sharp? (It is why"
    " QK-norm comes with a learned temperature.)",
)


@cosine.inputs
def _(rng, L=5, S=6, d_k=7):
    return {"q": numbers(rng, L, d_k, std=2), "k": numbers(rng, S, d_k)}


cosine.probe("a few queries", L=2, S=3, d_k=5)
cosine.probe("more of them", L=5, S=6, d_k=7)


def along(axis):
    return lambda x: x / np.sqrt((x * x).sum(axis, keepdims=True))


@cosine.model
def _(q, k, *, query=unit, key=unit, turned=False):
    scores = query(q) @ key(k).T
    return scores.T if turned else scores


cosine.fault(
    "cosine.query_length_kept",
    "The queries keep their length: what you return is |q|·cos θ.",
    why="Within one row that changes no ranking, but it does change how sharp the softmax is.",
    hint="Two vectors, two lengths.",
    link=COSINE,
    query=lambda x: x,
)
cosine.fault(
    "cosine.key_length_kept",
    "The keys keep their length: what you return is |k|·cos θ, and a long key still wins.",
    why="It is the length of the keys that changes the ranking.",
    hint="Two vectors, two lengths.",
    link=COSINE,
    key=lambda x: x,
)
cosine.fault(
    "cosine.feature_lengths",
    "You divide each *column* of k by its length: the length of a feature, over all keys.",
    why="A key is a row. Its length sums over d_k, the last axis; yours changes when another key"
    " is added.",
    hint="Which axis holds the numbers of one key?",
    hidden="S = d_k, for the shape",
    link=COSINE,
    key=along(0),
)
add_turned(cosine, turned=True)
cosine.solutions += [Solution("AGECB"), Solution("AEGCB"), Solution("GCAEB", shown=False)]


# -- negative ------------------------------------------------------------------------------------

negative_scores = Exercise(
    "dot_product.negative_scores",
    kind="quiz",
    title="All scores are negative",
    statement="""
A query has the scores $(-1, -2, -3)$ with its three keys. Which sentence is right?
""",
    link=NEGATIVE,
)
negative_scores.option(
    "A",
    "Negative scores mean unrelated, so none of the keys gets any weight worth speaking of.",
    "The weights sum to 1, whatever the scores. Here they are 0.665, 0.245 and 0.090. A softmax"
    " cannot say “none of these”.",
)
negative_scores.option(
    "B",
    "The most negative score has the largest size, so the third key gets the most weight.",
    "The exponential keeps the order of the scores: −1 is the largest of them.",
)
negative_scores.option(
    "C",
    "The weights are the same as for the scores (2, 1, 0) or (102, 101, 100).",
    "Yes. Adding one number to all scores of a row multiplies every exponential, and their sum, by"
    " the same factor. Only differences count.",
    right=True,
)
negative_scores.option(
    "D",
    "All three keys are perpendicular to the query.",
    "Perpendicular is a score of exactly 0. Negative is an angle above 90°: the key points away.",
)
negative_scores.option(
    "E",
    "A key with score −3 gets a negative weight, so its value is subtracted.",
    "An exponential is positive. A head can only mix values with positive weights; what it mixes"
    " may be negative.",
)


# -- catch an einsum -----------------------------------------------------------------------------

expose_letter = Exercise(
    "dot_product.expose_letter",
    kind="catch",
    title="One letter too few",
    statement="""
Luong's *general* score puts a learned matrix between query and key: $q W k^\\top$. Somebody
computes all of them with

```python
np.einsum("ld,dd,sd->ls", q, W, k)
```

Their test passes. Write `expose_letter()`, which returns `(q, W, k)`, `q` $(L, d)$, `W` $(d, d)$,
`k` $(S, d)$, on which this gives something else than `q @ W @ k.T`.
""",
    link=ONE_LETTER,
    hints=(
        "What does an einsum do with a letter that stands twice at one array?",
        "Which entries of W does `dd` read?",
    ),
    reason="`dd` reads the diagonal of W and nothing else. Any entry off the diagonal that takes"
    " part in a score exposes it.",
    question="Their test used W = np.eye(d). What would you have used?",
)


@expose_letter.inputs
def _(rng, L=2, S=3, d=5):
    return {"q": numbers(rng, L, d), "W": numbers(rng, d, d), "k": numbers(rng, S, d)}


@expose_letter.model
def _(q, W, k):
    return q @ W @ k.T


@expose_letter.black_box
def _(q, W, k):
    return np.einsum("ld,dd,sd->ls", q, W, k)


def off_diagonal(W):
    W = np.asarray(W)
    return W * (1 - np.eye(*W.shape))


def square(W):
    return np.ndim(W) == 2 and np.shape(W)[0] == np.shape(W)[1]


@expose_letter.program(
    "catch.diagonal_matrix",
    "Your W is 0 off its diagonal, and the diagonal is what `dd` reads: both give the same.",
    why="The identity and other diagonal matrices are the inputs that hide this mistake.",
    hint="Put a number off the diagonal.",
    link=ONE_LETTER,
    when=lambda q, W, k: square(W) and not off_diagonal(W).any(),
)
def _():
    return np.ones((2, 5)), np.eye(5), np.ones((3, 5))


@expose_letter.program(
    "catch.off_diagonal_unused",
    "What stands off the diagonal of your W adds up to nothing in any score.",
    why="A zero in q or k, or two entries that cancel, hide it.",
    hint="Let every number of q and k be positive.",
    link=ONE_LETTER,
    when=lambda q, W, k: (
        square(W)
        and off_diagonal(W).any()
        and np.allclose(np.asarray(q) @ off_diagonal(W) @ np.asarray(k).T, 0)
    ),
)
def _():
    return np.zeros((2, 5)), np.ones((5, 5)), np.ones((3, 5))


@expose_letter.solution
def expose_letter_solution():
    return np.ones((2, 5)), np.ones((5, 5)), np.ones((3, 5))


@expose_letter.solution("One entry is enough.")
def expose_letter_single():
    W = np.zeros((2, 2))
    W[0, 1] = 1.0
    return np.array([[1.0, 0.0]]), W, np.array([[0.0, 1.0]])


# -- fix it --------------------------------------------------------------------------------------

bilinear_scores = Exercise(
    "dot_product.bilinear_scores",
    kind="fix",
    title="A letter for each axis",
    statement="""
Now repair it. `bilinear_scores(q, W, k)` should return $Q W K^\\top$, the score of every query
with every key through the matrix `W` $(d_q, d_k)$. `q` is $(\\dots, L, d_q)$, `k` is
$(\\dots, S, d_k)$, the result $(\\dots, L, S)$. It has to be right for $d_q = d_k$ and for
$d_q \\ne d_k$.
""",
    link=ONE_LETTER,
    goals={
        "matrix": "all of W, with d_q on its left and d_k on its right",
        "keys": "each column of the last factor is one key",
        "turned": "rows belong to queries, columns to keys",
        "factor": "no scale yet",
    },
    backends=("numpy", "torch"),
    hints=("q, W and k have two axes each that are not leading. Give every axis its own letter.",),
    reason="d_q and d_k are two axes even where they are equally long. With a letter for each,"
    " `dd` becomes `de`, and k is read along e.",
    question="Which of your tests would notice a W that is transposed?",
)


@bilinear_scores.stub
def bilinear_scores_stub(q, W, k):
    """q (..., L, d_q), W (d_q, d_k), k (..., S, d_k) → (..., L, S)"""
    return np.einsum("...ld,dd,...sd->...ls", q, W, k)


@bilinear_scores.inputs
def _(rng, B=2, L=5, S=6, d_q=7, d_k=8):
    lead = (B,) if B > 1 else ()
    return {
        "q": numbers(rng, *lead, L, d_q),
        "W": numbers(rng, d_q, d_k),
        "k": numbers(rng, *lead, S, d_k),
    }


bilinear_scores.probe("a square W", B=1, L=2, S=3, d_q=5, d_k=5)
bilinear_scores.probe("a square W, and a batch", B=2, L=5, S=3, d_q=6, d_k=6)
bilinear_scores.probe("d_q and d_k differ", B=1, L=3, S=2, d_q=5, d_k=7)
bilinear_scores.probe("d_q and d_k differ, and a batch", B=3, L=5, S=6, d_q=8, d_k=2)


@bilinear_scores.model
def _(q, W, k, *, matrix=lambda W: W, keys=transposed, turned=False, factor=one):
    scores = q @ matrix(W) @ keys(k) * factor(W.shape[0])
    return transposed(scores) if turned else scores


def diagonal(W):
    return np.diag(np.einsum("dd->d", W))  # raises unless W is square


def summed(axis):
    def matrix(W):
        return np.diag(W.sum(axis)) if square(W) else diagonal(W)

    return matrix


add_wrong_keys(bilinear_scores)
bilinear_scores.fault(
    "scores.diagonal_only",
    "Your einsum reads the diagonal of W only: one letter stands for both of its axes.",
    why="A letter that is repeated at one array means “where both indices are equal”. The rest of W"
    " has no effect, and gets no gradient.",
    hint="Write `de`. Who else has to be read along e?",
    hidden="a diagonal W",
    cite="decisionintelligence/DUET#6",
    link=ONE_LETTER,
    matrix=diagonal,
)
bilinear_scores.fault(
    "scores.weight_turned",
    "You use W transposed: its rows belong to the query, its columns to the key.",
    why="With a square W nothing complains. With d_q ≠ d_k the shapes do not fit.",
    hint="Which axis of W is as long as a query?",
    hidden="d_q ≠ d_k, where it fails loudly; a symmetric W",
    cite="rasbt/LLMs-from-scratch#857",
    link=ORIENTATION,
    matrix=lambda W: W.T,
)
bilinear_scores.fault(
    "scores.weight_columns_summed",
    "Each row of W is summed to one number: its second axis has a letter that returns nowhere.",
    why="An einsum adds up along every letter that stands on the left only. `ld,de,sd` multiplies"
    " q, k and the row sums of W.",
    hint="Along which letter must k be read?",
    link=TWO_LETTERS,
    matrix=summed(1),
)
bilinear_scores.fault(
    "scores.weight_rows_summed",
    "Each column of W is summed to one number: its first axis has a letter that returns nowhere.",
    why="An einsum adds up along every letter that stands on the left only.",
    hint="Along which letter must q be read?",
    link=TWO_LETTERS,
    matrix=summed(0),
)
bilinear_scores.fault(
    "scores.weight_unused",
    "W has no effect: you return the plain dot product.",
    why="The score goes from the query through W to the key.",
    hint="Three factors.",
    link=ORIENTATION,
    matrix=lambda W: np.eye(W.shape[0]) if square(W) else diagonal(W),
)
add_turned(bilinear_scores, turned=True)
add_wrong_factors(
    bilinear_scores,
    "Your scores are multiplied by {found} (here {value}). Nothing is scaled here.",
    CODE,
)


@bilinear_scores.solution
def bilinear_scores_solution(q, W, k):
    return np.einsum("...ld,de,...se->...ls", q, W, k)


@bilinear_scores.solution("Two matrix products.")
def bilinear_scores_matmul(q, W, k):
    return q @ W @ k.swapaxes(-1, -2)


@bilinear_scores.solution(shown=False)
def bilinear_scores_key_first(q, W, k):
    return q @ (k @ W.T).swapaxes(-1, -2)


@bilinear_scores.solution(backend="torch")
def bilinear_scores_torch(q, W, k):
    return q @ W @ k.transpose(-2, -1)


@bilinear_scores.solution(backend="torch", shown=False)
def bilinear_scores_torch_key_first(q, W, k):
    return q @ (W @ k.mT)


# -- additive ------------------------------------------------------------------------------------

largest_additive_score = Exercise(
    "dot_product.largest_additive_score",
    kind="predict",
    title="How high can it go?",
    statement="""
Additive attention scores a pair by $v\\cdot\\tanh(q W_q + k W_k)$. Let $v = (0.5, -1, 2)$. The
matrices, the query and the key may be anything. Which number does no score exceed, however long
the query and the key are made? Set `largest_additive_score` to it.
""",
    link=f"{CHAPTER}#a-long-key-wins",
    tolerance=0.02,
    hints=("Between which numbers does a tanh lie?",),
    reason="A tanh lies between −1 and 1, and each of the three can be pushed to either end:"
    " at most |0.5| + |−1| + |2|. A dot product has no such bound.",
    question="What does this mean for a key that is made a hundred times as long?",
)


@largest_additive_score.model
def _():
    rng = np.random.default_rng(0)
    v, W_q, W_k = np.array([0.5, -1.0, 2.0]), rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    q, k = 1000 * rng.normal(size=(2, 2000, 4))
    return float((np.tanh(q @ W_q + k @ W_k) @ v).max())


largest_additive_score.wrong(
    1.5,
    "additive.bound_of_sum",
    "1.5 is the score when all three tanh are 1. The second enters with −1: it does better at −1.",
    why="Each tanh may take either end, whichever suits the sign of its v.",
    hint="What is the best value for the second tanh?",
    link=ADDITIVE,
)
largest_additive_score.wrong(
    2.5,
    "additive.bound_positive_part",
    "2.5 leaves the second tanh at 0. At −1 it adds another 1.",
    why="Each tanh may take either end, whichever suits the sign of its v.",
    hint="What is the best value for the second tanh?",
    link=ADDITIVE,
)
largest_additive_score.wrong(
    2.0,
    "additive.bound_of_largest",
    "2 is the largest entry. The score adds all three.",
    hint="Add up what each can contribute.",
    link=ADDITIVE,
)
largest_additive_score.wrong(
    math.sqrt(5.25),
    "additive.bound_of_norm",
    "√5.25 is the length of v. It would be the bound if the tanh had length 1; its entries may"
    " all be ±1 at once, which is length √3.",
    hint="Add up what each can contribute.",
    link=ADDITIVE,
)
largest_additive_score.wrong(
    1.0,
    "additive.bound_of_tanh",
    "1 is the bound of one tanh. v multiplies and adds them afterwards.",
    hint="The tanh is inside, v outside.",
    link=ADDITIVE,
)
largest_additive_score.solutions += [
    Solution("largest_additive_score = 0.5 + 1 + 2\n"),
    Solution("largest_additive_score = np.abs([0.5, -1, 2]).sum()\n"),
]


additive_scores = Exercise(
    "dot_product.additive_scores",
    kind="implement",
    title="Additive attention",
    statement="""
Write `additive_scores(q, k, W_q, W_k, v)`: for every query and every key

$$v\\cdot\\tanh(q W_q + k W_k)$$

`q` is $(\\dots, L, d_q)$, `k` is $(\\dots, S, d_k)$, `W_q` $(d_q, d_a)$, `W_k` $(d_k, d_a)$, `v`
$(d_a)$; the result is $(\\dots, L, S)$. Project each token once, not once for each pair.
""",
    link=ADDITIVE,
    goals={
        "weights": "each side through its own matrix",
        "pairs": "every query with every key",
        "combine": "the two projections are added",
        "squash": "a tanh of the sum",
        "reduce": "v turns d_a numbers into one score",
        "turned": "rows belong to queries, columns to keys",
        "factor": "no scale",
        "after": "scores, not weights",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.dot_product.additive_scores",
        "sdpa_course.with_numpy.dot_product.additive_scores_shared",
        "sdpa_course.with_torch.dot_product.additive_scores",
        "sdpa_course.with_torch.dot_product.additive_scores_shared",
    ),
    hints=(
        "Give the projected queries the shape (…, L, 1, d_a) and the projected keys (…, 1, S, d_a)."
        " Broadcasting makes all pairs.",
        "Write the shape at the end of each line.",
    ),
    reason="The first layer is linear, so q W_q and k W_k are computed once for each token. Only"
    " the sum, its tanh and the product with v are left for each pair.",
    question="Without the tanh, would the weights depend on the query at all?",
    next="Chapter 02 returns to the dot product, whose scores have no bound.",
)


@additive_scores.stub
def additive_scores_stub(q, k, W_q, W_k, v):
    """Scores (..., L, S) of q (..., L, d_q) with k (..., S, d_k).

    W_q (d_q, d_a), W_k (d_k, d_a), v (d_a,)
    """
    raise NotImplementedError


@additive_scores.inputs
def _(rng, B=2, L=5, S=6, d_q=7, d_k=8, d_a=3):
    lead = (B,) if B > 1 else ()
    return {
        "q": numbers(rng, *lead, L, d_q),
        "k": numbers(rng, *lead, S, d_k),
        "W_q": numbers(rng, d_q, d_a, std=d_q**-0.5),
        "W_k": numbers(rng, d_k, d_a, std=d_k**-0.5),
        "v": numbers(rng, d_a),
    }


additive_scores.probe("no batch", B=1, L=2, S=3, d_q=5, d_k=6, d_a=7)
additive_scores.probe("a batch", B=2, L=5, S=6, d_q=7, d_k=8, d_a=3)
additive_scores.probe("fewer keys than queries", B=3, L=5, S=2, d_q=6, d_k=5, d_a=8)
additive_scores.probe("all sizes of vectors equal, L = S", B=2, L=3, S=3, d_q=5, d_k=5, d_a=5)


def every_pair(a, b):
    return a[..., :, None, :], b[..., None, :, :]


@additive_scores.model
def _(
    q,
    k,
    W_q,
    W_k,
    v,
    *,
    weights=lambda W_q, W_k: (W_q, W_k),
    pairs=every_pair,
    combine=np.add,
    squash=(lambda x: x, np.tanh, lambda x: x),
    reduce=lambda hidden, v: hidden @ v,
    turned=False,
    factor=one,
    after=lambda scores: scores,
):
    each, both, last = squash
    W_q, W_k = weights(W_q, W_k)
    left, right = pairs(each(q @ W_q), each(k @ W_k))
    scores = last(reduce(both(combine(left, right)), v)) * factor(v.shape[-1])
    return after(transposed(scores) if turned else scores)


def same(x):
    return x


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


additive_scores.fault(
    "additive.tanh_missing",
    "There is no tanh: your score is v·(q W_q) + v·(k W_k), one number for the query plus one for"
    " the key.",
    why="In a softmax over keys the query's number cancels: all queries get the same weights.",
    hint="What stands between the two layers of a network?",
    link=TANH,
    squash=(same, same, same),
)
additive_scores.fault(
    "additive.tanh_of_each",
    "You take the tanh of each projection and then add. The tanh belongs around the sum.",
    why="A sum of one term for the query and one for the key: the query's cancels in the softmax,"
    " and all queries get the same weights.",
    hint="Add first.",
    link=TANH,
    squash=(np.tanh, same, same),
)
additive_scores.fault(
    "additive.tanh_outside",
    "You take the tanh of the finished score. It belongs before the product with v.",
    why="A score would then lie between −1 and 1, and the first layer would have no bend in it.",
    hint="Which comes first, tanh or v?",
    link=TANH,
    squash=(same, same, np.tanh),
)
additive_scores.fault(
    "additive.relu",
    "You use a relu where the formula has a tanh.",
    why="It would make a network too, but another one, and its scores have no bound.",
    hint="Use np.tanh or torch.tanh.",
    link=TANH,
    squash=(same, lambda x: np.maximum(x, 0), same),
)
additive_scores.fault(
    "additive.sigmoid",
    "You use a sigmoid where the formula has a tanh.",
    why="tanh(x) = 2·sigmoid(2x) − 1: the same shape, at another place and another scale.",
    hint="Use np.tanh or torch.tanh.",
    link=TANH,
    squash=(same, sigmoid, same),
)
additive_scores.fault(
    "additive.weights_swapped",
    "The query goes through W_k and the key through W_q.",
    why="Where d_q = d_k nothing complains.",
    hint="q has d_q numbers.",
    hidden="d_q ≠ d_k, where it fails loudly",
    link=ORIENTATION,
    weights=lambda W_q, W_k: (W_k, W_q),
)
additive_scores.fault(
    "additive.weights_turned",
    "You multiply with the matrices transposed. They come as (size in, size out).",
    why="`x @ W.T` is right for weights stored as (out, in), as torch.nn.Linear does. Where both"
    " sizes are equal nothing complains.",
    hint="Which axis of W_q is as long as a query?",
    hidden="d_q ≠ d_a, where it fails loudly",
    cite="rasbt/LLMs-from-scratch#857",
    link=ORIENTATION,
    weights=lambda W_q, W_k: (W_q.T, W_k.T),
)
additive_scores.fault(
    "scores.paired_by_position",
    "Query i meets key i only. There should be a score for every pair.",
    why="Adding (…, L, d_a) and (…, S, d_a) goes row by row. Where L ≠ S it is an error.",
    hint="Each side needs an axis of size 1 where the other has its positions.",
    hidden="L ≠ S, where it fails loudly",
    link=NOT_EVERY_PAIR,
    pairs=lambda a, b: (a, b),
)
additive_scores.fault(
    "additive.subtracted",
    "You subtract the projections where they are added.",
    why="A trained W_k could absorb the sign. Here the matrices are given.",
    hint="It is called additive.",
    link=ADDITIVE,
    combine=np.subtract,
)
additive_scores.fault(
    "additive.multiplied",
    "You multiply the projections where they are added.",
    why="Then it is a dot product with a tanh in it.",
    hint="It is called additive.",
    link=ADDITIVE,
    combine=np.multiply,
)
additive_scores.fault(
    "additive.v_forgotten",
    "You add up the d_a numbers as they are: v has no effect.",
    why="v is the second layer of the network; it says how much each hidden unit counts, and in"
    " which direction.",
    hint="The last axis goes by a product with v.",
    link=ADDITIVE,
    reduce=lambda hidden, v: hidden.sum(-1),
)
additive_scores.fault(
    "additive.not_reduced",
    "Your result still has d_a as its last axis: multiply by v **and** add up.",
    why="One pair has one score.",
    hint="`*` or `@`?",
    link=ADDITIVE,
    reduce=lambda hidden, v: hidden * v,
)
add_turned(additive_scores, turned=True)
additive_scores.fault(
    "scores.scaled_too_early",
    "You divide by √d_a. Additive attention has no scale.",
    why="The paper that scales dot products leaves additive scores alone; a tanh keeps them in"
    " bounds.",
    hint="Return the scores as they come out of the sum.",
    link=ADDITIVE,
    factor=lambda d: d**-0.5,
)
additive_scores.add(
    Fit(
        "additive.factor",
        "factor",
        "Your scores are multiplied by {found} (here {value}). Additive attention has no scale.",
        right=lambda dims: 1.0,
        setting=lambda value: lambda d: value,
        why="One factor explains all your numbers, and nothing in the formula multiplies them.",
        hint="Which number do you multiply by?",
        link=ADDITIVE,
    )
)
additive_scores.fault(
    "scores.weights_returned",
    "You return weights: a softmax has been taken already. That is step 4.",
    why="A mask comes between, and acts on scores.",
    hint="Stop after the product with v.",
    link=ADDITIVE,
    after=softmax,
)


@additive_scores.solution
def additive_scores_solution(q, k, W_q, W_k, v):
    left = (q @ W_q)[..., :, None, :]  # (..., L, 1, d_a)
    right = (k @ W_k)[..., None, :, :]  # (..., 1, S, d_a)
    return np.tanh(left + right) @ v  # (..., L, S)


@additive_scores.solution("One hidden unit at a time: (…, L, S) is the largest array there is.")
def additive_scores_by_unit(q, k, W_q, W_k, v):
    left, right = q @ W_q, k @ W_k  # (..., L, d_a), (..., S, d_a)
    scores = 0.0
    for a in range(v.shape[0]):
        scores = scores + v[a] * np.tanh(left[..., :, None, a] + right[..., None, :, a])
    return scores


@additive_scores.solution(shown=False)
def additive_scores_concatenated(q, k, W_q, W_k, v):
    L, S = q.shape[-2], k.shape[-2]
    left = np.repeat(q[..., :, None, :], S, axis=-2)
    right = np.repeat(k[..., None, :, :], L, axis=-3)
    pairs = np.concatenate([left, right], axis=-1)
    return (np.tanh(pairs @ np.concatenate([W_q, W_k])) * v).sum(axis=-1)


@additive_scores.solution(shown=False)
def additive_scores_einsum(q, k, W_q, W_k, v):
    hidden = np.expand_dims(q @ W_q, -2) + np.expand_dims(k @ W_k, -3)
    return np.einsum("...lsa,a->...ls", np.tanh(hidden), v)


@additive_scores.solution(backend="torch")
def additive_scores_torch(q, k, W_q, W_k, v):
    left = (q @ W_q).unsqueeze(-2)  # (..., L, 1, d_a)
    right = (k @ W_k).unsqueeze(-3)  # (..., 1, S, d_a)
    return (left + right).tanh() @ v  # (..., L, S)


@additive_scores.solution(backend="torch", shown=False)
def additive_scores_torch_sum(q, k, W_q, W_k, v):
    hidden = ((q @ W_q)[..., :, None, :] + (k @ W_k)[..., None, :, :]).tanh()
    return (hidden * v).sum(dim=-1)


EXERCISES = (
    weight_of_long_key,
    pairwise_scores,
    heads_apart,
    cosine,
    negative_scores,
    expose_letter,
    bilinear_scores,
    largest_additive_score,
    additive_scores,
)
