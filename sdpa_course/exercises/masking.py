"""Graded exercises of the chapter on masks."""

from __future__ import annotations

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fault, Fit
from sdpa_course.grading.properties import future_does_not_leak, rows_sum_to_one

from .attention import (
    FILL_FIT,
    GOALS,
    LIBRARY,
    MASK_FAULTS,
    SOFTMAX_FAULTS,
    hidden,
    pipeline,
    zero_where_empty,
)
from .scaling import add_wrong_factors, tokens

CHAPTER = "05-masking"
CAUSAL = f"{CHAPTER}#the-causal-mask"
ALIGNMENT = f"{CHAPTER}#two-meanings"
PADDING = f"{CHAPTER}#padding"
BOTH = f"{CHAPTER}#both-at-once"
WINDOW = f"{CHAPTER}#a-window"
NOTHING = f"{CHAPTER}#nothing-to-attend-to"
POLARITY = f"{CHAPTER}#true-means-two-things"
DIAGONAL = f"{CHAPTER}#the-diagonal-left-out"
QUERY_AXIS = f"{CHAPTER}#padding-on-the-query-axis"
WRONG_SIDE = f"{CHAPTER}#a-window-one-too-wide"

OWN_LIBRARY = tuple(
    f"sdpa_course.with_{backend}.masking.{name}"
    for backend in ("numpy", "torch")
    for name in ("causal_mask", "padding_mask", "sliding_window_mask", "combine_masks")
)


def turned(mask):
    return ~mask


def as_it_is(mask):
    return mask


def inverted(**switch) -> Fault:
    """The mask the wrong way round, on whatever switch holds its polarity."""
    return Fault(
        "mask.inverted",
        "Your mask is the wrong way round: True where a key must not be attended to.",
        "Here True means *may attend*. In nn.MultiheadAttention it means the opposite.",
        POLARITY,
        "What should the mask say of a token and itself?",
        cite="rasbt/LLMs-from-scratch#1061; InseeFrLab/torchTextClassifiers PR#92",
        switches=switch,
    )


# -- causal ----------------------------------------------------------------------------------------

causal_mask = Exercise(
    "masking.causal_mask",
    kind="implement",
    title="The causal mask",
    statement="""
Write `causal_mask(L, S)`: a boolean array of shape $(L, S)$, True where query $i$ may attend to key
$j$. The queries are the **last** $L$ of $S$ positions, as with a cache: the last query is at the
position of the last key. A query may attend to its own position and to all before it.
""",
    link=CAUSAL,
    goals={
        "offset": "the last query is at the last key",
        "polarity": "True means: may attend",
        "turn": "queries are rows, keys are columns",
    },
    built_from=OWN_LIBRARY,
    hints=(
        "For L = S it is a lower triangle.",
        "At which position, counted among the keys, is query 0?",
    ),
    reason="Query i is at position i + S - L, and may attend to every j up to there.",
    question="What does your function return for L = 1, and is a mask needed at all there?",
)


@causal_mask.stub
def causal_mask_stub(L, S):
    """Boolean (L, S): True where query i, at position i + S - L, may attend to key j."""
    raise NotImplementedError


@causal_mask.inputs
def _(rng, L=5, S=8):
    return {"L": min(L, S), "S": max(L, S)}  # the queries are the last of the positions


causal_mask.probe("as many queries as keys", L=5, S=5)
causal_mask.probe("more keys than queries, as with a cache", L=3, S=8)
causal_mask.probe("one query", L=1, S=6)


@causal_mask.model
def _(L, S, *, offset=lambda L, S: S - L, polarity=as_it_is, turn=as_it_is):
    i, j = np.arange(L)[:, None], np.arange(S)[None, :]
    return turn(polarity(j <= i + offset(L, S)))


causal_mask.fault(
    "mask.top_left",
    "Your triangle starts at the top left: query 0 is taken for position 0.",
    why="That is what is_causal means in PyTorch. With cached keys the first of your queries comes"
    " after all of them.",
    hint="At which position, counted among the keys, is query 0?",
    hidden="L = S",
    cite="pytorch/pytorch#144858; skyzh/tiny-llm 0c1ae4b; ml-explore/mlx PR#2967",
    link=ALIGNMENT,
    offset=lambda L, S: 0,
)
causal_mask.fault(
    "mask.diagonal_excluded",
    "A query does not see its own position: your comparison is < where it should be ≤.",
    why="The first token would have nothing to attend to.",
    hint="May a token attend to itself?",
    cite="pbloem/former#10",
    link=DIAGONAL,
    offset=lambda L, S: S - L - 1,
)
causal_mask.fault(
    "mask.one_ahead",
    "A query sees one position ahead of its own.",
    why="In training it can copy the answer: the next token is what it is to predict.",
    hint="Write down the row of the last query: which j are True?",
    link=CAUSAL,
    offset=lambda L, S: S - L + 1,
)
causal_mask.fault(
    "mask.everything",
    "Your mask is True everywhere.",
    why="Nothing is hidden.",
    hint="Compare positions of queries with positions of keys.",
    link=CAUSAL,
    offset=lambda L, S: S,
)
causal_mask.add(inverted(polarity=turned))
causal_mask.fault(
    "mask.rows_are_keys",
    "Rows and columns are exchanged: your array is (S, L).",
    why="mask[i, j] is about query i and key j, like scores[i, j].",
    hint="Which axis did the queries get?",
    hidden="L = S, by its shape",
    cite="harvard-edge/cs249r_book PR#1875",
    link=CAUSAL,
    turn=lambda mask: mask.T,
)
causal_mask.add(
    Fit(
        "mask.causal_offset",
        "offset",
        "Your diagonal is shifted: query i sees keys up to i + {found} (here {value}), and it"
        " should be i + S - L (here {right}).",
        right=lambda dims: dims["S"] - dims["L"],
        setting=lambda c: lambda L, S: c,
        grid=tuple(float(c) for c in range(-12, 13)),
        integer=True,
        link=ALIGNMENT,
        hint="At which position, counted among the keys, is query 0?",
    )
)


@causal_mask.solution
def causal_mask_positions(L, S):
    i = np.arange(L)[:, None] + S - L  # positions of the queries
    return np.arange(S)[None, :] <= i


@causal_mask.solution("the last L rows of the full triangle")
def causal_mask_rows(L, S):
    return np.tri(S, dtype=bool)[S - L :] if L <= S else np.tri(L, S, S - L, dtype=bool)


@causal_mask.solution(shown=False)
def causal_mask_tril(L, S):
    return np.tril(np.ones((L, S)), k=S - L) == 1


@causal_mask.solution(shown=False)
def causal_mask_loops(L, S):
    return np.array([[j <= i + S - L for j in range(S)] for i in range(L)])


# -- padding ---------------------------------------------------------------------------------------

padding_mask = Exercise(
    "masking.padding_mask",
    kind="implement",
    title="The padding mask",
    statement="""
A batch holds sequences of different `lengths` $(B,)$, filled up to $S$ tokens at the end. Write
`padding_mask(lengths, S)`: a boolean array of shape $(B, 1, 1, S)$, True for real tokens. It
broadcasts against scores $(B, H, L, S)$.
""",
    link=PADDING,
    goals={"real": "real tokens are the first ones", "axes": "it lines up with the keys"},
    built_from=OWN_LIBRARY,
    hints=(
        "Compare positions 0…S-1 with the lengths.",
        "Which axes of the scores have size 1 here?",
    ),
    reason="Position j of sample b is real where j < lengths[b]; the two axes of size 1 stand for"
    " heads and queries.",
    question="Why is it enough to hide padded keys, and not padded queries?",
)


@padding_mask.stub
def padding_mask_stub(lengths, S):
    """Boolean (B, 1, 1, S): True where key j of sample b is a real token."""
    raise NotImplementedError


@padding_mask.inputs
def _(rng, B=3, S=7):
    return {"lengths": rng.integers(1, S, size=B), "S": S}


padding_mask.probe("three sequences", B=3, S=7)
padding_mask.probe("more sequences than tokens", B=8, S=5, seed=1)


@padding_mask.special("an empty sequence and a full one", B=2, S=6)
def _():
    return {"lengths": np.array([0, 6]), "S": 6}


def over_keys(mask):
    return mask[:, None, None, :]


@padding_mask.model
def _(lengths, S, *, real=lambda j, n, S: j < n, axes=over_keys):
    return axes(real(np.arange(S)[None, :], lengths[:, None], S))


padding_mask.fault(
    "mask.padding_one_more",
    "One token of padding counts as real: your comparison is ≤ where it should be <.",
    why="Positions start at 0, so a sequence of length 3 has the positions 0, 1 and 2.",
    hint="Which positions has a sequence of length 1?",
    link=PADDING,
    real=lambda j, n, S: j <= n,
)
padding_mask.add(
    Fault(
        "mask.inverted",
        "Your mask is the wrong way round: True for padding.",
        "Here True means *may attend*. In nn.MultiheadAttention it means the opposite.",
        POLARITY,
        "May a real token be attended to?",
        cite="rasbt/LLMs-from-scratch#1061",
        switches={"real": lambda j, n, S: j >= n},
    )
)
padding_mask.fault(
    "mask.padding_in_front",
    "You take the last tokens for the real ones. The padding is at the end here.",
    why="Padding in front exists too, for generation. It has to be the same in data and mask.",
    hint="Where does a sequence of length 1 have its token?",
    hidden="full sequences",
    link=PADDING,
    real=lambda j, n, S: j >= S - n,
)
padding_mask.fault(
    "mask.queries_hidden",
    "Your mask lies along the queries, (B, 1, S, 1): padded keys are still attended to.",
    why="What has to disappear from the weights are columns, and columns are keys.",
    hint="Which axis of the scores are the keys?",
    hidden="no padding",
    cite="hyunwoongko/transformer PR#40; keras-team/keras-io PR#1254; tensorflow/tensorflow#60626",
    link=QUERY_AXIS,
    axes=lambda mask: mask[:, None, :, None],
)
padding_mask.fault(
    "mask.axis_missing",
    "Your mask is (B, S): against scores (B, H, L, S) its batch lines up with the queries.",
    why="Broadcasting aligns axes from the right. Where B = L it even runs.",
    hint="Insert the axes of heads and queries.",
    hidden="it raises, unless B equals L or 1",
    cite="lucidrains/vit-pytorch#71; ml-explore/mlx-lm PR#1903",
    link=PADDING,
    axes=lambda mask: mask,
)
padding_mask.fault(
    "mask.head_axis_missing",
    "Your mask is (B, 1, S): against scores (B, H, L, S) its batch lines up with the heads.",
    why="Axes are aligned from the right. Where B = H every head gets another sample's mask.",
    hint="Insert the axis of the heads as well.",
    hidden="it raises, unless B equals H or 1",
    cite="lucidrains/vit-pytorch#71",
    link=PADDING,
    axes=lambda mask: mask[:, None, :],
)


@padding_mask.solution
def padding_mask_numpy(lengths, S):
    return (np.arange(S) < lengths[:, None])[:, None, None, :]


@padding_mask.solution("the axes at once")
def padding_mask_reshaped(lengths, S):
    return np.arange(S) < np.reshape(lengths, (-1, 1, 1, 1))


@padding_mask.solution(shown=False)
def padding_mask_loops(lengths, S):
    mask = np.zeros((len(lengths), 1, 1, S), dtype=bool)
    for b, n in enumerate(lengths):
        mask[b, ..., :n] = True
    return mask


# -- a window --------------------------------------------------------------------------------------

window_mask = Exercise(
    "masking.window_mask",
    kind="implement",
    title="A window",
    statement="""
Write `window_mask(L, w)`: a boolean array of shape $(L, L)$. Query $i$ may attend to the last $w$
positions up to and including its own: $i - w + 1, \\dots, i$.
""",
    link=WINDOW,
    goals={
        "back": "w positions, itself among them",
        "ahead": "none ahead",
        "polarity": "True attends",
    },
    built_from=OWN_LIBRARY,
    hints=("How many True are there in the last row?", "Write it as two comparisons of i - j."),
    reason="0 ≤ i - j < w: not ahead, and fewer than w back.",
    question="How far can information travel through three layers of such attention?",
)


@window_mask.stub
def window_mask_stub(L, w):
    """Boolean (L, L): True where 0 ≤ i - j < w."""
    raise NotImplementedError


@window_mask.inputs
def _(rng, L=9, w=3):
    return {"L": L, "w": w}


window_mask.probe("a window of three", L=9, w=3)
window_mask.probe("a window of one", L=6, w=1)
window_mask.probe("a window longer than the sequence", L=5, w=8)
window_mask.probe("a window of five", L=12, w=5)


@window_mask.model
def _(L, w, *, back=lambda d, w: d < w, ahead=lambda d, w: d >= 0, polarity=as_it_is):
    d = np.arange(L)[:, None] - np.arange(L)[None, :]  # how far back
    return polarity(back(d, w) & ahead(d, w))


window_mask.fault(
    "mask.window_one_more",
    "Your window has w + 1 positions.",
    why="w back *and* the own position are one too many. Models trained one way and run the other"
    " differ by a key.",
    hint="Count the True in the last row.",
    hidden="L ≤ w",
    cite="huggingface/transformers#39408; ml-explore/mlx-lm PR#390",
    link=WRONG_SIDE,
    back=lambda d, w: d <= w,
)
window_mask.fault(
    "mask.window_one_less",
    "Your window has w - 1 positions.",
    why="The own position counts as one of the w.",
    hint="Count the True in the last row.",
    link=WRONG_SIDE,
    back=lambda d, w: d < w - 1,
)
window_mask.fault(
    "mask.window_forgotten",
    "Your mask is causal, without a window: the past is not limited.",
    why="A band that is cut on the side of the future leaves the past as it is.",
    hint="Which diagonal should the band end at, below the main one?",
    hidden="L ≤ w",
    cite="huggingface/transformers PR#41228",
    link=WINDOW,
    back=lambda d, w: d >= -w,
)
window_mask.fault(
    "mask.future_visible",
    "Your window reaches into the future.",
    why="A query may see at most its own position.",
    hint="What does the first row look like?",
    link=WINDOW,
    ahead=lambda d, w: d > -w,
)
window_mask.fault(
    "mask.diagonal_excluded",
    "A query does not see its own position.",
    why="The first token would have nothing to attend to.",
    hint="i - j is 0 for a token and itself.",
    cite="pbloem/former#10",
    link=DIAGONAL,
    ahead=lambda d, w: d > 0,
)
window_mask.add(inverted(polarity=turned))


@window_mask.solution
def window_mask_numpy(L, w):
    d = np.arange(L)[:, None] - np.arange(L)  # how far back key j is from query i
    return (d >= 0) & (d < w)


@window_mask.solution("the difference of two triangles")
def window_mask_triangles(L, w):
    return np.tri(L, dtype=bool) & ~np.tri(L, k=-w, dtype=bool)


@window_mask.solution(shown=False)
def window_mask_loops(L, w):
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        mask[i, max(0, i - w + 1) : i + 1] = True
    return mask


# -- rows with nothing -----------------------------------------------------------------------------

masked_softmax = Exercise(
    "masking.masked_softmax",
    kind="implement",
    title="Softmax behind a mask",
    statement="""
Write `masked_softmax(scores, mask)`: softmax over the last axis in which only entries where
`mask` is
True take part. `mask` has the shape of `scores`, $(\\dots, L, S)$. A row without any True gives
zeros.
Rows may lie around ±500.
""",
    link=NOTHING,
    goals={
        "hide": "3 mask: only what may be attended to",
        "axis": "4 softmax: over the keys",
        "normalised": "a row with nothing gives zeros",
    },
    backends=("numpy", "torch"),
    hints=(
        "A hidden score should have the exponential 0.",
        "What is the maximum of a row of -inf, and what is -inf minus that?",
    ),
    reason="Where a row has nothing, its maximum is -inf and its sum 0: put something finite in"
    " place of the one and anything but 0 in place of the other, and the zeros remain zeros.",
    question="Why is it not enough to replace NaN by 0 at the end, if you train?",
    properties=(rows_sum_to_one(0),),
)


@masked_softmax.stub
def masked_softmax_stub(scores, mask):
    """Weights (..., L, S) of scores (..., L, S), where mask (..., L, S) is True."""
    raise NotImplementedError


@masked_softmax.inputs
def _(rng, B=2, L=5, S=6):
    mask = rng.random((B, L, S)) < 0.6
    mask[:, 0, :] = False
    mask[:, 1:, 0] = True
    return {"scores": 2 * rng.normal(size=(B, L, S)), "mask": mask}


masked_softmax.probe("a batch", B=2, L=5, S=8)
masked_softmax.probe("more rows than columns", B=3, L=9, S=2)


@masked_softmax.special("rows of different height", magnitude=500)
def _():
    rng = np.random.default_rng(4)
    scores = 2 * rng.normal(size=(4, 6)) + np.array([[500.0], [0.0], [-500.0], [3.0]])
    mask = rng.random((4, 6)) < 0.7
    mask[:, 2], mask[3] = True, False
    return {"scores": scores, "mask": mask}


@masked_softmax.model
def _(scores, mask, *, hide=hidden, axis=-1, normalised=zero_where_empty, late=None):
    weights = normalised(hide(scores, mask), axis)
    return weights if late is None else late(weights, mask)


masked_softmax.add(
    *(f for f in MASK_FAULTS if f.id != "mask.queries_hidden"),
    *(f for f in SOFTMAX_FAULTS if f.id == "softmax.over_queries"),
    FILL_FIT,
)


@masked_softmax.solution
def masked_softmax_numpy(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(highest), highest, 0))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


@masked_softmax.solution("divide only where there is something to divide by")
def masked_softmax_divide(scores, mask):
    hidden = np.where(mask, scores, -1e300)
    e = np.exp(hidden - hidden.max(-1, keepdims=True)) * mask
    total = e.sum(-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


@masked_softmax.solution(backend="torch")
def masked_softmax_torch(scores, mask):
    weights = scores.masked_fill(~mask, -1e300).softmax(-1)
    return weights * mask


@masked_softmax.solution(backend="torch", shown=False)
def masked_softmax_torch_rows(scores, mask):
    some = mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~mask & some, float("-inf")).softmax(-1)
    return weights.masked_fill(~some, 0.0)


# -- polarity --------------------------------------------------------------------------------------

from_torch_module = Exercise(
    "masking.from_torch_module",
    kind="fix",
    title="A mask from the other convention",
    statement="""
`from_torch_module(key_padding_mask)` gets a mask as `nn.MultiheadAttention` takes it: $(B, S)$,
with
non-zero for keys to **ignore**, as booleans or as integers 0 and 1. It should return the mask for
`scaled_dot_product_attention`: boolean, $(B, 1, 1, S)$, True for keys that may be attended to. It
was
written for booleans and is wrong for integers. Mend it.
""",
    link=POLARITY,
    goals={"flip": "ignore becomes attend", "axes": "it lines up with the keys"},
    built_from=OWN_LIBRARY,
    hints=("What is ~1?", "Ask whether the mask equals 0."),
    reason="For integers ~ flips all bits: ~0 is -1 and ~1 is -2, and both count as True. mask == 0"
    " is right for both kinds.",
    question="What would `1 - mask` give for booleans?",
)


@from_torch_module.stub
def from_torch_module_broken(key_padding_mask):
    return (~key_padding_mask).astype(bool)[:, None, None, :]


@from_torch_module.inputs
def _(rng, B=3, S=7):
    return {"key_padding_mask": (np.arange(S) >= rng.integers(1, S, size=(B, 1))).astype(int)}


from_torch_module.probe("integers", B=3, S=7)
from_torch_module.probe("other integers", B=5, S=6, seed=2)


@from_torch_module.special("booleans", B=2, S=5)
def _():
    return {"key_padding_mask": np.array([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], bool)}


@from_torch_module.model
def _(key_padding_mask, *, flip=lambda m: m == 0, axes=over_keys):
    return axes(flip(key_padding_mask))


from_torch_module.fault(
    "mask.bits_flipped",
    "~ flips the bits of an integer: ~0 is -1 and ~1 is -2, and both are True.",
    why="Only for booleans is ~ the logical not.",
    hint="Ask whether the mask equals 0.",
    hidden="a boolean mask",
    cite="PaddlePaddle/PaddleFormers PR#4033",
    link=POLARITY,
    flip=lambda m: (~m).astype(bool),
)
from_torch_module.fault(
    "mask.inverted",
    "You keep the polarity: True still means *ignore*.",
    why="In nn.MultiheadAttention True means ignore; here it means attend.",
    hint="What should become of a 1?",
    cite="InseeFrLab/torchTextClassifiers PR#92; pytorch/pytorch PR#120668",
    link=POLARITY,
    flip=lambda m: m != 0,
)
from_torch_module.fault(
    "mask.axis_missing",
    "Your mask is (B, S): against scores (B, H, L, S) its batch lines up with the queries.",
    why="Broadcasting aligns axes from the right.",
    hint="Insert the axes of heads and queries.",
    cite="lucidrains/vit-pytorch#71",
    link=PADDING,
    axes=as_it_is,
)
from_torch_module.fault(
    "mask.queries_hidden",
    "Your mask lies along the queries: padded keys are still attended to.",
    why="What has to disappear from the weights are columns, and columns are keys.",
    hint="Which axis of the scores are the keys?",
    cite="hyunwoongko/transformer PR#40",
    link=QUERY_AXIS,
    axes=lambda mask: mask[:, None, :, None],
)


@from_torch_module.solution
def from_torch_module_equal(key_padding_mask):
    return (key_padding_mask == 0)[:, None, None, :]


@from_torch_module.solution("logical_not does not care about the type")
def from_torch_module_not(key_padding_mask):
    return np.expand_dims(np.logical_not(key_padding_mask), (1, 2))


# -- causal attention over padded sequences --------------------------------------------------------

causal_attention = Exercise(
    "masking.causal_attention",
    kind="implement",
    title="Causal attention over padded sequences",
    statement="""
Write `causal_attention(q, k, v, lengths)`: self-attention of a decoder. `q` and `k` are
$(B, H, L, d_k)$, `v` is $(B, H, L, d_v)$, `lengths` $(B,)$ says how many tokens of each sequence
are real; the
rest is padding at the end. A query attends to its own position and to those before it, and never to
padding. It returns `(output, weights)`. Rows of padded queries are computed like the others.
""",
    link=BOTH,
    outputs=("output", "weights"),
    goals={
        **GOALS,
        "causal": "nothing after the query's own position",
        "real": "no padding",
        "joined": "both at once",
    },
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=("Build the two masks, then join them.", "Both have to allow a key."),
    reason="A key takes part where it is not ahead and real. Two masks that both have to allow are"
    " joined by and.",
    question="Can a row be left with nothing here? What if the padding were in front?",
    properties=(rows_sum_to_one(1), future_does_not_leak("k", "v")),
)


@causal_attention.stub
def causal_attention_stub(q, k, v, lengths):
    """(output, weights) of q, k (B, H, L, d_k) and v (B, H, L, d_v), lengths (B,).

    output (B, H, L, d_v), weights (B, H, L, L)
    """
    raise NotImplementedError


@causal_attention.inputs
def _(rng, B=2, H=3, L=6, d_k=7, d_v=9):
    q, k = tokens(rng, B, H, L, d_k, std=1.5), tokens(rng, B, H, L, d_k)
    lengths = rng.integers(1, L, size=B)
    lengths[0] = L
    return {"q": q, "k": k, "v": tokens(rng, B, H, L, d_v), "lengths": lengths}


causal_attention.probe("two sequences", B=2, H=3, L=6, d_k=7, d_v=9)
causal_attention.probe("as many heads as sequences", B=3, H=3, L=5, d_k=6, d_v=8, seed=3)
causal_attention.probe("one head", B=5, H=1, L=7, d_k=5, d_v=2, seed=1)


@causal_attention.model
def _(
    q,
    k,
    v,
    lengths,
    *,
    causal=lambda i, j: j <= i,
    real=lambda j, n: j < n,
    joined=np.logical_and,
    **switches,
):
    i, j = np.arange(q.shape[-2])[:, None], np.arange(q.shape[-2])[None, :]
    mask = joined(causal(i, j), real(j, np.reshape(lengths, (-1, 1, 1, 1))))
    return pipeline(q, k, v, mask, **switches)


causal_attention.fault(
    "mask.future_visible",
    "The future is visible: your mask hides the padding only.",
    why="In training each token could copy the answer it is to predict.",
    hint="Which mask do you build from the lengths, and which from positions?",
    cite="keras-team/keras-io PR#1046",
    link=CAUSAL,
    causal=lambda i, j: j >= 0,
)
causal_attention.fault(
    "mask.padding_visible",
    "Padding is attended to: your mask is causal only.",
    why="A padded query sees the padding before it, and its row is computed like the others.",
    hint="Where do the lengths enter?",
    hidden="no padding",
    link=PADDING,
    real=lambda j, n: n > -1,
)
causal_attention.fault(
    "mask.either_allows",
    "You join the masks by *or*: a key takes part if one of them allows it.",
    why="Then the future is visible up to the padding, and the padding to what comes after it.",
    hint="Does a key have to satisfy one condition or both?",
    hidden="no padding",
    link=BOTH,
    joined=np.logical_or,
)
causal_attention.fault(
    "mask.triangle_turned",
    "Your triangle is the wrong way round: a query sees what comes after it.",
    why="np.triu keeps the upper triangle, j ≥ i.",
    hint="The first query should see one key.",
    cite="AkiRusProd/numpy-transformer f0dd5ec; dotnet/TorchSharp#1227",
    link=CAUSAL,
    causal=lambda i, j: j >= i,
)
causal_attention.fault(
    "mask.diagonal_excluded",
    "A query does not see its own position.",
    why="The first token is left with nothing to attend to.",
    hint="May a token attend to itself?",
    cite="pbloem/former#10",
    link=DIAGONAL,
    causal=lambda i, j: j < i,
)
causal_attention.fault(
    "mask.one_ahead",
    "A query sees one position ahead of its own.",
    why="In training it can copy the answer: the next token is what it is to predict.",
    hint="The first query should see one key.",
    link=CAUSAL,
    causal=lambda i, j: j <= i + 1,
)
causal_attention.fault(
    "mask.padding_one_more",
    "One token of padding counts as real: your comparison is ≤ where it should be <.",
    why="Positions start at 0.",
    hint="Which positions has a sequence of length 1?",
    link=PADDING,
    real=lambda j, n: j <= n,
)
add_wrong_factors(causal_attention, has_values=True)
# With L = S the roots of both lengths are one mistake.
causal_attention.faults[:] = [f for f in causal_attention.faults if f.id != "scale.sqrt_queries"]
causal_attention.add(
    *(f for f in SOFTMAX_FAULTS if f.id.startswith(("softmax.over_q", "softmax.over_h", "scale"))),
    *(
        f
        for f in MASK_FAULTS
        if f.id in ("mask.ignored", "mask.added_as_numbers", "mask.multiplied_into_scores")
        or f.id in ("mask.after_softmax", "mask.inverted")
    ),
    FILL_FIT,
)


@causal_attention.solution
def causal_attention_numpy(q, k, v, lengths):
    j = np.arange(q.shape[-2])
    mask = (j <= j[:, None]) & (j < lengths[:, None, None, None])  # (B, 1, L, L)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # (B, H, L, L)
    scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights @ v, weights


@causal_attention.solution("two additive masks")
def causal_attention_additive(q, k, v, lengths):
    L = q.shape[-2]
    ahead = np.triu(np.full((L, L), -1e9), 1)
    padding = np.where(np.arange(L) < lengths[:, None], 0, -1e9)[:, None, None, :]
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + ahead + padding
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights @ v, weights


@causal_attention.solution(shown=False)
def causal_attention_loops(q, k, v, lengths):
    B, H, L, d_k = q.shape
    weights = np.zeros((B, H, L, L))
    for b in range(B):
        for i in range(L):
            n = min(i + 1, lengths[b])
            e = np.exp(np.einsum("hd,hsd->hs", q[b, :, i], k[b, :, :n]) / d_k**0.5)
            weights[b, :, i, :n] = e / e.sum(-1, keepdims=True)
    return weights @ v, weights


@causal_attention.solution(backend="torch")
def causal_attention_torch(q, k, v, lengths):
    import torch

    j = torch.arange(q.shape[-2], device=q.device)
    mask = (j <= j[:, None]) & (j < lengths[:, None, None, None])
    scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return weights @ v, weights


@causal_attention.solution(backend="torch", shown=False)
def causal_attention_torch_tril(q, k, v, lengths):
    import torch

    L = q.shape[-2]
    real = torch.arange(L, device=q.device) < lengths[:, None]
    mask = torch.ones(L, L, dtype=torch.bool, device=q.device).tril() & real[:, None, None, :]
    weights = torch.where(mask, (q @ k.mT) * q.size(-1) ** -0.5, -1e30).softmax(-1)
    return weights @ v, weights


# -- catch the alignment ---------------------------------------------------------------------------

expose_top_left = Exercise(
    "masking.expose_top_left",
    kind="catch",
    title="Catch a triangle in the wrong corner",
    statement="""
Somebody's `causal_mask(L, S)` returns `np.tril(np.ones((L, S)))`. With a cache, the last query
should be
at the last key. Write `expose_top_left()`, which returns `(L, S)` on which that mask is wrong.
""",
    link=ALIGNMENT,
    hints=("When do the two corners coincide?",),
    reason="For L = S the two meanings are one. With L ≠ S the corner matters.",
    question="What does one new token see under the wrong mask?",
)


@expose_top_left.inputs
def _(rng, L=2, S=5):
    return {"L": L, "S": S}


@expose_top_left.model
def _(L, S):
    return np.tri(int(L), int(S), int(S) - int(L), dtype=bool)


@expose_top_left.black_box
def _(L, S):
    return np.tri(int(L), int(S), 0, dtype=bool)


@expose_top_left.program(
    "catch.square",
    "With L = S both corners coincide, and the mask is right.",
    why="A test with square masks cannot see the alignment.",
    hint="Take more keys than queries.",
    when=lambda L, S: int(L) == int(S),
)
def square():
    return 4, 4


@expose_top_left.solution
def expose_top_left_one_token():
    return 1, 5


@expose_top_left.solution
def expose_top_left_chunk():
    return 3, 8


# -- count, and choose -----------------------------------------------------------------------------

window_count = Exercise(
    "masking.window_count",
    kind="predict",
    title="Count what is visible",
    statement="""
A causal mask with a window of 10 (a query sees itself and the 9 positions before it), for 100
tokens.
How many entries of the $(100, 100)$ mask are True?
""",
    link=WINDOW,
    tolerance=0.001,
    hints=("How many does the last row have? The first?", "Nine rows are shorter than the others."),
    reason="100 rows of 10, less what is missing in the first nine: 9 + 8 + … + 1 = 45.",
    question="Which share of the full causal mask is that, and for 10,000 tokens?",
)


@window_count.model
def _():
    d = np.arange(100)[:, None] - np.arange(100)
    return float(((d >= 0) & (d < 10)).sum())


window_count.wrong(
    1000,
    "masking.count_start_forgotten",
    "The first nine queries have fewer than ten positions behind them.",
    hint="How many does the first row have?",
)
window_count.wrong(
    1045,
    "masking.count_window_one_more",
    "That is a window of 11: ten back and the own position.",
    hint="The own position is one of the ten.",
)
window_count.wrong(
    5050,
    "masking.count_without_window",
    "That is the causal mask without a window.",
    hint="No row has more than ten.",
)

empty_row = Exercise(
    "masking.empty_row",
    kind="quiz",
    title="A query with nothing to attend to",
    statement="""
All keys of one query are masked. You fill hidden scores with $-10^9$ and take a softmax. What
does this query get?
""",
    link=NOTHING,
)
empty_row.option(
    "A",
    "Zeros.",
    "Only -∞ has the exponential 0 whatever the maximum. Here the maximum is -10⁹ too, and it is"
    " subtracted.",
)
empty_row.option(
    "B",
    "NaN.",
    "That is what -∞ gives: 0/0. A finite number gives no NaN, which is why it is popular.",
)
empty_row.option(
    "C",
    "The mean of all values, padding included.",
    "Yes. All scores are equal after the fill, so all weights are 1/S. Nothing looks wrong, and"
    " padding leaks.",
    right=True,
)
empty_row.option(
    "D",
    "An error.",
    "No library raises one: the row is a legal softmax of equal numbers.",
)

EXERCISES = (
    causal_mask,
    padding_mask,
    window_count,
    window_mask,
    masked_softmax,
    empty_row,
    from_torch_module,
    causal_attention,
    expose_top_left,
)
