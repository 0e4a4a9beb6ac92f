"""Graded exercises of the chapter on the backward pass."""

from __future__ import annotations

import math

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fit, Solution
from sdpa_course.grading.properties import rows_sum_to_zero, stays_within

CHAPTER = "07-backward"
FORMULA = f"{CHAPTER}#the-formula"
BY_HAND = f"{CHAPTER}#an-example-for-paper"
SUMS = f"{CHAPTER}#two-sums-that-must-come-out"
ROW_SUM = f"{CHAPTER}#the-row-sum-from-the-output"
HIDDEN = f"{CHAPTER}#what-reaches-a-masked-key"
FROM_LSE = f"{CHAPTER}#recomputed-from-log-sum-exp"
NO_ROW_SUM = f"{CHAPTER}#the-row-sum-left-out"
ELEMENTWISE = f"{CHAPTER}#the-derivative-taken-element-by-element"
WRONG_AXIS = f"{CHAPTER}#a-sum-over-the-wrong-axis"
LOST_SCALE = f"{CHAPTER}#the-scale-lost-on-the-way-back"
TRANSPOSE = f"{CHAPTER}#a-transpose-left-out"
FROM_SCORES = f"{CHAPTER}#dv-from-the-scores"
MASK_FORGOTTEN = f"{CHAPTER}#the-mask-forgotten-in-the-recomputation"
NOTHING = f"{CHAPTER}#a-row-with-nothing-to-attend-to"
CUT = f"{CHAPTER}#a-graph-that-is-cut"

GRAD_01 = (
    "AkiRusProd/numpy-transformer 654440e; Apiquet/DeepLearningFrameworkFromScratchCpp#1;"
    " HomericIntelligence/Odyssey#2134; pocketpy/cTensor PR#31"
)
GRAD_04 = "ooples/AiDotNet.Tensors#49"


# -- the model: the five steps walked back, with the mistakes as switches ------------------------


def swapped(x):
    return x.swapaxes(-1, -2)


def reshaped(x):
    return x.reshape(*x.shape[:-2], x.shape[-1], x.shape[-2])


def right_scale(q, k, v):
    return q.shape[-1] ** -0.5


def row_sum(t):
    return t.sum(axis=-1, keepdims=True)


def weighted_average(p, g, total):
    return total(p * g)


def through_softmax(
    p,
    g,
    *,
    average=weighted_average,
    total=row_sum,
    share=1.0,
    outer=lambda p, g, mean: p * (g - mean),
):
    """Step 4 back: the gradient at the scores from g, the one at the weights p."""
    return outer(p, g, share * average(p, g, total))


def to_query_and_key(
    d_scores,
    q,
    k,
    v=None,
    *,
    scale=right_scale,
    back_scale=lambda scale: scale,
    scaled=(True, True),
    turned=swapped,
    query_side=lambda d_scores: d_scores,
    partners=lambda q, k: (k, q),
):
    """Steps 2 and 1 back: (d_q, d_k) from the gradient at the scaled scores."""
    factor = back_scale(scale(q, k, v))
    for_query, for_key = partners(q, k)
    d_q = query_side(d_scores) @ for_query * (factor if scaled[0] else 1.0)
    d_k = turned(d_scores) @ for_key * (factor if scaled[1] else 1.0)
    return d_q, d_k


def to_value(weights, scores, d_output, *, mixer=lambda weights, scores: weights, lying=swapped):
    """Step 5 back, towards the values."""
    return lying(mixer(weights, scores)) @ d_output


def masked_softmax(scores, mask, empty=lambda S: 0.0):
    """Steps 3 and 4: weights of the scores, and what a row with nothing to attend to gets."""
    scores = np.where(mask, scores, -np.inf)
    highest = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(highest == -np.inf, 0.0, highest))
    total = row_sum(exps)
    weights = exps / np.where(total == 0, 1.0, total)
    return np.where(total == 0, empty(scores.shape[-1]), weights)


def tokens(rng, *shape, std=1.0):
    """Numbers with one decimal, so that a small example can be followed by hand."""
    return np.round(rng.normal(size=shape) * std, 1)


def some_mask(rng, *shape):
    """Hides about a third of the keys, never all of a row."""
    mask = rng.random(shape) < 0.65
    keep = rng.integers(shape[-1], size=shape[:-1])
    np.put_along_axis(mask, keep[..., None], True, axis=-1)
    return mask


# -- mistakes that several exercises share -------------------------------------------------------


def add_softmax_faults(exercise: Exercise, few: bool = False) -> None:
    """Wrong ways back through the softmax, as settings of `outer`, `average`, `total`, `share`."""
    exercise.fault(
        "softmax.jacobian_diagonal",
        "You multiply by P(1 - P): that is the diagonal of the Jacobian alone, the derivative of a"
        " sigmoid.",
        why="Raising one score lowers all other weights of its row, and the gradient has to count"
        " that.",
        hint="What does raising one score do to the other weights of the row?",
        cite=GRAD_01,
        link=ELEMENTWISE,
        outer=lambda p, g, mean: p * (1 - p) * g,
    )
    exercise.fault(
        "softmax.jacobian_identity",
        "You pass the gradient through the softmax as it is: dS = dP.",
        why="Adding a constant to a row of scores changes nothing, so the rows of dS have to sum"
        " to 0. Yours do not.",
        hint="Which step lies between the scores and the weights?",
        cite="pjreddie/darknet PR#96",
        link=ELEMENTWISE,
        outer=lambda p, g, mean: g,
    )
    exercise.fault(
        "softmax.jacobian_row_term_missing",
        "You return P ∘ dP: the row sum is missing.",
        why="The weights of a row share one unit. What one key gains the others lose, and the row"
        " sum is the account of that.",
        hint="Sum each row of dS. It should be 0.",
        hidden="every output row orthogonal to its gradient",
        link=NO_ROW_SUM,
        share=0.0,
    )
    exercise.fault(
        "softmax.jacobian_row_term_added",
        "You add the row sum; it has to be subtracted.",
        why="The Jacobian is diag(P) minus P Pᵀ.",
        hint="Sum each row of dS. It should be 0.",
        link=FORMULA,
        share=-1.0,
    )
    exercise.fault(
        "softmax.jacobian_weights_forgotten",
        "You take dP less its row sum, without the factor P in front.",
        why="A key of weight 0 must get no gradient, however large its dP.",
        hint="What should arrive at the score of a key whose weight is 0?",
        link=FORMULA,
        outer=lambda p, g, mean: g - mean,
    )
    exercise.fault(
        "softmax.jacobian_sign",
        "Your gradient at the scores has the wrong sign.",
        why="Raising a score raises its own weight, so a key that is better than the row's average"
        " gets a gradient of the sign of dP.",
        hint="Try one row, two equal weights, and dP = (1, 0).",
        link=FORMULA,
        outer=lambda p, g, mean: p * (mean - g),
    )
    exercise.fault(
        "softmax.jacobian_over_queries",
        "Your sum runs over axis -2, the queries; each query has a sum of its own, over its keys.",
        why="The rows of a softmax know nothing of each other, so neither do their gradients.",
        hint="The sum should have the shape (…, L, 1).",
        hidden="one query",
        link=WRONG_AXIS,
        total=lambda t: t.sum(axis=-2, keepdims=True),
    )
    exercise.fault(
        "softmax.jacobian_over_everything",
        "Your sum runs over the whole array; each query has a sum of its own, over its keys.",
        why="The rows of a softmax know nothing of each other, so neither do their gradients.",
        hint="Give the sum an axis, and keep it.",
        hidden="one query",
        link=WRONG_AXIS,
        total=lambda t: t.sum(),
    )
    exercise.fault(
        "softmax.jacobian_sum_not_kept",
        "Your row sums lose their axis, (…, L), and are lined up with the columns.",
        why="NumPy lines shapes up from the right: (L,) beside (L, S) is taken for a row.",
        hint="The sum should have the shape (…, L, 1).",
        hidden="one query",
        link=WRONG_AXIS,
        total=lambda t: t.sum(axis=-1),
    )
    if few:
        return
    exercise.fault(
        "softmax.jacobian_brackets",
        "You return P ∘ dP - Σ P dP: the factor P stands before the first term only.",
        why="P ∘ dP - P Σ P dP = P ∘ (dP - Σ P dP): the factor belongs to both.",
        hint="Where do the brackets open?",
        link=FORMULA,
        outer=lambda p, g, mean: p * g - mean,
    )
    exercise.fault(
        "softmax.jacobian_outer_squared",
        "You multiply by P twice: P² ∘ (dP - Σ P dP).",
        why="diag(P) holds each weight once.",
        hint="Is one of your factors in the brackets already?",
        link=FORMULA,
        outer=lambda p, g, mean: p * p * (g - mean),
    )
    exercise.fault(
        "softmax.jacobian_plain_sum",
        "You subtract the plain sum of dP; each term has to be weighted with P.",
        why="What is subtracted is the average of dP under the weights.",
        hint="Σ of a product of two arrays.",
        link=FORMULA,
        average=lambda p, g, total: total(g),
    )
    exercise.fault(
        "softmax.jacobian_plain_mean",
        "You subtract the plain mean of dP; the average has to be taken with the weights P.",
        why="The two agree only where all weights of the row are equal.",
        hint="Σ of a product of two arrays.",
        hidden="uniform weights",
        link=FORMULA,
        average=lambda p, g, total: g.mean(axis=-1, keepdims=True),
    )


def add_scale_faults(exercise: Exercise) -> None:
    """Wrong scales on the way back, as settings of `back_scale` and `scaled`."""
    exercise.fault(
        "backward.scale_forgotten",
        "You leave the scale out on the way back: dQ = dS K and dK = dSᵀ Q need the factor too.",
        why="The scores were multiplied by 1/√d_k on the way forward, and the derivative of a"
        " multiplication is the same multiplication.",
        hint="Is your dS the gradient before step 2 or after it?",
        hidden="d_k = 1",
        cite=GRAD_04,
        link=LOST_SCALE,
        back_scale=lambda scale: 1.0,
    )
    exercise.fault(
        "backward.scale_missing_on_query",
        "dQ lacks the scale; dK has it.",
        why="The product of q and k is scaled, so both gradients are.",
        hint="Scale dS once, before you use it twice.",
        hidden="d_k = 1",
        cite=GRAD_04,
        link=LOST_SCALE,
        scaled=(False, True),
    )
    exercise.fault(
        "backward.scale_missing_on_key",
        "dK lacks the scale; dQ has it.",
        why="The product of q and k is scaled, so both gradients are.",
        hint="Scale dS once, before you use it twice.",
        hidden="d_k = 1",
        cite=GRAD_04,
        link=LOST_SCALE,
        scaled=(True, False),
    )
    exercise.fault(
        "backward.scaled_twice",
        "Your gradients of q and k are scaled twice, by 1/d_k in all.",
        why="Once dS holds the scale, dQ and dK do as well.",
        hint="Count how often the factor comes in between dP and dQ.",
        hidden="d_k = 1",
        link=LOST_SCALE,
        back_scale=lambda scale: scale * scale,
    )
    exercise.fault(
        "backward.scale_inverted",
        "You multiply by √d_k on the way back; it is 1/√d_k in both directions.",
        why="A gradient is not an inverse: what a step multiplies forward it multiplies backward.",
        hint="Differentiate s = c·x. Is the derivative c or 1/c?",
        hidden="d_k = 1",
        link=LOST_SCALE,
        back_scale=lambda scale: 1.0 / scale,
    )


def add_key_side_faults(exercise: Exercise) -> None:
    """Wrong ways to take dS to q and k, as settings of `turned`, `query_side`, `partners`."""
    exercise.fault(
        "backward.d_scores_not_transposed",
        "dK is made from dS as it stands; it takes dSᵀ, one row for each key.",
        why="A key collects from all queries that looked at it, so the sum runs over queries.",
        hint="dK is (…, S, d_k). Which axis of dS has to be summed?",
        hidden="an error where L ≠ S, silent where L = S",
        link=TRANSPOSE,
        turned=lambda d_scores: d_scores,
    )
    exercise.fault(
        "backward.d_scores_reshaped",
        "You reshape dS to (…, S, L) where it must be transposed.",
        why="A reshape keeps the order in memory and only cuts it at other places.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        link=TRANSPOSE,
        turned=reshaped,
    )
    exercise.fault(
        "backward.d_scores_all_axes",
        "`.T` reverses every axis of dS, the batch and the heads too.",
        why="With two axes that is a transpose; with four the shapes no longer fit.",
        hint="Swap only the last two axes.",
        hidden="two axes",
        link=TRANSPOSE,
        turned=lambda d_scores: d_scores.T,
    )
    exercise.fault(
        "backward.query_transposed",
        "dQ is made from dSᵀ; it takes dS as it stands, one row for each query.",
        why="Row i of dS holds what query i did to its scores.",
        hint="dQ is (…, L, d_k). Which axis of dS has to be summed?",
        hidden="an error where L ≠ S, silent where L = S",
        link=TRANSPOSE,
        query_side=swapped,
    )
    exercise.fault(
        "backward.partners_exchanged",
        "You multiply dS with q to get dQ, and dSᵀ with k to get dK; it is the other way round.",
        why="The derivative of q·k with respect to q is k.",
        hint="Differentiate one score q·k with respect to q.",
        hidden="an error where L ≠ S, silent where L = S; q = k",
        cite=GRAD_04,
        link=TRANSPOSE,
        partners=lambda q, k: (q, k),
    )


def join_all_axes_faults(exercise: Exercise) -> None:
    """`.T` anywhere in a function of many arrays raises all the same: one mistake, one name."""
    exercise.faults = [fault for fault in exercise.faults if not fault.id.endswith("_all_axes")]
    exercise.fault(
        "backward.all_axes_reversed",
        "`.T` reverses every axis of an array, the batch and the heads too.",
        why="With two axes that is a transpose; with four the shapes no longer fit.",
        hint="Swap only the last two axes.",
        hidden="two axes",
        link=TRANSPOSE,
        turned=lambda d_scores: d_scores.T,
    )


def join_reshapes(exercise: Exercise) -> None:
    """Whoever reshapes for a transpose does so everywhere: in a whole pass it is one mistake."""
    ids = ("backward.scale_inverted", "backward.query_transposed")
    exercise.faults = [
        fault
        for fault in exercise.faults
        if not fault.id.endswith("_reshaped") and fault.id not in ids
    ]
    exercise.fault(
        "backward.reshaped_for_transposed",
        "You reshape arrays where they must be transposed: v for dP, P for dV, dS for dK.",
        why="A reshape keeps the order in memory and only cuts it at other places.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        cite="hyunwoongko/transformer, first versions",
        link=TRANSPOSE,
        meeting=reshaped,
        lying=reshaped,
        turned=reshaped,
    )


def add_value_faults(exercise: Exercise) -> None:
    """Wrong ways to lay the weights for dV, as settings of `lying`."""
    exercise.fault(
        "backward.weights_not_transposed",
        "dV is made from P as it stands; it takes Pᵀ, one row for each key.",
        why="Value j went into output i with weight P_ij, so it collects from all outputs i.",
        hint="dV is (…, S, d_v). Which axis of P has to be summed?",
        hidden="an error where L ≠ S, silent where L = S",
        link=TRANSPOSE,
        lying=lambda weights: weights,
    )
    exercise.fault(
        "backward.weights_reshaped",
        "You reshape P to (…, S, L) where it must be transposed.",
        why="A reshape keeps the order in memory and only cuts it at other places.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        link=TRANSPOSE,
        lying=reshaped,
    )
    exercise.fault(
        "backward.weights_all_axes",
        "`.T` reverses every axis of P, the batch and the heads too.",
        why="With two axes that is a transpose; with four the shapes no longer fit.",
        hint="Swap only the last two axes.",
        hidden="two axes",
        link=TRANSPOSE,
        lying=lambda weights: weights.T,
    )


def add_meeting_faults(exercise: Exercise) -> None:
    """Wrong ways to make dP, as settings of `meeting`."""
    exercise.fault(
        "backward.value_not_transposed",
        "dP is made from dO and v as it stands; it takes Vᵀ.",
        why="dP_ij is the product of row i of dO with row j of V.",
        hint="dP is (…, L, S). Which axis is summed?",
        hidden="an error where S ≠ d_v, silent where S = d_v",
        link=TRANSPOSE,
        meeting=lambda v: v,
    )
    exercise.fault(
        "backward.value_reshaped",
        "You reshape v to (…, d_v, S) where it must be transposed.",
        why="A reshape keeps the order in memory and only cuts it at other places.",
        hint="Swap the last two axes.",
        hidden="never by its shape",
        link=TRANSPOSE,
        meeting=reshaped,
    )


# -- predict one gradient ------------------------------------------------------------------------

first_score_gradient = Exercise(
    "backward.first_score_gradient",
    kind="predict",
    title="One gradient, on paper",
    statement="""
One query, two keys. The weights are $\\frac14$ and $\\frac34$, the values are the numbers 1 and 5
($d_v = 1$), and the loss has the gradient 2 at the output.

What is the gradient at the **first score**, after the scale and before the softmax? Set
`first_score_gradient` to your number. The check measures it by moving the score.
""",
    link=BY_HAND,
    tolerance=0.02,
    hints=(
        "First the gradient at each weight: the gradient at the output times the value.",
        "Then the average of the two under the weights. Which of them lies below it?",
    ),
    reason="dP = 2·(1, 5) = (2, 10); their average under the weights is ¼·2 + ¾·10 = 8; so the"
    " first score gets ¼·(2 - 8) = -1.5. The output is better off without this key, although its"
    " own dP is positive.",
    question="What does the second score get? (You can say so without computing it.)",
)


@first_score_gradient.model
def _():
    v, d_output, step = np.array([1.0, 5.0]), 2.0, 1e-5

    def loss(first):
        exps = np.exp([first, math.log(3.0)])
        return d_output * float(exps @ v / exps.sum())

    return (loss(step) - loss(-step)) / (2 * step)


for value, id, says, why, hint in (
    (
        0.5,
        "row_term_missing",
        "½ is ¼·2, weight times dP. The row's average, 8, has to be subtracted from dP first.",
        "Raising this score takes weight from the other key, whose value is larger.",
        "What does the second weight do when the first score rises?",
    ),
    (
        0.375,
        "diagonal",
        "0.375 is P(1 - P)·dP: how the first weight moves. The second moves too.",
        "The softmax has a full Jacobian, not a diagonal one.",
        "What does the second weight do when the first score rises?",
    ),
    (
        2.0,
        "identity",
        "2 is the gradient at the first *weight*. The softmax still lies between it and the score.",
        "dP is not dS.",
        "One more step back.",
    ),
    (
        -6.0,
        "weights_forgotten",
        "-6 is dP less the average. It still has to be multiplied with the weight, ¼.",
        "A key with a small weight has a small say.",
        "Multiply by the key's own weight.",
    ),
    (
        1.5,
        "sign",
        "The size is right, the sign is not: dP is below the row's average, so the gradient is"
        " negative.",
        "Raising this score lowers the output, as its value is the smaller one.",
        "Which way does the output move when the first key gets more weight?",
    ),
    (
        -1.0,
        "plain_mean",
        "You subtracted the plain mean of dP, 6. The average is taken with the weights: 8.",
        "The second key has three times the weight of the first.",
        "¼·2 + ¾·10.",
    ),
    (
        -0.75,
        "d_output_forgotten",
        "-0.75 is how the *output* moves. The loss has the gradient 2 there.",
        "The chain rule starts with the gradient of the loss at the output.",
        "Multiply by the gradient at the output.",
    ),
    (
        -2.5,
        "plain_sum",
        "You subtracted the plain sum of dP, 12. Each term has to be weighted: 8.",
        "What is subtracted is an average under the weights.",
        "¼·2 + ¾·10.",
    ),
):
    first_score_gradient.wrong(value, f"paper.{id}", says, why=why, hint=hint, link=BY_HAND)
first_score_gradient.solutions += [
    Solution("first_score_gradient = 0.25 * (2 * 1 - (0.25 * 2 * 1 + 0.75 * 2 * 5))\n"),
    Solution("first_score_gradient = -1.5\n"),
]


# -- the values ----------------------------------------------------------------------------------

value_gradient = Exercise(
    "backward.value_gradient",
    kind="implement",
    title="Back to the values",
    statement="""
The output is $O = PV$, with weights $P$ $(\\dots, L, S)$ and values $V$ $(\\dots, S, d_v)$. Write
`value_gradient(weights, d_output)`: the gradient at $V$, from the gradient `d_output`
$(\\dots, L, d_v)$ at $O$. The result is $(\\dots, S, d_v)$.
""",
    link=FORMULA,
    goals={
        "lying": "a value collects from the queries that looked at it",
        "mixer": "with the weights it was given",
        "factor": "and nothing else",
    },
    backends=("numpy", "torch"),
    hints=(
        "Value j went into output i with weight P_ij. What comes back to it from output i?",
        "The shapes leave one product only.",
    ),
    reason="O_i = Σ_j P_ij V_j, so V_j gets Σ_i P_ij dO_i: the transpose of P times dO. Neither"
    " the scale nor the softmax comes in.",
    question="A key gets the weight 1 from every query. What is the gradient at its value?",
    related=True,
)


@value_gradient.stub
def value_gradient_stub(weights, d_output):
    """Gradient at the values (..., S, d_v), of weights (..., L, S) and d_output (..., L, d_v)."""
    raise NotImplementedError


@value_gradient.inputs
def _(rng, B=2, H=3, L=5, S=6, d_v=8):
    lead = (B, H) if H > 1 else ()
    scores = tokens(rng, *lead, L, S, std=1.5)
    return {"weights": masked_softmax(scores, True), "d_output": tokens(rng, *lead, L, d_v)}


value_gradient.probe("one head, no batch", B=1, H=1, L=3, S=5, d_v=2)
value_gradient.probe("batch and heads", B=2, H=3, L=5, S=6, d_v=8)
value_gradient.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_v=5)


@value_gradient.special("as many queries as keys", L=5, S=5, d_v=3)
def _():
    rng = np.random.default_rng(1)
    return {
        "weights": masked_softmax(tokens(rng, 5, 5, std=1.5), True),
        "d_output": tokens(rng, 5, 3),
    }


@value_gradient.model
def _(weights, d_output, *, mixer=lambda p, s: p, lying=swapped, factor=lambda p, g: 1.0):
    return to_value(weights, None, d_output, mixer=mixer, lying=lying) * factor(weights, d_output)


add_value_faults(value_gradient)
value_gradient.fault(
    "backward.value_mean",
    "You take the mean over the queries; gradients add up.",
    why="Each output is moved by the value on its own, and the loss feels all of them.",
    hint="A value that two queries use gets the sum of what both send back.",
    hidden="one query",
    link=FORMULA,
    factor=lambda p, g: 1 / p.shape[-2],
)
value_gradient.fault(
    "backward.value_through_softmax",
    "You put P(1 - P) where P belongs: the derivative of the softmax comes in on the way to the"
    " scores, not to the values.",
    why="The output is linear in the values; the derivative of P_ij V_j with respect to V_j is"
    " P_ij.",
    hint="Which steps lie between the values and the output?",
    link=FORMULA,
    mixer=lambda p, s: p * (1 - p),
)
value_gradient.fault(
    "backward.value_columns_normalised",
    "You divide each column of the weights by its sum; the columns of P need not sum to 1.",
    why="A key that nobody looks at gets next to nothing back, and one that all look at gets much.",
    hint="Use the weights as they are.",
    link=FORMULA,
    mixer=lambda p, s: p / p.sum(axis=-2, keepdims=True),
)
value_gradient.fault(
    "backward.value_softmax_again",
    "You take a softmax of the weights, which are weights already.",
    why="A softmax of numbers between 0 and 1 is nearly uniform.",
    hint="Use the weights as they are.",
    link=FORMULA,
    mixer=lambda p, s: masked_softmax(p, True),
)
value_gradient.add(
    Fit(
        "backward.value_factor",
        "factor",
        "Your dV is multiplied by {found} (here {value}); it is Pᵀ dO and nothing else.",
        right=lambda dims: 1.0,
        setting=lambda value: lambda p, g: value,
        why="The scale acts on the scores. The values never met it.",
        hint="Which steps lie between the values and the output?",
        link=FORMULA,
    )
)


@value_gradient.solution
def value_gradient_solution(weights, d_output):
    return weights.swapaxes(-1, -2) @ d_output  # (..., S, d_v)


@value_gradient.solution("With the indices written out.")
def value_gradient_einsum(weights, d_output):
    return np.einsum("...ls,...lv->...sv", weights, d_output)


@value_gradient.solution(shown=False)
def value_gradient_sum_of_outer_products(weights, d_output):
    return (weights[..., :, :, None] * d_output[..., :, None, :]).sum(axis=-3)


@value_gradient.solution(shown=False)
def value_gradient_loops(weights, d_output):
    d_v = np.zeros((*weights.shape[:-2], weights.shape[-1], d_output.shape[-1]))
    for i in range(weights.shape[-2]):
        d_v += weights[..., i, :, None] * d_output[..., i, None, :]
    return d_v


@value_gradient.solution(backend="torch")
def value_gradient_torch(weights, d_output):
    return weights.transpose(-2, -1) @ d_output


@value_gradient.solution(backend="torch", shown=False)
def value_gradient_torch_einsum(weights, d_output):
    import torch

    return torch.einsum("...ls,...lv->...sv", weights, d_output)


# -- to the scores -------------------------------------------------------------------------------

scores_gradient = Exercise(
    "backward.scores_gradient",
    kind="implement",
    title="Back to the scores",
    statement="""
Write `scores_gradient(weights, d_output, v)`: the gradient $dS$ at the scores, as they enter the
softmax. First $dP$, the gradient at the weights, from `d_output` $(\\dots, L, d_v)$ and `v`
$(\\dots, S, d_v)$; then back through the softmax, whose weights are `weights` $(\\dots, L, S)$.
The result is $(\\dots, L, S)$.
""",
    link=FORMULA,
    goals={
        "meeting": "dP: every row of dO meets every value",
        "outer": "a score moves its weight",
        "average": "and takes from the others: the row's average under the weights",
        "total": "row by row",
        "share": "subtracted once",
        "factor": "and nothing else",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.softmax.softmax_vjp",
        "sdpa_course.with_numpy.softmax.softmax_jvp",
        "sdpa_course.with_torch.softmax.softmax_vjp",
        "sdpa_course.with_torch.softmax.softmax_jvp",
    ),
    hints=(
        "The output is P V, a product like any other: what comes back to P is dO Vᵀ.",
        "Each row of dS sums to 0. Does yours?",
    ),
    reason="dP = dO Vᵀ, and the Jacobian of the softmax gives P ∘ (dP - Σ P dP) row by row. A"
    " score rises if its key would improve on the average of what the query already gets.",
    question="The gradient dO is orthogonal to every difference of two values. What is dS?",
    properties=(rows_sum_to_zero("dS"), stays_within(-2, ("d_output",), "query")),
    related=True,
)


@scores_gradient.stub
def scores_gradient_stub(weights, d_output, v):
    """dS (..., L, S), of weights (..., L, S), d_output (..., L, d_v) and v (..., S, d_v)."""
    raise NotImplementedError


@scores_gradient.inputs
def _(rng, B=2, H=3, L=5, S=6, d_v=8):
    lead = (B, H) if H > 1 else ()
    scores = tokens(rng, *lead, L, S, std=1.5)
    return {
        "weights": masked_softmax(scores, True),
        "d_output": tokens(rng, *lead, L, d_v),
        "v": tokens(rng, *lead, S, d_v) + 0.5,
    }


scores_gradient.probe("one head, no batch", B=1, H=1, L=3, S=5, d_v=2)
scores_gradient.probe("batch and heads", B=2, H=3, L=5, S=6, d_v=8)
scores_gradient.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_v=5)


@scores_gradient.special("all sizes equal, where shapes protect from nothing", L=5, S=5, d_v=5)
def _():
    rng = np.random.default_rng(2)
    return {
        "weights": masked_softmax(tokens(rng, 5, 5, std=1.5), True),
        "d_output": tokens(rng, 5, 5),
        "v": tokens(rng, 5, 5) + 0.5,
    }


@scores_gradient.special("some weights are exactly 0", L=2, S=4, d_v=3)
def _():
    rng = np.random.default_rng(3)
    mask = np.array([[True, False, True, False], [False, True, False, False]])
    return {
        "weights": masked_softmax(tokens(rng, 2, 4, std=1.5), mask),
        "d_output": tokens(rng, 2, 3),
        "v": tokens(rng, 4, 3) + 0.5,
    }


@scores_gradient.model
def _(weights, d_output, v, *, meeting=swapped, factor=lambda p, g: 1.0, **softmax):
    d_weights = d_output @ meeting(v)
    return through_softmax(weights, d_weights, **softmax) * factor(weights, d_output)


add_meeting_faults(scores_gradient)
add_softmax_faults(scores_gradient)
scores_gradient.fault(
    "backward.value_all_axes",
    "`.T` reverses every axis of v, the batch and the heads too.",
    why="With two axes that is a transpose; with four the shapes no longer fit.",
    hint="Swap only the last two axes.",
    hidden="two axes",
    link=TRANSPOSE,
    meeting=lambda v: v.T,
)
scores_gradient.add(
    Fit(
        "softmax.jacobian_share",
        "share",
        "You subtract {found} times the row's sum (here {value}); once is right.",
        right=lambda dims: 1.0,
        why="Only with the factor 1 do the rows of the gradient sum to 0.",
        hint="Sum each row of your result.",
        link=FORMULA,
    ),
    Fit(
        "backward.scores_factor",
        "factor",
        "Your dS is multiplied by {found} (here {value}). The scores asked for are those that"
        " enter the softmax: no factor.",
        right=lambda dims: 1.0,
        setting=lambda value: lambda p, g: value,
        why="The scale belongs to step 2, one step further back.",
        hint="Between the softmax and the output there is no scale.",
        link=FORMULA,
    ),
)


@scores_gradient.solution
def scores_gradient_solution(weights, d_output, v):
    d_weights = d_output @ v.swapaxes(-1, -2)  # (..., L, S)
    row_sums = (weights * d_weights).sum(axis=-1, keepdims=True)  # (..., L, 1)
    return weights * (d_weights - row_sums)


@scores_gradient.solution("The row sum taken from the output, d_v terms and not S.")
def scores_gradient_from_output(weights, d_output, v):
    output = weights @ v  # (..., L, d_v)
    row_sums = (d_output * output).sum(axis=-1, keepdims=True)  # (..., L, 1)
    return weights * (d_output @ v.swapaxes(-1, -2) - row_sums)


@scores_gradient.solution("Each value measured from the output: no row sum at all.")
def scores_gradient_from_differences(weights, d_output, v):
    from_output = v[..., None, :, :] - (weights @ v)[..., :, None, :]  # (..., L, S, d_v)
    return weights * (from_output @ d_output[..., None])[..., 0]


@scores_gradient.solution(shown=False)
def scores_gradient_matrix(weights, d_output, v):
    jacobian = weights[..., :, None] * (np.eye(weights.shape[-1]) - weights[..., None, :])
    return np.einsum("...lij,...lv,...jv->...li", jacobian, d_output, v)


@scores_gradient.solution(shown=False)
def scores_gradient_loops(weights, d_output, v):
    result = np.zeros(weights.shape)
    for i in range(weights.shape[-2]):
        p, g = weights[..., i, :], (v @ d_output[..., i, :, None])[..., 0]
        result[..., i, :] = p * g - p * (p * g).sum(-1)[..., None]
    return result


@scores_gradient.solution(backend="torch")
def scores_gradient_torch(weights, d_output, v):
    d_weights = d_output @ v.transpose(-2, -1)
    return weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))


@scores_gradient.solution(backend="torch", shown=False)
def scores_gradient_torch_from_output(weights, d_output, v):
    return weights * (d_output @ v.mT - (d_output * (weights @ v)).sum(-1)[..., None])


# -- to the queries and keys ---------------------------------------------------------------------

query_and_key_gradients = Exercise(
    "backward.query_and_key_gradients",
    kind="implement",
    outputs=("d_q", "d_k"),
    title="Back to the queries and keys",
    statement="""
The scores are $S = QK^\\top/\\sqrt{d_k}$. Write `query_and_key_gradients(d_scores, q, k)`, which
returns the pair `(d_q, d_k)` from the gradient `d_scores` $(\\dots, L, S)$ at these **scaled**
scores. `q` is $(\\dots, L, d_k)$, `k` is $(\\dots, S, d_k)$; each gradient has the shape of what it
belongs to.
""",
    link=FORMULA,
    goals={
        "scale": "2 scale: the same factor as on the way forward",
        "back_scale": "2 scale: applied once",
        "scaled": "2 scale: to both gradients",
        "query_side": "1 scores: a query collects over the keys",
        "turned": "1 scores: a key collects over the queries",
        "partners": "1 scores: each gets the other",
        "returned": "d_q first, then d_k",
    },
    backends=("numpy", "torch"),
    hints=(
        "One score is scale · q·k. What is its derivative with respect to q?",
        "The shapes leave one product each. The factor they do not tell you.",
    ),
    reason="∂(q·k)/∂q = k and ∂(q·k)/∂k = q. So dQ = scale · dS K, a sum over keys, and dK ="
    " scale · dSᵀ Q, a sum over queries.",
    question="Every row of dS sums to 0. What then is the sum of the rows of dK, if all queries"
    " are the same?",
)


@query_and_key_gradients.stub
def query_and_key_gradients_stub(d_scores, q, k):
    """(d_q, d_k), of d_scores (..., L, S), q (..., L, d_k) and k (..., S, d_k)."""
    raise NotImplementedError


@query_and_key_gradients.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7):
    lead = (B, H) if H > 1 else ()
    return {
        "d_scores": tokens(rng, *lead, L, S),
        "q": tokens(rng, *lead, L, d_k, std=2),
        "k": tokens(rng, *lead, S, d_k),
    }


query_and_key_gradients.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6)
query_and_key_gradients.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7)
query_and_key_gradients.probe("as many heads as samples", B=3, H=3, L=6, S=2, d_k=5)


@query_and_key_gradients.special("as many queries as keys", L=5, S=5, d_k=3)
def _():
    rng = np.random.default_rng(4)
    return {"d_scores": tokens(rng, 5, 5), "q": tokens(rng, 5, 3, std=2), "k": tokens(rng, 5, 3)}


@query_and_key_gradients.model
def _(d_scores, q, k, *, returned=lambda d_q, d_k: (d_q, d_k), **switches):
    return returned(*to_query_and_key(d_scores, q, k, **switches))


add_scale_faults(query_and_key_gradients)
add_key_side_faults(query_and_key_gradients)
query_and_key_gradients.fault(
    "backward.returned_swapped",
    "You return (d_k, d_q); the order asked for is (d_q, d_k).",
    hint="Look at the last line.",
    link=FORMULA,
    returned=lambda d_q, d_k: (d_k, d_q),
)
query_and_key_gradients.add(
    Fit(
        "backward.scale",
        "scale",
        "Your gradients are multiplied by {found} (here {value}); the scores were multiplied by"
        " 1/√d_k (here {right}).",
        right=lambda dims: dims["d_k"] ** -0.5,
        setting=lambda value: lambda q, k, v: value,
        why="What a step multiplies forward it multiplies backward.",
        hint="Write down which number you multiply by, for the sizes of the example.",
        link=LOST_SCALE,
    )
)


@query_and_key_gradients.solution
def query_and_key_gradients_solution(d_scores, q, k):
    d_scores = d_scores * q.shape[-1] ** -0.5  # 2 scale
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q  # 1 scores


@query_and_key_gradients.solution("The scale on q and k instead: fewer numbers to multiply.")
def query_and_key_gradients_folded(d_scores, q, k):
    root = q.shape[-1] ** 0.5
    return d_scores @ (k / root), d_scores.swapaxes(-1, -2) @ (q / root)


@query_and_key_gradients.solution(shown=False)
def query_and_key_gradients_einsum(d_scores, q, k):
    scale = 1 / np.sqrt(k.shape[-1])
    d_q = np.einsum("...ls,...sd->...ld", d_scores, k) * scale
    d_k = np.einsum("...ls,...ld->...sd", d_scores, q) * scale
    return d_q, d_k


@query_and_key_gradients.solution(shown=False)
def query_and_key_gradients_loops(d_scores, q, k):
    d_q, d_k = np.zeros(q.shape), np.zeros(k.shape)
    for i in range(q.shape[-2]):
        for j in range(k.shape[-2]):
            g = d_scores[..., i, j, None] / math.sqrt(q.shape[-1])
            d_q[..., i, :] += g * k[..., j, :]
            d_k[..., j, :] += g * q[..., i, :]
    return d_q, d_k


@query_and_key_gradients.solution(backend="torch")
def query_and_key_gradients_torch(d_scores, q, k):
    d_scores = d_scores / q.shape[-1] ** 0.5
    return d_scores @ k, d_scores.transpose(-2, -1) @ q


@query_and_key_gradients.solution(backend="torch", shown=False)
def query_and_key_gradients_torch_folded(d_scores, q, k):
    scale = q.size(-1) ** -0.5
    return d_scores.matmul(k).mul(scale), d_scores.mT.matmul(q).mul(scale)


# -- the order of the lines ----------------------------------------------------------------------


def whole(rng, B, H, L, S, d_k, d_v):
    """d_output, q, k, v with or without batch and heads, and the mask and scores that fit."""
    lead = (B, H) if H > 1 else ()
    inputs = {
        "d_output": tokens(rng, *lead, L, d_v),
        "q": tokens(rng, *lead, L, d_k, std=2),
        "k": tokens(rng, *lead, S, d_k),
        "v": tokens(rng, *lead, S, d_v) + 0.5,
    }
    mask = some_mask(rng, *((B, 1) if H > 1 else ()), L, S)
    return inputs, mask


def scores_of(q, k, scale):
    return q @ k.swapaxes(-1, -2) * scale


def with_weights(inputs, mask):
    q, k = inputs["q"], inputs["k"]
    return {**inputs, "weights": masked_softmax(scores_of(q, k, q.shape[-1] ** -0.5), mask)}


def walk_back(
    d_output,
    q,
    k,
    v,
    weights,
    scores,
    *,
    meeting=swapped,
    mixer=lambda weights, scores: weights,
    lying=swapped,
    returned=lambda d_q, d_k, d_v: (d_q, d_k, d_v),
    scale=right_scale,
    back_scale=lambda scale: scale,
    scaled=(True, True),
    turned=swapped,
    query_side=lambda d_scores: d_scores,
    partners=lambda q, k: (k, q),
    **softmax,
):
    """All five steps, from weights that are known."""
    d_v = to_value(weights, scores, d_output, mixer=mixer, lying=lying)
    d_scores = through_softmax(weights, d_output @ meeting(v), **softmax)
    d_q, d_k = to_query_and_key(
        d_scores,
        q,
        k,
        v,
        scale=scale,
        back_scale=back_scale,
        scaled=scaled,
        turned=turned,
        query_side=query_side,
        partners=partners,
    )
    return returned(d_q, d_k, d_v)


WHOLE_GOALS = {
    "lying": "5 mix: dV collects over the queries",
    "mixer": "5 mix: dV takes the weights",
    "meeting": "5 mix: dP, every row of dO meets every value",
    "outer": "4 softmax: the whole Jacobian",
    "share": "4 softmax: less the row sum",
    "total": "4 softmax: row by row",
    "back_scale": "2 scale: once, in the same direction",
    "scaled": "2 scale: on both gradients",
    "query_side": "1 scores: a query collects over the keys",
    "turned": "1 scores: a key collects over the queries",
    "partners": "1 scores: each gets the other",
}

backward_order = Exercise(
    "backward.backward_order",
    kind="parsons",
    outputs=("d_q", "d_k", "d_v"),
    title="The way back, in order",
    statement="""
Put lines in order to make `backward_order(d_output, q, k, v, weights)`, which returns
`(d_q, d_k, d_v)` for attention with scale $1/\\sqrt{d_k}$, from the stored weights. Not every line
is needed. Set `backward_order` to the letters, as in `"AB"`. Where two lines may stand in either
order, either is accepted.
""",
    link=FORMULA,
    header="def backward_order(d_output, q, k, v, weights):",
    lines={
        "A": "d_k = d_scores.swapaxes(-1, -2) @ q",
        "B": "d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))",
        "C": "return d_q, d_k, d_v",
        "D": "d_weights = d_output @ v.swapaxes(-1, -2)",
        "E": "d_scores = weights * (1 - weights) * d_weights",
        "F": "d_q = d_scores @ k",
        "G": "d_scores = d_scores * q.shape[-1] ** -0.5",
        "H": "d_v = weights.swapaxes(-1, -2) @ d_output",
        "I": "d_scores = weights * d_weights",
        "J": "d_v = weights @ d_output",
    },
    goals=WHOLE_GOALS,
    hints=(
        "Walk back: 5 mix, 4 softmax, 2 scale, 1 scores. Which line belongs to which step?",
        "A line can stand only below the lines that make what it uses.",
    ),
    reason="Each step needs the gradient of what came out of it. Mix gives dV and dP, the softmax"
    " dS, the scale its factor, the scores dQ and dK. dV needs nothing but P and dO, so it may"
    " stand anywhere.",
    question="Which arrays of the forward pass does this function need, and which not?",
    related=True,
)


@backward_order.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=8):
    return with_weights(*whole(rng, B, H, L, S, d_k, d_v))


backward_order.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6, d_v=2)
backward_order.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7, d_v=8)


@backward_order.special("all sizes equal", L=5, S=5, d_k=5, d_v=5)
def _():
    return with_weights(*whole(np.random.default_rng(5), 1, 1, 5, 5, 5, 5))


@backward_order.model
def _(d_output, q, k, v, weights, **switches):
    return walk_back(d_output, q, k, v, weights, None, **switches)


add_softmax_faults(backward_order, few=True)
backward_order.faults = [
    fault
    for fault in backward_order.faults
    if fault.id in ("softmax.jacobian_diagonal", "softmax.jacobian_row_term_missing")
]
add_scale_faults(backward_order)
backward_order.faults = [
    fault for fault in backward_order.faults if fault.id != "backward.scale_inverted"
]
add_value_faults(backward_order)
backward_order.faults = [
    fault
    for fault in backward_order.faults
    if fault.id not in ("backward.weights_reshaped", "backward.weights_all_axes")
]
backward_order.solutions += [
    Solution("HDBGFAC", "5 mix, 4 softmax, 2 scale, 1 scores."),
    Solution("DBGAFHC", "dV may stand anywhere before the end."),
]


# -- mend a backward pass ------------------------------------------------------------------------

THE_BACKWARD = (
    "sdpa_course.with_numpy.backward.attention_backward",
    "sdpa_course.with_numpy.backward.attention_backward_from_lse",
    "sdpa_course.with_torch.backward.attention_backward",
    "sdpa_course.with_torch.backward.attention_backward_from_lse",
    "torch.autograd.grad",
    "torch.autograd.backward",
)

mend_backward = Exercise(
    "backward.mend_backward",
    kind="fix",
    outputs=("d_q", "d_k", "d_v"),
    title="Mend a backward pass",
    statement="""
`mend_backward(d_output, q, k, v, weights)` should return `(d_q, d_k, d_v)` for attention with
scale $1/\\sqrt{d_k}$, from its stored weights. The losses of models trained with it do fall,
slowly. Against finite differences, `d_v` is right, and `d_q` and `d_k` are not. There are **two**
mistakes. Repair it.

`d_output` is $(\\dots, L, d_v)$, `q` $(\\dots, L, d_k)$, `k` $(\\dots, S, d_k)$, `v`
$(\\dots, S, d_v)$, `weights` $(\\dots, L, S)$.
""",
    link=NO_ROW_SUM,
    goals=WHOLE_GOALS,
    backends=("numpy", "torch"),
    built_from=THE_BACKWARD,
    hints=(
        "What do the rows of `d_scores` sum to, and what should they sum to?",
        "Compare d_q and d_k: which factor does one have and the other not?",
    ),
    reason="Without the row sum the gradient at the scores does not know that weights share one"
    " unit; and the scale multiplies the product of q and k, so both gradients carry it.",
    question="Why does the loss still fall?",
    related=True,
)


@mend_backward.stub
def mend_backward_stub(d_output, q, k, v, weights):
    """(d_q, d_k, d_v), from the gradient of the output and the stored weights."""
    d_v = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output @ v.swapaxes(-1, -2)
    d_scores = weights * d_weights
    d_q = d_scores @ k * q.shape[-1] ** -0.5
    d_k = d_scores.swapaxes(-1, -2) @ q
    return d_q, d_k, d_v


@mend_backward.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=8):
    return with_weights(*whole(rng, B, H, L, S, d_k, d_v))


mend_backward.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6, d_v=2)
mend_backward.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7, d_v=8)


@mend_backward.special("all sizes equal, where shapes protect from nothing", L=5, S=5, d_k=5, d_v=5)
def _():
    return with_weights(*whole(np.random.default_rng(5), 1, 1, 5, 5, 5, 5))


@mend_backward.model
def _(d_output, q, k, v, weights, **switches):
    return walk_back(d_output, q, k, v, weights, None, **switches)


add_softmax_faults(mend_backward, few=True)
add_scale_faults(mend_backward)
add_key_side_faults(mend_backward)
join_all_axes_faults(mend_backward)


@mend_backward.solution
def mend_backward_solution(d_output, q, k, v, weights):
    d_v = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output @ v.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True))
    d_scores = d_scores * q.shape[-1] ** -0.5
    d_q = d_scores @ k
    d_k = d_scores.swapaxes(-1, -2) @ q
    return d_q, d_k, d_v


@mend_backward.solution("The row sum taken from the output.")
def mend_backward_from_output(d_output, q, k, v, weights):
    scale = q.shape[-1] ** -0.5
    row_sums = (d_output * (weights @ v)).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_output @ v.swapaxes(-1, -2) - row_sums)
    d_k = d_scores.swapaxes(-1, -2) @ (q * scale)
    return d_scores @ (k * scale), d_k, weights.swapaxes(-1, -2) @ d_output


@mend_backward.solution(backend="torch")
def mend_backward_torch(d_output, q, k, v, weights):
    d_weights = d_output @ v.mT
    d_scores = weights * (d_weights - (weights * d_weights).sum(dim=-1, keepdim=True))
    d_scores = d_scores / q.shape[-1] ** 0.5
    return d_scores @ k, d_scores.mT @ q, weights.mT @ d_output


@mend_backward.solution(backend="torch", shown=False)
def mend_backward_torch_package(d_output, q, k, v, weights):
    from sdpa_course.with_torch.softmax import softmax_vjp

    d_scores = softmax_vjp(weights, d_output @ v.transpose(-1, -2)) * q.size(-1) ** -0.5
    d_k, d_v = d_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ d_output
    return d_scores @ k, d_k, d_v


# -- behind a mask -------------------------------------------------------------------------------

gradient_behind_a_mask = Exercise(
    "backward.gradient_behind_a_mask",
    kind="quiz",
    title="What reaches a masked key?",
    statement="""
A key and its value are masked for **every** query: padding at the end of a sequence, say. The
scores there are set to $-\\infty$. What arrives at this key and this value on the way back?
""",
    link=HIDDEN,
)
gradient_behind_a_mask.option(
    "A",
    "A little at the key, through the denominator of the softmax, and nothing at the value.",
    "The denominator is the sum of exponentials, and this one is e^-∞ = 0: it adds nothing, and"
    " neither does its derivative.",
)
gradient_behind_a_mask.option(
    "B",
    "Exactly 0 at both.",
    "Yes. The weight is 0, so the value gets 0 · dO, and P ∘ (dP - row sum) is 0 at the score: not"
    " small, but 0. So padding needs no mask of its own on the way back.",
    right=True,
)
gradient_behind_a_mask.option(
    "C",
    "Nothing at the key, but something at the value, as the mask acts on scores only.",
    "The value enters the output with its weight, and the weight is 0. What comes back to it is"
    " that weight times dO.",
)
gradient_behind_a_mask.option(
    "D",
    "NaN at both, as -∞ has no derivative.",
    "The -∞ is put in place of the score, so nothing is differentiated there; and e^-∞ is an"
    " ordinary 0. NaN comes from rows in which *everything* is masked, if nobody takes care.",
)


# -- the whole -----------------------------------------------------------------------------------

attention_gradients = Exercise(
    "backward.attention_gradients",
    kind="implement",
    outputs=("d_q", "d_k", "d_v"),
    title="The whole backward pass",
    statement="""
Write `attention_gradients(d_output, q, k, v, mask)`, which returns `(d_q, d_k, d_v)`: the
gradients of $\\mathrm{softmax}(QK^\\top/\\sqrt{d_k})\\,V$ with the keys hidden where `mask` is
False (**True = may attend**), given the gradient `d_output` $(\\dots, L, d_v)$ of the output.
Nothing of the forward pass is stored, so begin with the weights.

`q` is $(\\dots, L, d_k)$, `k` $(\\dots, S, d_k)$, `v` $(\\dots, S, d_v)$, and `mask` is Boolean,
$(L, S)$ or $(B, 1, L, S)$. A query that may attend to nothing has weights of 0, and sends back 0.
`softmax` and `softmax_vjp` of the package may be used, autograd not.
""",
    link=f"{CHAPTER}#the-code",
    goals={
        "root": "the scale is 1/√d_k",
        "forward_scale": "the weights are those of the forward pass: scaled",
        "hide": "and masked",
        "empty": "a query with nothing to attend to sends back 0",
        **WHOLE_GOALS,
        "returned": "d_q, d_k, d_v, in this order",
    },
    backends=("numpy", "torch"),
    built_from=THE_BACKWARD,
    hints=(
        "Write the forward pass down, step by step; then a line for each step, from the last.",
        "Check one of the three against `finite_differences` from `sdpa_course.with_numpy`.",
    ),
    reason="The mask needs no line of its own on the way back: where it hides a key the weight is"
    " 0, and P ∘ (…) is 0 there.",
    question="Which line would you change for a float mask that is added to the scores?",
    next="What if the weights are too many to be stored, or to be written down at all?",
    properties=(
        rows_sum_to_zero("d_k", part=1, axis=-2),
        stays_within(-2, ("q",), "query"),
    ),
)


@attention_gradients.stub
def attention_gradients_stub(d_output, q, k, v, mask):
    """(d_q, d_k, d_v) of attention with a Boolean mask, from the gradient of its output."""
    raise NotImplementedError


@attention_gradients.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=8):
    inputs, mask = whole(rng, B, H, L, S, d_k, d_v)
    return {**inputs, "mask": mask}


attention_gradients.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6, d_v=2)
attention_gradients.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7, d_v=8)


@attention_gradients.special(
    "all sizes equal, where shapes protect from nothing", L=5, S=5, d_k=5, d_v=5
)
def _():
    inputs, mask = whole(np.random.default_rng(5), 1, 1, 5, 5, 5, 5)
    return {**inputs, "mask": mask}


@attention_gradients.special("a query with nothing to attend to", L=3, S=4, d_k=5, d_v=2)
def _():
    inputs, mask = whole(np.random.default_rng(6), 1, 1, 3, 4, 5, 2)
    mask[1] = False
    return {**inputs, "mask": mask}


@attention_gradients.model
def _(
    d_output,
    q,
    k,
    v,
    mask,
    *,
    root=right_scale,
    forward_scale=lambda scale: scale,
    hide=lambda mask: mask,
    empty=lambda S: 0.0,
    **switches,
):
    scores = scores_of(q, k, forward_scale(root(q, k, v)))
    weights = masked_softmax(scores, hide(mask), empty)
    return walk_back(d_output, q, k, v, weights, scores, scale=root, **switches)


add_softmax_faults(attention_gradients, few=True)
add_scale_faults(attention_gradients)
add_key_side_faults(attention_gradients)
add_value_faults(attention_gradients)
add_meeting_faults(attention_gradients)
join_all_axes_faults(attention_gradients)
join_reshapes(attention_gradients)


def add_recomputation_faults(exercise: Exercise) -> None:
    """Mistakes of the forward pass that is done again."""
    exercise.fault(
        "scale.forgotten",
        "There is no scale, neither in the weights nor in the gradients.",
        why="These are the gradients of softmax(QKᵀ)V, another function.",
        hint="Compute the output from your weights and compare.",
        hidden="d_k = 1",
        cite="huggingface/blog PR#2893",
        link=LOST_SCALE,
        root=lambda q, k, v: 1.0,
    )
    exercise.fault(
        "scale.sqrt_d_v",
        "You scale by 1/√d_v; the scores came from d_k numbers.",
        why="The values take no part in the scores. Where d_v = d_k nobody notices.",
        hint="Which of q, k and v does a score depend on?",
        hidden="d_v = d_k",
        cite="juho-lee/set_transformer#18",
        link="02-scaling#the-wrong-root",
        root=lambda q, k, v: v.shape[-1] ** -0.5,
    )
    exercise.fault(
        "backward.recomputed_unscaled",
        "The weights are computed again without the scale; the gradients have it.",
        why="They are then not the weights of the forward pass, and the gradients belong to"
        " another function.",
        hint="Compute the output from your weights and compare.",
        hidden="d_k = 1",
        link=LOST_SCALE,
        forward_scale=lambda scale: 1.0,
    )
    exercise.fault(
        "mask.ignored",
        "The weights are computed again without the mask.",
        why="Hidden keys then get weights and gradients, and visible ones get less than they"
        " should.",
        hint="What is the gradient at a key that no query may see?",
        hidden="a mask that hides nothing",
        link=MASK_FORGOTTEN,
        hide=np.ones_like,
    )
    exercise.fault(
        "mask.inverted",
        "Your mask is the wrong way round: True means *may attend*.",
        why="Libraries differ in this, so it has to be read each time.",
        hint="Which keys get gradients, the visible or the hidden ones?",
        hidden="never, unless the mask is its own opposite",
        cite="rasbt/LLMs-from-scratch#1061; lucidrains/x-transformers#164",
        link=MASK_FORGOTTEN,
        hide=np.logical_not,
    )


add_recomputation_faults(attention_gradients)
attention_gradients.fault(
    "mask.empty_row_nan",
    "A query with nothing to attend to gives NaN, and takes the gradients of every key with it.",
    why="Its softmax is 0/0. On the way forward the NaN stays in one row; on the way back dK and"
    " dV sum over the rows.",
    hint="What is subtracted in a row of -∞, and what is it divided by?",
    hidden="no such row",
    cite="pytorch/pytorch#41508",
    link=NOTHING,
    empty=lambda S: np.nan,
)
attention_gradients.fault(
    "mask.empty_row_mean",
    "A query with nothing to attend to gets uniform weights, and sends gradients to hidden keys.",
    why="A large finite number in place of -∞ does that: all scores of the row are then equal."
    " The convention here is zeros.",
    hint="Which weights does your softmax give to a row in which all scores are the same?",
    hidden="no such row",
    link=NOTHING,
    empty=lambda S: 1 / S,
)
attention_gradients.fault(
    "backward.value_from_scores",
    "dV is made from the scores; it takes the weights, after the softmax.",
    why="The output is P V. The scores are two steps further back.",
    hint="What was multiplied with V?",
    link=FROM_SCORES,
    mixer=lambda weights, scores: scores,
)
attention_gradients.fault(
    "backward.value_returned_first",
    "You return (d_v, d_k, d_q), in the order in which they are found; asked for is (d_q, d_k,"
    " d_v).",
    hint="Look at the last line.",
    link=FORMULA,
    returned=lambda d_q, d_k, d_v: (d_v, d_k, d_q),
)
attention_gradients.add(
    Fit(
        "scale.factor",
        "root",
        "Your scores, forward and backward, are multiplied by {found} (here {value}); the formula"
        " multiplies them by 1/√d_k (here {right}).",
        right=lambda dims: dims["d_k"] ** -0.5,
        setting=lambda value: lambda q, k, v: value,
        why="One factor explains all your numbers, and it is not the one in the formula.",
        hint="Write down which number you multiply by, for the sizes of the example.",
        link="02-scaling#the-wrong-root",
    )
)


@attention_gradients.solution
def attention_gradients_solution(d_output, q, k, v, mask):
    from sdpa_course.with_numpy import softmax

    scale = q.shape[-1] ** -0.5
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = softmax(scores)  # (..., L, S); zeros where a row has nothing to attend to

    d_v = weights.swapaxes(-1, -2) @ d_output  # 5 mix (..., S, d_v)
    d_weights = d_output @ v.swapaxes(-1, -2)  # (..., L, S)
    row_sums = (weights * d_weights).sum(axis=-1, keepdims=True)  # 4 softmax (..., L, 1)
    d_scores = weights * (d_weights - row_sums) * scale  # 3 mask, by the zeros; 2 scale
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q, d_v  # 1 scores


@attention_gradients.solution("The mask as a factor on exponentials, and the row sum from O.")
def attention_gradients_by_factor(d_output, q, k, v, mask):
    q = q * q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
    weights = exps / np.maximum(exps.sum(axis=-1, keepdims=True), 1e-300)
    row_sums = (d_output * (weights @ v)).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_output @ v.swapaxes(-1, -2) - row_sums)
    d_q = d_scores @ k * q.shape[-1] ** -0.5
    return d_q, d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_output


@attention_gradients.solution(shown=False)
def attention_gradients_both_sides(d_output, q, k, v, mask):
    from sdpa_course.with_numpy import softmax, softmax_vjp

    root = q.shape[-1] ** -0.25
    q, k = q * root, k * root
    p = softmax(np.einsum("...ld,...sd->...ls", q, k) + np.where(mask, 0.0, -np.inf))
    d_s = softmax_vjp(p, np.einsum("...lv,...sv->...ls", d_output, v))
    d_q = np.einsum("...ls,...sd->...ld", d_s, k) * root
    d_k = np.einsum("...ls,...ld->...sd", d_s, q) * root
    return d_q, d_k, np.einsum("...ls,...lv->...sv", p, d_output)


@attention_gradients.solution(shown=False)
def attention_gradients_by_query(d_output, q, k, v, mask):
    scale, mask = q.shape[-1] ** -0.5, np.broadcast_to(mask, q.shape[:-1] + k.shape[-2:-1])
    d_q, d_k, d_v = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for i in np.ndindex(q.shape[:-1]):
        seen = np.flatnonzero(mask[i])
        if not seen.size:
            continue
        keys, values = k[i[:-1]][seen], v[i[:-1]][seen]
        e = np.exp(keys @ q[i] * scale)
        p = e / e.sum()
        d_p = values @ d_output[i]
        d_s = p * (d_p - p @ d_p) * scale
        d_q[i] = d_s @ keys
        d_k[i[:-1]][seen] += d_s[:, None] * q[i]
        d_v[i[:-1]][seen] += p[:, None] * d_output[i]
    return d_q, d_k, d_v


@attention_gradients.solution(backend="torch")
def attention_gradients_torch(d_output, q, k, v, mask):
    scale = q.shape[-1] ** -0.5
    scores = (q @ k.transpose(-2, -1) * scale).masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num()
    d_weights = d_output @ v.transpose(-2, -1)
    row_sums = (weights * d_weights).sum(dim=-1, keepdim=True)
    d_scores = weights * (d_weights - row_sums) * scale
    return d_scores @ k, d_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ d_output


@attention_gradients.solution(backend="torch", shown=False)
def attention_gradients_torch_package(d_output, q, k, v, mask):
    import torch

    from sdpa_course.with_torch.softmax import softmax, softmax_vjp

    scale = q.size(-1) ** -0.5
    weights = softmax(torch.where(mask, q @ k.mT * scale, -torch.inf))
    d_scores = softmax_vjp(weights, d_output @ v.mT) * scale
    return d_scores @ k, d_scores.mT @ q, weights.mT @ d_output


# -- catch a missing row sum ---------------------------------------------------------------------

expose_missing_row_sum = Exercise(
    "backward.expose_missing_row_sum",
    kind="catch",
    title="Catch a missing row sum",
    statement="""
Somebody's function takes the gradient back to the scores as $P\\circ dP$, with $dP = dO\\,V^\\top$.
The right one subtracts each row's sum first: $P\\circ(dP - \\mathrm{rowsum}(P\\circ dP))$. On some
inputs the two agree, and a test that uses one of those proves nothing.

Write `expose_missing_row_sum()`, which returns `(weights, d_output, v)`, three 2-D arrays: weights
$(L, S)$ whose rows are positive and sum to 1, `d_output` $(L, d_v)$ and `v` $(S, d_v)$, on which
that function gives a wrong answer.
""",
    link=NO_ROW_SUM,
    hints=(
        "The row sum is also the product of a row of dO with the same row of the output.",
        "Write an output that does not stand at right angles to its gradient.",
    ),
    reason="What is left out is rowsum(P ∘ dP) = dO_i · O_i. It is 0 where the gradient stands at"
    " right angles to the output, and for any other input the mistake shows.",
    question="If a LayerNorm followed directly, dO would always stand at right angles to O. What"
    " does that say about finding this mistake by looking at a training curve?",
)


def proper_weights(weights):
    weights = np.asarray(weights, dtype=float)
    return bool((weights >= 0).all() and np.allclose(weights.sum(-1), 1))


@expose_missing_row_sum.inputs
def _(rng, L=2, S=3, d_v=5):
    weights = masked_softmax(tokens(rng, L, S, std=1.5), True)
    return {"weights": weights, "d_output": tokens(rng, L, d_v), "v": tokens(rng, S, d_v)}


@expose_missing_row_sum.model
def _(weights, d_output, v):
    return through_softmax(weights, d_output @ swapped(v))


@expose_missing_row_sum.black_box
def _(weights, d_output, v):
    return weights * (d_output @ swapped(v))


@expose_missing_row_sum.program(
    "catch.no_weights",
    "Your weights are no weights: each row has to be non-negative and to sum to 1.",
    why="Only for weights that sum to 1 is the right function the derivative of a softmax.",
    hint="np.full((L, S), 1 / S) would do.",
    link=NO_ROW_SUM,
    when=lambda weights, d_output, v: not proper_weights(weights),
)
def _():
    return np.ones((2, 3)), np.ones((2, 4)), np.ones((3, 4))


@expose_missing_row_sum.program(
    "catch.nothing_comes_back",
    "dP is 0 everywhere on your input, so there is nothing to be wrong about.",
    why="dP = dO Vᵀ. With a gradient or values of 0, or at right angles, both functions return 0.",
    hint="Give d_output and v numbers whose products do not cancel.",
    link=NO_ROW_SUM,
    when=lambda weights, d_output, v: (
        proper_weights(weights) and np.allclose(d_output @ swapped(v), 0)
    ),
)
def _():
    return np.full((2, 3), 1 / 3), np.zeros((2, 4)), np.ones((3, 4))


@expose_missing_row_sum.program(
    "catch.orthogonal_to_output",
    "In every row, dO·O = 0 on your input: the row sum that is missing is 0.",
    why="rowsum(P ∘ dP) = dO_i · O_i. Values that average to 0 under the weights hide the mistake.",
    hint="Print weights @ v, and multiply it with d_output.",
    link=ROW_SUM,
    when=lambda weights, d_output, v: (
        proper_weights(weights)
        and not np.allclose(d_output @ swapped(v), 0)
        and np.allclose(((weights @ v) * d_output).sum(-1), 0)
    ),
)
def _():
    return np.full((1, 2), 0.5), np.ones((1, 1)), np.array([[1.0], [-1.0]])


@expose_missing_row_sum.solution
def expose_missing_row_sum_solution():
    weights = np.full((2, 3), 1 / 3)
    return weights, np.ones((2, 4)), np.ones((3, 4))  # all values equal: dS must be 0


@expose_missing_row_sum.solution
def expose_missing_row_sum_random():
    rng = np.random.default_rng(0)
    weights = rng.random((2, 3))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights, rng.normal(size=(2, 4)), rng.normal(size=(3, 4))


# -- the row sums from the output ----------------------------------------------------------------

softmax_row_sums = Exercise(
    "backward.softmax_row_sums",
    kind="implement",
    title="The row sums, without the weights",
    statement="""
The way back through the softmax needs one number for each query, $D_i = \\sum_j P_{ij}\\,dP_{ij}$.
A fast kernel has neither $P$ nor $dP$ at hand when it needs them. It has the output $O = PV$ and
its gradient.

Write `softmax_row_sums(d_output, output)`: the same numbers, from `d_output` and `output`, both
$(\\dots, L, d_v)$. The result is $(\\dots, L, 1)$, so that it can be subtracted from $(\\dots, L,
S)$.
""",
    link=ROW_SUM,
    goals={
        "product": "the output meets its gradient",
        "total": "summed over d_v, one number for each query",
        "factor": "and nothing else",
    },
    backends=("numpy", "torch"),
    hints=(
        "Write dP_ij = Σ_c dO_ic V_jc into the sum, and exchange the two sums.",
        "What is Σ_j P_ij V_jc?",
    ),
    reason="Σ_j P_ij Σ_c dO_ic V_jc = Σ_c dO_ic Σ_j P_ij V_jc = Σ_c dO_ic O_ic. It takes d_v terms"
    " for each query and not S, and no (L, S) array at all.",
    question="With dropout on the weights, is O still the right thing to take?",
    properties=(stays_within(-2, ("d_output",), "query"),),
)


@softmax_row_sums.stub
def softmax_row_sums_stub(d_output, output):
    """rowsum(P ∘ dP) as (..., L, 1), from d_output and output, both (..., L, d_v)."""
    raise NotImplementedError


@softmax_row_sums.inputs
def _(rng, B=2, H=3, L=5, d_v=8):
    lead = (B, H) if H > 1 else ()
    return {"d_output": tokens(rng, *lead, L, d_v), "output": tokens(rng, *lead, L, d_v) + 0.5}


softmax_row_sums.probe("one head, no batch", B=1, H=1, L=3, d_v=5)
softmax_row_sums.probe("batch and heads", B=2, H=3, L=5, d_v=8)
softmax_row_sums.probe("as many heads as samples", B=3, H=3, L=6, d_v=2)


@softmax_row_sums.model
def _(
    d_output,
    output,
    *,
    product=lambda d_output, output: d_output * output,
    total=row_sum,
    factor=lambda output: 1.0,
):
    return total(product(d_output, output)) * factor(output)


DELTA = "One number for each query is asked for, (…, L, 1)."
for id, says, why, hint, total in (
    (
        "backward.delta_over_queries",
        "Your sum runs over axis -2, the queries. " + DELTA,
        "Queries know nothing of each other on the way back, as on the way forward.",
        "Which axis should be left with size 1?",
        lambda t: t.sum(axis=-2, keepdims=True),
    ),
    (
        "backward.delta_not_kept",
        "Your sum loses its axis: (…, L). " + DELTA,
        "Beside (…, L, S) it would be lined up with the keys.",
        "A sum can keep its axis, with size 1.",
        lambda t: t.sum(axis=-1),
    ),
    (
        "backward.delta_over_everything",
        "Your sum runs over the whole array. " + DELTA,
        "Queries know nothing of each other on the way back, as on the way forward.",
        "Give the sum an axis, and keep it.",
        lambda t: t.sum(),
    ),
    (
        "backward.delta_not_summed",
        "You multiply and do not sum. " + DELTA,
        "dP_ij is a sum over d_v already, and so is what becomes of its average.",
        "Which axis has to go?",
        lambda t: t,
    ),
):
    softmax_row_sums.fault(id, says, why=why, hint=hint, link=WRONG_AXIS, total=total)
softmax_row_sums.fault(
    "backward.delta_mean",
    "You take the mean over d_v; it is a sum.",
    why="dP = dO Vᵀ sums over d_v and does not divide.",
    hint="Compare with rowsum(P ∘ dP) on an example.",
    hidden="d_v = 1",
    link=ROW_SUM,
    factor=lambda output: 1 / output.shape[-1],
)
softmax_row_sums.fault(
    "backward.delta_of_output",
    "You multiply the output with itself; its gradient belongs there.",
    why="D is linear in dO: twice the gradient, twice the sum.",
    hint="Where is d_output in your line?",
    link=ROW_SUM,
    product=lambda d_output, output: output * output,
)
softmax_row_sums.fault(
    "backward.delta_of_gradient",
    "You multiply the gradient with itself; the output belongs there.",
    why="D is linear in dO: twice the gradient, twice the sum.",
    hint="Where is output in your line?",
    link=ROW_SUM,
    product=lambda d_output, output: d_output * d_output,
)
softmax_row_sums.fault(
    "backward.delta_without_output",
    "You sum the gradient alone; it has to be multiplied with the output.",
    why="That would be right only if every value were a row of ones.",
    hint="Where is output in your line?",
    link=ROW_SUM,
    product=lambda d_output, output: d_output,
)
softmax_row_sums.add(
    Fit(
        "backward.delta_factor",
        "factor",
        "Your sums are multiplied by {found} (here {value}); no factor belongs there.",
        right=lambda dims: 1.0,
        setting=lambda value: lambda output: value,
        why="The scale comes in one step later.",
        hint="Compare with rowsum(P ∘ dP) on an example.",
        link=ROW_SUM,
    )
)


@softmax_row_sums.solution
def softmax_row_sums_solution(d_output, output):
    return (d_output * output).sum(axis=-1, keepdims=True)  # (..., L, 1)


@softmax_row_sums.solution("Row by column, for each query.")
def softmax_row_sums_matmul(d_output, output):
    return (d_output[..., None, :] @ output[..., :, None])[..., 0]


@softmax_row_sums.solution(shown=False)
def softmax_row_sums_einsum(d_output, output):
    return np.einsum("...c,...c->...", d_output, output)[..., None]


@softmax_row_sums.solution(backend="torch")
def softmax_row_sums_torch(d_output, output):
    return (d_output * output).sum(dim=-1, keepdim=True)


@softmax_row_sums.solution(backend="torch", shown=False)
def softmax_row_sums_torch_einsum(d_output, output):
    import torch

    return torch.einsum("...c,...c->...", d_output, output).unsqueeze(-1)


# -- from log-sum-exp ----------------------------------------------------------------------------

gradients_from_lse = Exercise(
    "backward.gradients_from_lse",
    kind="implement",
    outputs=("d_q", "d_k", "d_v"),
    title="Backward from log-sum-exp",
    statement="""
A fast forward pass keeps no weights: only the output $(\\dots, L, d_v)$ and the log-sum-exp `lse`
$(\\dots, L)$ of each row of scaled, masked scores. Write
`gradients_from_lse(d_output, q, k, v, output, lse, mask)`, which returns `(d_q, d_k, d_v)`.

Compute the weights again from the scores and `lse`, with no maximum and no sum over the keys.
`mask` is Boolean, $(L, S)$ or $(B, 1, L, S)$, **True = may attend**. A query that may attend to
nothing has `lse` $= -\\infty$ and an output of 0; it sends back 0.
""",
    link=FROM_LSE,
    goals={
        "root": "the scale is 1/√d_k",
        "forward_scale": "the scores are those of the forward pass: scaled",
        "hide": "and masked",
        "weigh": "weights: exp(scores - lse)",
        "empty": "a query with nothing to attend to sends back 0",
        "delta": "4 softmax: the row sum, from the output",
        **{name: goal for name, goal in WHOLE_GOALS.items() if name not in ("total", "share")},
    },
    backends=("numpy", "torch"),
    built_from=THE_BACKWARD,
    hints=(
        "ln P_ij = S_ij - lse_i. So P is one exponential, with lse lined up with the rows.",
        "Where `lse` is -∞ the difference is -∞ - (-∞). Let the mask have the last word.",
    ),
    reason="The log-sum-exp is maximum and sum in one number, so one exponential gives the weights"
    " back, exactly; and rowsum(P ∘ dP) is rowsum(dO ∘ O). Kept for each query: d_v + 1 numbers"
    " and not S.",
    question="Each tile of P is used for dV, dP, dQ and dK. In which order of loops would you have"
    " to add up results of several tiles?",
    next="Chapter 12 computes output and lse tile by tile, chapter 13 both directions on a GPU.",
    related=True,
)


@gradients_from_lse.stub
def gradients_from_lse_stub(d_output, q, k, v, output, lse, mask):
    """(d_q, d_k, d_v), from the output (..., L, d_v) and lse (..., L) of the forward pass."""
    raise NotImplementedError


def with_lse(inputs, mask):
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    scores = np.where(mask, scores_of(q, k, q.shape[-1] ** -0.5), -np.inf)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(axis=-1))
    output = masked_softmax(scores, mask) @ v
    return {**inputs, "output": output, "lse": lse, "mask": mask}


@gradients_from_lse.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=8):
    return with_lse(*whole(rng, B, H, L, S, d_k, d_v))


gradients_from_lse.probe("one head, no batch", B=1, H=1, L=3, S=5, d_k=6, d_v=2)
gradients_from_lse.probe("batch and heads", B=2, H=3, L=5, S=6, d_k=7, d_v=8)


@gradients_from_lse.special(
    "all sizes equal, where shapes protect from nothing", L=5, S=5, d_k=5, d_v=5
)
def _():
    return with_lse(*whole(np.random.default_rng(5), 1, 1, 5, 5, 5, 5))


@gradients_from_lse.special("a query with nothing to attend to", L=3, S=4, d_k=5, d_v=2)
def _():
    inputs, mask = whole(np.random.default_rng(6), 1, 1, 3, 4, 5, 2)
    mask[1] = False
    return with_lse(inputs, mask)


def weigh_right(scores, lse):
    return np.exp(scores - lse[..., None])


@gradients_from_lse.model
def _(
    d_output,
    q,
    k,
    v,
    output,
    lse,
    mask,
    *,
    root=right_scale,
    forward_scale=lambda scale: scale,
    hide=lambda mask: mask,
    weigh=weigh_right,
    empty=lambda S: 0.0,
    delta=lambda d_output, output: row_sum(d_output * output),
    **switches,
):
    scores = scores_of(q, k, forward_scale(root(q, k, v)))
    with np.errstate(all="ignore"):
        weights = np.where(hide(mask), weigh(scores, lse), 0.0)
        nothing = (lse == -np.inf)[..., None]
        weights = np.where(nothing & ~hide(mask), empty(scores.shape[-1]), weights)
    D = delta(d_output, output)
    return walk_back(
        d_output, q, k, v, weights, scores, scale=root, average=lambda p, g, total: D, **switches
    )


add_softmax_faults(gradients_from_lse, few=True)
gradients_from_lse.faults = [
    fault
    for fault in gradients_from_lse.faults
    if not fault.switches.keys() & {"total", "share", "average"}
]
add_scale_faults(gradients_from_lse)
add_key_side_faults(gradients_from_lse)
add_value_faults(gradients_from_lse)
add_meeting_faults(gradients_from_lse)
join_all_axes_faults(gradients_from_lse)
join_reshapes(gradients_from_lse)
add_recomputation_faults(gradients_from_lse)
for id, says, why, hint, link, hidden, delta in (
    (
        "softmax.jacobian_row_term_missing",
        "The row sum is missing: you return the gradients of P ∘ dP.",
        "The weights of a row share one unit. What one key gains the others lose.",
        "What is `output` for?",
        NO_ROW_SUM,
        "every output row orthogonal to its gradient",
        lambda g, o: 0.0,
    ),
    (
        "softmax.jacobian_row_term_added",
        "You add the row sum; it has to be subtracted.",
        "The Jacobian is diag(P) minus P Pᵀ.",
        "Sum each row of dS. It should be 0.",
        FORMULA,
        "",
        lambda g, o: -row_sum(g * o),
    ),
    (
        "backward.delta_over_queries",
        "Your row sum runs over axis -2, the queries; it runs over d_v, one number for each query.",
        "Where the sizes happen to fit, NumPy lines the numbers up with the keys.",
        "The sum should have the shape (…, L, 1).",
        WRONG_AXIS,
        "an error where S ≠ d_v, silent where S = d_v",
        lambda g, o: (g * o).sum(axis=-2, keepdims=True),
    ),
    (
        "backward.delta_not_kept",
        "Your row sum loses its axis, (…, L), and is lined up with the keys.",
        "NumPy lines shapes up from the right: (L,) beside (L, S) is taken for a row.",
        "The sum should have the shape (…, L, 1).",
        WRONG_AXIS,
        "an error where L ≠ S, silent where L = S",
        lambda g, o: (g * o).sum(axis=-1),
    ),
    (
        "backward.delta_over_everything",
        "Your row sum runs over the whole array; each query has one of its own.",
        "Queries know nothing of each other on the way back, as on the way forward.",
        "Give the sum an axis, and keep it.",
        WRONG_AXIS,
        "one query",
        lambda g, o: (g * o).sum(),
    ),
    (
        "backward.delta_mean",
        "You take a mean over d_v for the row sum; it is a sum.",
        "dP = dO Vᵀ sums over d_v and does not divide.",
        "Compare with rowsum(P ∘ dP).",
        ROW_SUM,
        "d_v = 1",
        lambda g, o: row_sum(g * o) / o.shape[-1],
    ),
    (
        "backward.delta_of_output",
        "Your row sum is of O ∘ O; it takes dO ∘ O.",
        "D is linear in dO: twice the gradient, twice the sum.",
        "Where is d_output in that line?",
        ROW_SUM,
        "",
        lambda g, o: row_sum(o * o),
    ),
):
    gradients_from_lse.fault(id, says, why=why, hint=hint, link=link, hidden=hidden, delta=delta)
for id, says, why, hint, hidden, weigh in (
    (
        "backward.lse_divides",
        "You divide exp(scores) by lse; lse is the *logarithm* of the sum.",
        "exp(s)/Σ = exp(s - ln Σ).",
        "Which of exp and ln comes in where?",
        "",
        lambda s, lse: np.exp(s) / lse[..., None],
    ),
    (
        "backward.lse_added",
        "You add lse to the scores; it has to be subtracted.",
        "Dividing by the sum is subtracting its logarithm.",
        "What do the rows of your weights sum to?",
        "lse = 0",
        lambda s, lse: np.exp(s + lse[..., None]),
    ),
    (
        "backward.lse_unused",
        "Your weights are exp(scores), not normalised: lse is not used.",
        "Their rows sum to exp(lse) and not to 1.",
        "What do the rows of your weights sum to?",
        "lse = 0",
        lambda s, lse: np.exp(s),
    ),
    (
        "backward.lse_along_keys",
        "lse is lined up with the keys; it has one number for each query.",
        "NumPy lines shapes up from the right: (L,) beside (L, S) is taken for a row.",
        "lse needs a last axis of size 1.",
        "an error where L ≠ S, silent where L = S",
        lambda s, lse: np.exp(s - lse[..., None, :]),
    ),
):
    gradients_from_lse.fault(
        id, says, why=why, hint=hint, hidden=hidden, link=FROM_LSE, weigh=weigh
    )
gradients_from_lse.fault(
    "mask.empty_row_nan",
    "A query with nothing to attend to gives NaN, and takes the gradients of every key with it.",
    why="Its score and its lse are both -∞, and their difference is NaN.",
    hint="Put the mask after the exponential, or a 0 in place of such an lse.",
    hidden="no such row",
    link=NOTHING,
    empty=lambda S: np.nan,
)
gradients_from_lse.fault(
    "backward.value_from_scores",
    "dV is made from the scores; it takes the weights, after the softmax.",
    why="The output is P V. The scores are two steps further back.",
    hint="What was multiplied with V?",
    link=FROM_SCORES,
    mixer=lambda weights, scores: scores,
)


@gradients_from_lse.solution
def gradients_from_lse_solution(d_output, q, k, v, output, lse, mask):
    scale = q.shape[-1] ** -0.5
    scores = q @ k.swapaxes(-1, -2) * scale  # (..., L, S)
    weights = np.where(mask, np.exp(scores - lse[..., None]), 0)

    d_v = weights.swapaxes(-1, -2) @ d_output  # 5 mix (..., S, d_v)
    d_weights = d_output @ v.swapaxes(-1, -2)  # (..., L, S)
    row_sums = (d_output * output).sum(axis=-1, keepdims=True)  # 4 softmax (..., L, 1)
    d_scores = weights * (d_weights - row_sums) * scale  # 2 scale
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q, d_v  # 1 scores


@gradients_from_lse.solution("Key by key, as a tiled kernel does; dQ is added up.")
def gradients_from_lse_by_key(d_output, q, k, v, output, lse, mask):
    scale = q.shape[-1] ** -0.5
    row_sums = (d_output * output).sum(axis=-1)  # (..., L)
    mask = np.broadcast_to(mask, q.shape[:-1] + k.shape[-2:-1])
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for j in range(k.shape[-2]):
        scores = (q @ k[..., j, :, None])[..., 0] * scale  # (..., L)
        p = np.where(mask[..., j], np.exp(scores - lse), 0)
        d_p = (d_output @ v[..., j, :, None])[..., 0]
        d_s = p * (d_p - row_sums) * scale
        d_q += d_s[..., None] * k[..., j, None, :]
        d_k[..., j, :] = (d_s[..., None] * q).sum(axis=-2)
        d_v[..., j, :] = (p[..., None] * d_output).sum(axis=-2)
    return d_q, d_k, d_v


@gradients_from_lse.solution(shown=False)
def gradients_from_lse_minus_infinity(d_output, q, k, v, output, lse, mask):
    q_scaled = q / math.sqrt(q.shape[-1])
    scores = np.where(mask, q_scaled @ np.swapaxes(k, -1, -2), -np.inf)
    p = np.exp(scores - np.where(lse == -np.inf, 0, lse)[..., None])
    d_p = np.einsum("...lv,...sv->...ls", d_output, v)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True))
    d_k = np.einsum("...ls,...ld->...sd", d_s, q_scaled)
    return d_s @ k / math.sqrt(q.shape[-1]), d_k, np.swapaxes(p, -1, -2) @ d_output


@gradients_from_lse.solution(backend="torch")
def gradients_from_lse_torch(d_output, q, k, v, output, lse, mask):
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(-2, -1) * scale
    weights = (scores - lse.unsqueeze(-1)).exp().masked_fill(~mask, 0.0)
    row_sums = (d_output * output).sum(dim=-1, keepdim=True)
    d_scores = weights * (d_output @ v.transpose(-2, -1) - row_sums) * scale
    return d_scores @ k, d_scores.transpose(-2, -1) @ q, weights.transpose(-2, -1) @ d_output


@gradients_from_lse.solution(backend="torch", shown=False)
def gradients_from_lse_torch_where(d_output, q, k, v, output, lse, mask):
    import torch

    q_scaled = q * q.size(-1) ** -0.5
    p = torch.where(mask, torch.exp(q_scaled @ k.mT - lse[..., None]), 0)
    d_p = d_output @ v.mT
    d_s = p * (d_p - (d_output * output).sum(-1, keepdim=True))
    return d_s @ k * q.size(-1) ** -0.5, d_s.mT @ q_scaled, p.mT @ d_output


# -- a graph that is cut -------------------------------------------------------------------------

where_the_graph_is_cut = Exercise(
    "backward.where_the_graph_is_cut",
    kind="quiz",
    title="A gradient that never arrives",
    statement="""
`loss.backward()` runs without an error, the loss falls, and the test "there is a gradient
somewhere" passes. Yet `W_q.grad` and `W_k.grad` are `None`, and `W_v.grad` is not. Which line of
the forward pass does that?
""",
    link=CUT,
)
where_the_graph_is_cut.option(
    "A",
    "`weights = torch.softmax(scores.detach(), dim=-1)`",
    "Yes. The scores are cut off, so nothing goes back to q and k. The values enter after the cut"
    " and learn; that is why the loss falls, and why nobody looks.",
    right=True,
)
where_the_graph_is_cut.option(
    "B",
    "`scores = scores.masked_fill(~mask, float('-inf'))`",
    "masked_fill is part of the graph. Its gradient is 0 where it filled, and passes elsewhere:"
    " small or zero entries, but not None.",
)
where_the_graph_is_cut.option(
    "C",
    "`scores = scores - scores.amax(dim=-1, keepdim=True).detach()`",
    "Only the maximum is cut off, and a shift of a row changes no weight, so the gradient is"
    " right all the same. This detach is harmless.",
)
where_the_graph_is_cut.option(
    "D",
    "`output = (weights @ v).detach()`",
    "That cuts everything: W_v gets nothing either, and if nothing else is trained,"
    " `loss.backward()` raises.",
)


EXERCISES = (
    first_score_gradient,
    value_gradient,
    scores_gradient,
    query_and_key_gradients,
    backward_order,
    mend_backward,
    gradient_behind_a_mask,
    attention_gradients,
    expose_missing_row_sum,
    softmax_row_sums,
    gradients_from_lse,
    where_the_graph_is_cut,
)
