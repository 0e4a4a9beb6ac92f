"""Graded exercises of the chapter on masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sdpa_course.grading.exercise import Exercise, Fault, Fit, Solution
from sdpa_course.grading.properties import future_does_not_leak, rows_sum_to_one

from .attention import (
    FILL_FIT,
    GOALS,
    LIBRARY,
    MASK_FAULTS,
    RARE_SCALES,
    SCALE_FAULTS,
    SCALE_FIT,
    SCORES_FAULTS,
    SOFTMAX_FAULTS,
    hidden,
    pipeline,
    zero_where_empty,
)
from .scaling import tokens

CHAPTER = "05-masking"
CAUSAL = f"{CHAPTER}#the-causal-mask"
CORNERS = f"{CHAPTER}#two-corners"
PADDING = f"{CHAPTER}#padding"
COMBINING = f"{CHAPTER}#combining-masks"
WINDOWS = f"{CHAPTER}#windows-and-documents"
POLARITY = f"{CHAPTER}#which-way-round-is-true"
FILL = f"{CHAPTER}#a-fill-that-is-finite"
NOTHING = f"{CHAPTER}#rows-with-nothing-to-attend-to"
BEHIND = f"{CHAPTER}#nan-behind-a-mask"
TURNED = f"{CHAPTER}#the-triangle-turned-round"
OFF_BY_ONE = f"{CHAPTER}#off-by-one"
WRONG_AXIS = f"{CHAPTER}#the-mask-on-the-wrong-axis"
NUMBERS = f"{CHAPTER}#a-mask-taken-for-numbers"
LATE = f"{CHAPTER}#the-mask-after-the-softmax"
PATHS = f"{CHAPTER}#a-mask-dropped-on-one-path"


def of_package(name: str) -> tuple[str, ...]:
    return tuple(f"sdpa_course.with_{kind}.masking.{name}" for kind in ("numpy", "torch"))


def positions(L, S, offset):
    return np.arange(L)[:, None] + offset, np.arange(S)


# Which key j a query at position i may attend to.
def itself_and_before(i, j):
    return j <= i


def not_before(i, j):
    return j >= i


def only_before(i, j):
    return j < i


def one_ahead(i, j):
    return j <= i + 1


TURNED_FAULT = Fault(
    "mask.triangle_turned",
    "Your triangle is turned round: a query sees itself and the future, and nothing of the past.",
    "np.triu keeps what lies above the diagonal, and there j is larger than i: the future.",
    TURNED,
    "Rows are queries and columns are keys. Which keys does the first query see in your mask?",
    cite="AkiRusProd/numpy-transformer f0dd5ec; dotnet/TorchSharp#1227",
    switches={"rule": not_before},
)
DIAGONAL_FAULT = Fault(
    "mask.diagonal_excluded",
    "You leave the diagonal out: a token cannot attend to itself.",
    "The first query then has nothing at all. A token may always see itself.",
    OFF_BY_ONE,
    "Is it j < i or j <= i?",
    cite="pbloem/former#10",
    switches={"rule": only_before},
)
AHEAD_FAULT = Fault(
    "mask.one_ahead",
    "Your mask lets a query see one token of the future.",
    "In a language model that token is the answer: the loss falls to near 0 and the model learns "
    "to copy.",
    OFF_BY_ONE,
    "Which key is the last that the first query may see?",
    switches={"rule": one_ahead},
)
RULE_FAULTS = (TURNED_FAULT, DIAGONAL_FAULT, AHEAD_FAULT)

# What the answer is returned as.
INVERTED_FAULT = Fault(
    "mask.inverted",
    "Your mask is the wrong way round: True stands where a query may *not* attend.",
    "Here True means *may attend*. In nn.MultiheadAttention it means the opposite.",
    POLARITY,
    "May the last query attend to the first key? What does your mask say there?",
    hidden="a mask that is True everywhere",
    cite="rasbt/LLMs-from-scratch#1061; lucidrains/x-transformers#164; "
    "NVIDIA/TransformerEngine#614; pytorch/pytorch PR#120668",
    switches={"form": np.logical_not},
)
ADDITIVE_FAULT = Fault(
    "mask.additive_returned",
    "You return what is added to the scores, 0 and -inf; asked for is the boolean mask.",
    "Booleans combine with & and can be checked. Convert once, at the end, if at all.",
    COMBINING,
    "Return the condition itself.",
    switches={"form": lambda m: np.where(m, 0.0, -np.inf)},
)
NAN_BIAS_FAULT = Fault(
    "mask.zero_times_infinity",
    "You multiply by -inf: where the other factor is 0 the product is NaN, and that is at every "
    "key that may be attended to.",
    "0 · ∞ is not a number. Choose between two values with np.where.",
    NUMBERS,
    "What is 0.0 * -np.inf?",
    hidden="JAX, whose compiler turns the product into a choice",
    cite="onnx/onnx PR#8068; ml-explore/mlx#1725",
    switches={"form": lambda m: (1.0 - m) * -np.inf},
)
FORM_FAULTS = (INVERTED_FAULT, ADDITIVE_FAULT, NAN_BIAS_FAULT)


def as_made(mask):
    return mask


# -- causal ----------------------------------------------------------------------------------------

causal_mask = Exercise(
    "masking.causal_mask",
    kind="implement",
    title="A causal mask for any L and S",
    statement="""
Write `causal_mask(L, S)`: a boolean array $(L, S)$, True where query $i$ may attend to key $j$.
A query sees its own position and all earlier ones. **The last query sits at the last key**
(bottom-right), as it does when earlier keys come from a cache: `causal_mask(2, 3)` is

    [[True, True, False],
     [True, True, True ]]

There are never more queries than keys.
""",
    link=CORNERS,
    goals={
        "size": "a row for each query, a column for each key",
        "offset": "the last query sits at the last key",
        "rule": "itself and what came before",
        "form": "True means may attend",
    },
    backends=("numpy", "torch"),
    built_from=of_package("causal_mask"),
    hints=(
        "At which position in the count of the keys does query 0 sit?",
        "Compare a column of positions with a row of positions.",
    ),
    reason="Query i sits at position i + S - L of the keys, since the last one, L - 1, has to sit "
    "at S - 1. It may see the keys up to there.",
    question="For L = 1, which keys are hidden? Does a model that writes one token at a time need "
    "a mask?",
)


@causal_mask.stub
def causal_mask_stub(L, S):
    """Boolean (L, S), True = may attend; the last query sits at the last key."""
    raise NotImplementedError


@causal_mask.inputs
def _(rng, L=3, S=5):
    return {"L": min(L, S), "S": max(L, S)}  # the queries are the last of the positions


causal_mask.probe("more keys than queries", L=3, S=7)
causal_mask.probe("two queries", L=2, S=6)
causal_mask.probe("a chunk of queries", L=5, S=9)
# Without sizes, as several offsets give the same mask here and none can be fitted.
causal_mask.special("as many queries as keys")(lambda: {"L": 3, "S": 3})


@causal_mask.model
def _(
    L,
    S,
    *,
    size=lambda L, S: (L, S),
    offset=lambda L, S: S - L,
    rule=itself_and_before,
    form=as_made,
):
    L, S = size(L, S)
    return form(rule(*positions(L, S, offset(L, S))))


causal_mask.fault(
    "mask.top_left",
    "Your first query sits at the first key (top-left); here the last one sits at the last key.",
    why="With a cache of S - L earlier keys, the first new query has all of those behind it. "
    "PyTorch's is_causal is top-left.",
    hint="Which keys should the last query see?",
    hidden="L = S",
    cite="pytorch/pytorch#144858; skyzh/tiny-llm 0c1ae4b; Dao-AILab/flash-attention#282; "
    "ml-explore/mlx PR#2967",
    link=CORNERS,
    offset=lambda L, S: 0,
)
causal_mask.fault(
    "mask.offset_sign",
    "You shift the diagonal by L - S; it is S - L.",
    why="With more keys than queries the diagonal moves to the right, and k of np.tril counts to "
    "the right.",
    hint="For L = 1, how many keys does the query see in your mask?",
    hidden="L = S",
    link=CORNERS,
    offset=lambda L, S: L - S,
)
causal_mask.fault(
    "mask.square",
    "Your mask is L by L; there are S keys, so it needs S columns.",
    why="Queries and keys are counted apart. They are equally many only in self-attention over "
    "a whole sequence.",
    hint="Which of L and S counts the columns?",
    hidden="L = S",
    cite="harvard-edge/cs249r_book PR#1875",
    link=CORNERS,
    size=lambda L, S: (L, L),
)
causal_mask.fault(
    "mask.not_sliced",
    "Your mask is S by S: it has a row for every key, and should have one for every query.",
    why="A mask kept for the longest sequence has to be cut to the queries of this call.",
    hint="Which L rows of the S by S mask belong to these queries?",
    hidden="L = S",
    cite="facebookresearch/xformers PR#66; karpathy/nanoGPT#473",
    link=CORNERS,
    size=lambda L, S: (S, S),
)
causal_mask.fault(
    "mask.rows_are_keys",
    "Your mask is S by L, keys by queries; it should be queries by keys.",
    why="It is laid on the scores (L, S), in which a row is a query.",
    hint="The shape is that of q @ k.T.",
    hidden="L = S",
    link=CORNERS,
    size=lambda L, S: (S, L),
)
causal_mask.add(
    *RULE_FAULTS,
    *FORM_FAULTS,
    Fit(
        "mask.causal_offset",
        "offset",
        "Your diagonal is shifted by {found}; the last query sits at the last key if it is "
        "shifted by S - L.",
        right=lambda dims: dims["S"] - dims["L"],
        setting=lambda c: lambda L, S: int(c),
        grid=(0.0, 1.0, -1.0, *map(float, range(-12, -1)), *map(float, range(3, 13)), 2.0),
        integer=True,
        why="Query i sits at position i + S - L of the keys.",
        link=CORNERS,
        hint="Write down which keys the last query sees in your mask.",
    ),
)


@causal_mask.solution
def causal_mask_positions(L, S):
    i = np.arange(L)[:, None] + (S - L)  # where each query sits among the keys
    return np.arange(S) <= i  # (L, S)


@causal_mask.solution("with np.tril, whose k moves the diagonal to the right")
def causal_mask_tril(L, S):
    return np.tril(np.ones((L, S), dtype=bool), k=S - L)


@causal_mask.solution(shown=False)
def causal_mask_triu(L, S):
    return np.triu(np.ones((L, S)), k=S - L + 1) == 0


@causal_mask.solution(shown=False)
def causal_mask_last_rows(L, S):
    n = max(L, S)
    return np.tri(n, dtype=bool)[n - L :, n - S :]


@causal_mask.solution(shown=False)
def causal_mask_loops(L, S):
    return np.array([[j - (S - 1) <= i - (L - 1) for j in range(S)] for i in range(L)])


@causal_mask.solution(backend="torch")
def causal_mask_torch(L, S):
    import torch

    return torch.ones(L, S, dtype=torch.bool).tril(S - L)


@causal_mask.solution(backend="torch", shown=False)
def causal_mask_torch_positions(L, S):
    import torch

    return torch.arange(S) <= torch.arange(S - L, S)[:, None]


# -- catch the wrong corner ------------------------------------------------------------------------

expose_top_left = Exercise(
    "masking.expose_top_left",
    kind="catch",
    title="Catch a triangle in the wrong corner",
    statement="""
Somebody's `causal_mask(L, S)` returns `np.tril(np.ones((L, S)))`. With a cache, the last query
should sit at the last key. Write `expose_top_left()`, which returns `(L, S)` on which that mask is
wrong.
""",
    link=CORNERS,
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


# -- padding ---------------------------------------------------------------------------------------

padding_mask = Exercise(
    "masking.padding_mask",
    kind="implement",
    title="A mask for padding",
    statement="""
Write `padding_mask(lengths, S)`. A batch holds sequences of `lengths` $(B,)$ real tokens, each
filled up at the end to $S$. Return a boolean array of shape $(B, 1, 1, S)$: True where the key is
real. The two axes of size 1 stand for heads and queries, so that it fits scores $(B, H, L, S)$.
""",
    link=PADDING,
    goals={
        "real": "the first tokens are real, as many as the length says",
        "axes": "one row of keys for each sample, the same for all heads and queries",
        "form": "True means may attend",
    },
    backends=("numpy", "torch"),
    built_from=of_package("padding_mask"),
    hints=(
        "The keys of a sample are numbered 0 to S - 1. Which of them are real?",
        "Indexing with None adds an axis.",
    ),
    reason="Key j is real if j < length. The mask varies with the sample and the key; heads and "
    "queries share it, so those axes have size 1.",
    question="What would happen in a batch of three with three heads, if the head axis were "
    "missing?",
)


@padding_mask.stub
def padding_mask_stub(lengths, S):
    """Boolean (B, 1, 1, S) of lengths (B,), True = a real key."""
    raise NotImplementedError


def some_lengths(rng, B, S):
    """Lengths that differ: the first is full, the last is shorter by more than one if it can be."""
    lengths = rng.integers(1, S + 1, size=B)
    lengths[-1] = max(1, S // 2)
    lengths[0] = S
    return lengths


@padding_mask.inputs
def _(rng, B=3, S=5):
    return {"lengths": some_lengths(rng, B, S), "S": S}


padding_mask.probe("three sequences", B=3, S=5)
padding_mask.probe("two sequences", B=2, S=7)
padding_mask.special("a sequence of nothing but padding", B=3, S=5)(
    lambda: {"lengths": np.array([4, 0, 2]), "S": 5}
)


def before_length(j, lengths, S):
    return j < lengths


def for_all_heads_and_queries(real):
    return real[:, None, None, :]


@padding_mask.model
def _(lengths, S, *, real=before_length, axes=for_all_heads_and_queries, form=as_made):
    return form(axes(real(np.arange(S), lengths[:, None], S)))


LENGTH_FAULTS = (
    Fault(
        "mask.padding_one_more",
        "Your mask lets one token too many through: position `length` is padding.",
        "Positions count from 0, so the real ones are 0 to length - 1.",
        OFF_BY_ONE,
        "How many True should a row have, and how many has yours?",
        hidden="full sequences",
        switches={"real": lambda j, n, S: j <= n},
    ),
    Fault(
        "mask.padding_one_less",
        "Your mask hides the last real token of every sequence.",
        "Positions count from 0, so the real ones are 0 to length - 1.",
        OFF_BY_ONE,
        "How many True should a row have, and how many has yours?",
        switches={"real": lambda j, n, S: j < n - 1},
    ),
    Fault(
        "mask.one_length_for_all",
        "You use one length, the longest, for every sequence of the batch.",
        "Shorter sequences keep their padding, and their output depends on what it holds.",
        PADDING,
        "Compare each sample's positions with its own length.",
        hidden="equal lengths",
        switches={"real": lambda j, n, S: j < np.full_like(n, n.max())},
    ),
    Fault(
        "mask.padding_in_front",
        "You hide the start of each sequence. The padding stands at its end.",
        "Some tokenizers do pad on the left, for generation. Look at the data before you write "
        "the mask.",
        PADDING,
        "Is key 0 real?",
        hidden="full sequences",
        switches={"real": lambda j, n, S: j >= S - n},
    ),
)
padding_mask.add(*LENGTH_FAULTS, *FORM_FAULTS)
padding_mask.fault(
    "mask.queries_hidden",
    "Your mask is laid on the query axis, (B, 1, S, 1): it blanks padded queries, and padded keys "
    "are attended to as before.",
    why="Keys stand along the last axis of the scores. A padded query may stay: nobody reads its "
    "output.",
    hint="Which axis of (B, H, L, S) holds the keys?",
    cite="hyunwoongko/transformer PR#40; keras-team/keras-io PR#1254; "
    "lsdefine/attention-is-all-you-need-keras#16",
    link=WRONG_AXIS,
    axes=lambda real: real[:, None, :, None],
)
padding_mask.fault(
    "mask.head_axis_missing",
    "Your mask is (B, 1, S): beside scores (B, H, L, S), the samples line up with the heads.",
    why="Axes are matched from the back. Where B ≠ H that raises an error; where B = H every head "
    "gets another sample's padding.",
    hint="Insert an axis for the heads.",
    hidden="B = H raises no error",
    cite="lucidrains/vit-pytorch#71; ml-explore/mlx-lm PR#1903",
    link=WRONG_AXIS,
    axes=lambda real: real[:, None, :],
)
padding_mask.fault(
    "mask.axis_missing",
    "Your mask is (B, S): beside scores (B, H, L, S), the samples line up with the queries.",
    why="Axes are matched from the back, so B meets L.",
    hint="Insert two axes, for heads and queries.",
    cite="ml-explore/mlx-lm PR#1903",
    link=WRONG_AXIS,
    axes=lambda real: real,
)


@padding_mask.solution
def padding_mask_compare(lengths, S):
    return (np.arange(S) < lengths[:, None])[:, None, None, :]  # (B, 1, 1, S)


@padding_mask.solution("all axes at once")
def padding_mask_axes(lengths, S):
    return np.arange(S) < np.reshape(lengths, (-1, 1, 1, 1))


@padding_mask.solution(shown=False)
def padding_mask_loops(lengths, S):
    mask = np.zeros((len(lengths), 1, 1, S), dtype=bool)
    for row, n in zip(mask, lengths, strict=True):
        row[..., :n] = True
    return mask


@padding_mask.solution(backend="torch")
def padding_mask_torch(lengths, S):
    import torch

    return (torch.arange(S, device=lengths.device) < lengths[:, None])[:, None, None]


@padding_mask.solution(backend="torch", shown=False)
def padding_mask_torch_cumulative(lengths, S):
    ends = lengths.view(-1, 1, 1, 1).expand(-1, 1, 1, S)
    return ends.new_ones(ends.shape).cumsum(-1) <= ends


# -- polarity --------------------------------------------------------------------------------------

from_torch_module = Exercise(
    "masking.from_torch_module",
    kind="fix",
    title="A mask from the other convention",
    statement="""
`from_torch_module(key_padding_mask)` gets a mask as `nn.MultiheadAttention` takes it: $(B, S)$,
non-zero for keys to **ignore**, as booleans or as integers 0 and 1. It should return the mask for
`scaled_dot_product_attention`: boolean, $(B, 1, 1, S)$, True for keys that may be attended to. It
was written for booleans and is wrong for integers. Mend it.
""",
    link=POLARITY,
    goals={"flip": "ignore becomes attend", "axes": "it lines up with the keys"},
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
def _(key_padding_mask, *, flip=lambda m: m == 0, axes=for_all_heads_and_queries):
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
    axes=as_made,
)
from_torch_module.fault(
    "mask.queries_hidden",
    "Your mask lies along the queries: padded keys are still attended to.",
    why="What has to disappear from the weights are columns, and columns are keys.",
    hint="Which axis of the scores are the keys?",
    cite="hyunwoongko/transformer PR#40",
    link=WRONG_AXIS,
    axes=lambda mask: mask[:, None, :, None],
)


@from_torch_module.solution
def from_torch_module_equal(key_padding_mask):
    return (key_padding_mask == 0)[:, None, None, :]


@from_torch_module.solution("logical_not does not care about the type")
def from_torch_module_not(key_padding_mask):
    return np.expand_dims(np.logical_not(key_padding_mask), (1, 2))


@from_torch_module.solution(shown=False)
def from_torch_module_filled(key_padding_mask):
    B, S = key_padding_mask.shape
    mask = np.ones((B, 1, 1, S), dtype=bool)
    mask[:, 0, 0][key_padding_mask != 0] = False
    return mask


# -- two masks -------------------------------------------------------------------------------------

sdpa_mask = Exercise(
    "masking.sdpa_mask",
    kind="implement",
    title="From one polarity to the other",
    statement="""
Two masks were made for `torch.nn.MultiheadAttention`, where a mask says what to **ignore**:

- `key_padding_mask` $(B, S)$, integers: 1 = ignore this key, 0 = real;
- `attn_mask` $(L, S)$, boolean: True = query $i$ must not attend to key $j$.

Write `sdpa_mask(key_padding_mask, attn_mask)`: one boolean mask $(B, 1, L, S)$ that says the same
to `scaled_dot_product_attention`, where True means **may attend**.
""",
    link=POLARITY,
    goals={
        "padding": "padded keys are hidden, real ones are not",
        "pairs": "what attn_mask ignores is hidden, the rest is not",
        "combined": "a key must be allowed by both",
        "axes": "one mask for each sample, shared by its heads",
        "form": "True means may attend",
    },
    backends=("numpy", "torch"),
    hints=(
        "Turn each mask round by itself first.",
        "The padding needs two more axes: for heads and queries.",
    ),
    reason="Each mask is turned round, and then both have to allow a key. To turn round before "
    "combining keeps you out of trouble: not (a or b) is (not a) and (not b).",
    question="Could you combine first and turn round once? With which operator?",
)


@sdpa_mask.stub
def sdpa_mask_stub(key_padding_mask, attn_mask):
    """Boolean (B, 1, L, S), True = may attend.

    key_padding_mask (B, S) of 0 and 1, 1 = ignore; attn_mask (L, S) boolean, True = ignore
    """
    raise NotImplementedError


@sdpa_mask.inputs
def _(rng, B=2, L=3, S=5):
    real = np.arange(S) < some_lengths(rng, B, S)[:, None]
    ignored = rng.random((L, S)) < 0.4
    ignored[:, 0] = False
    ignored[-1, -1] = True
    return {"key_padding_mask": (~real).astype(np.int64), "attn_mask": ignored}


sdpa_mask.probe("more keys than queries", B=2, L=3, S=6)
sdpa_mask.probe("as many queries as keys", B=3, L=5, S=5)
sdpa_mask.probe("more queries than keys", B=2, L=7, S=3)


@sdpa_mask.model
def _(
    key_padding_mask,
    attn_mask,
    *,
    padding=lambda p: p == 0,
    pairs=np.logical_not,
    axes=for_all_heads_and_queries,
    combined=np.logical_and,
    form=as_made,
):
    return form(combined(axes(padding(key_padding_mask)), pairs(attn_mask)))


sdpa_mask.add(INVERTED_FAULT)
sdpa_mask.fault(
    "mask.padding_inverted",
    "You take the padding mask as it is: its 1 means *ignore*, and you let those keys through.",
    why="The two interfaces of torch give True opposite meanings.",
    hint="May a query attend to a key whose entry is 1?",
    cite="rasbt/LLMs-from-scratch#1061; pytorch/pytorch PR#170415",
    link=POLARITY,
    padding=lambda p: p != 0,
)
sdpa_mask.fault(
    "mask.pairs_inverted",
    "You take attn_mask as it is: its True means *must not attend*.",
    why="The two interfaces of torch give True opposite meanings.",
    hint="May query i attend to key j where attn_mask[i, j] is True?",
    cite="pytorch/pytorch PR#114083; mlwithme/TransformerTranslation#6",
    link=POLARITY,
    pairs=as_made,
)
sdpa_mask.fault(
    "mask.bits_flipped",
    "Your padding hides nothing. Did you write ~ on integers? ~0 is -1 and ~1 is -2, and both "
    "count as True.",
    why="On integers ~ turns every bit round; only on booleans does it mean *not*.",
    hint="Compare with 0, or make it boolean first.",
    hidden="a boolean mask, or one without padding",
    cite="PaddlePaddle/PaddleFormers PR#4033; ZikangZhou/HiVT#44",
    link=POLARITY,
    padding=lambda p: (~p).astype(bool),
)
sdpa_mask.fault(
    "mask.either_allows",
    "You let a key through if *either* mask allows it; both have to.",
    why="With *or*, padding is visible wherever the other mask allows it, and the future wherever "
    "the token is real. (Turned round after combining, `&` becomes *or*.)",
    hint="What should stand where one mask says yes and the other no?",
    hidden="masks that agree",
    cite="keras-team/keras-io PR#1046",
    link=COMBINING,
    combined=np.logical_or,
)
sdpa_mask.fault(
    "mask.pairs_missing",
    "attn_mask has no effect: your mask knows the padding only.",
    why="The second mask has overwritten the first. Masks are combined, not replaced.",
    hint="Where does attn_mask enter your result?",
    cite="keras-team/keras-io PR#1046",
    link=COMBINING,
    combined=lambda p, a: p & np.ones_like(a),
)
sdpa_mask.fault(
    "mask.head_axis_missing",
    "Your mask is (B, L, S): beside scores (B, H, L, S), the samples line up with the heads.",
    why="Axes are matched from the back. Where B = H it runs, and every head gets another "
    "sample's padding.",
    hint="Insert an axis of size 1 for the heads.",
    hidden="B = H raises no error",
    cite="lucidrains/vit-pytorch#71",
    link=WRONG_AXIS,
    axes=lambda real: real[:, None, :],
)
sdpa_mask.fault(
    "mask.queries_hidden",
    "You lay the padding on the query axis: it blanks padded queries, and padded keys are "
    "attended to.",
    why="Keys stand along the last axis of the mask.",
    hint="Which axis of (B, 1, L, S) holds the keys?",
    hidden="L ≠ S raises an error",
    cite="hyunwoongko/transformer PR#40; tensorflow/tensorflow#60626",
    link=WRONG_AXIS,
    axes=lambda real: real[:, None, :, None],
)


@sdpa_mask.solution
def sdpa_mask_both(key_padding_mask, attn_mask):
    real = key_padding_mask == 0  # (B, S)
    return real[:, None, None, :] & ~attn_mask  # (B, 1, L, S)


@sdpa_mask.solution("combined as what to ignore, turned round once")
def sdpa_mask_once(key_padding_mask, attn_mask):
    ignored = (key_padding_mask == 1)[:, None, None, :] | attn_mask
    return ~ignored


@sdpa_mask.solution(shown=False)
def sdpa_mask_logical(key_padding_mask, attn_mask):
    real = np.logical_not(key_padding_mask)
    return np.einsum("bs,ls->bls", real, ~attn_mask)[:, np.newaxis]


@sdpa_mask.solution(backend="torch")
def sdpa_mask_torch(key_padding_mask, attn_mask):
    return (key_padding_mask == 0)[:, None, None] & ~attn_mask


@sdpa_mask.solution(backend="torch", shown=False)
def sdpa_mask_torch_fill(key_padding_mask, attn_mask):
    mask = attn_mask.logical_not().expand(len(key_padding_mask), 1, -1, -1)
    return mask.masked_fill(key_padding_mask.bool()[:, None, None, :], False)


# -- the mask of a decoder -------------------------------------------------------------------------

decoder_mask = Exercise(
    "masking.decoder_mask",
    kind="parsons",
    title="Causal and padded",
    statement="""
Put the lines in order, so that they make `decoder_mask(lengths, S)`: the mask $(B, 1, S, S)$ for
self-attention over a padded batch, in which a token sees itself and earlier **real** tokens. True
means *may attend*. Four of the lines belong nowhere. Answer with letters, such as `"BAD"`.
""",
    link=COMBINING,
    header="def decoder_mask(lengths, S):",
    lines={
        "A": "real = real[:, None, None, :]",
        "B": "causal = j < i",
        "C": "return causal & real",
        "D": "i, j = np.arange(S)[:, None], np.arange(S)",
        "E": "real = real[:, None, :, None]",
        "F": "causal = j <= i",
        "G": "real = j < lengths[:, None]",
        "H": "causal = j >= i",
        "I": "return causal | real",
    },
    goals={
        "rule": "itself and what came before",
        "axes": "padding hides keys",
        "combined": "a key must be allowed by both",
    },
    hints=(
        "Both masks are comparisons of positions. Which line makes the positions?",
        "Which axis of (B, 1, S, S) holds the keys?",
    ),
    reason="Positions first, then one comparison for each mask, the padding spread over heads and "
    "queries, and a key needs both.",
    question="Which rows of this mask are all False, if a length is 0?",
)


@decoder_mask.inputs
def _(rng, B=3, S=5):
    return {"lengths": some_lengths(rng, B, S), "S": S}


decoder_mask.probe("three sequences", B=3, S=5)
decoder_mask.probe("two sequences", B=2, S=7)


@decoder_mask.model
def _(
    lengths, S, *, rule=itself_and_before, axes=for_all_heads_and_queries, combined=np.logical_and
):
    i, j = positions(S, S, 0)
    return combined(rule(i, j), axes(j < lengths[:, None]))


decoder_mask.add(
    TURNED_FAULT,
    DIAGONAL_FAULT,
    *(f for f in sdpa_mask.faults if f.id in ("mask.queries_hidden", "mask.either_allows")),
)
decoder_mask.solutions += [
    Solution("DFGAC"),
    Solution("DGAFC", "the padding first"),
    Solution("DGFAC"),
]


# -- count what a window shows ---------------------------------------------------------------------

window_count = Exercise(
    "masking.window_count",
    kind="predict",
    title="Count what is visible",
    statement="""
A causal mask with a window of 10 (a query sees itself and the 9 positions before it), for 100
tokens. How many entries of the $(100, 100)$ mask are True?
""",
    link=WINDOWS,
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


# -- a sliding window ------------------------------------------------------------------------------

window_mask = Exercise(
    "masking.window_mask",
    kind="implement",
    title="A sliding window",
    statement="""
Write `window_mask(L, w)`: a boolean array $(L, L)$ for self-attention in which a token sees
itself and the tokens before it, **`w` tokens in all**. With `w = 1` it sees only itself.
""",
    link=WINDOWS,
    goals={
        "past": "no token of the future",
        "limit": "w tokens, its own included",
        "form": "True means may attend",
    },
    backends=("numpy", "torch"),
    built_from=of_package("sliding_window_mask"),
    hints=(
        "The distance i - j of query and key says everything.",
        "With a window of 1, which distances are allowed?",
    ),
    reason="The allowed distances are 0, 1, …, w - 1: that is w of them.",
    question="How many entries of the mask are True, for L tokens and a window w?",
)


@window_mask.stub
def window_mask_stub(L, w):
    """Boolean (L, L), True = may attend: itself and earlier tokens, `w` in all."""
    raise NotImplementedError


@window_mask.inputs
def _(rng, L=8, w=3):
    return {"L": L, "w": w}


window_mask.probe("a window of 3", L=8, w=3)
window_mask.probe("a window of 1", L=7, w=1)
window_mask.probe("a wide window", L=9, w=5)
window_mask.special("a window longer than the sequence")(lambda: {"L": 3, "w": 6})


@window_mask.model
def _(
    L,
    w,
    *,
    past=lambda distance, w: distance >= 0,
    limit=lambda distance, w: distance < w,
    form=as_made,
):
    i, j = positions(L, L, 0)
    return form(past(i - j, w) & limit(i - j, w))


window_mask.add(*FORM_FAULTS)
window_mask.fault(
    "mask.window_one_more",
    "Your window holds w + 1 tokens: the distance w is one too far.",
    why="The token itself, at distance 0, counts as one of them.",
    hint="How many True are in the last row?",
    hidden="sequences no longer than the window",
    cite="huggingface/transformers#39408; ml-explore/mlx-lm PR#390; "
    "AI-Hypercomputer/maxtext PR#4289; apple/axlearn PR#1009",
    link=OFF_BY_ONE,
    limit=lambda d, w: d <= w,
)
window_mask.fault(
    "mask.window_one_less",
    "Your window holds w - 1 tokens.",
    why="The distances 0 to w - 1 are w numbers.",
    hint="How many True are in the last row? And with a window of 1?",
    link=OFF_BY_ONE,
    limit=lambda d, w: d < w - 1,
)
window_mask.fault(
    "mask.window_forgotten",
    "Your window does not limit the past: this is the plain causal mask.",
    why="The edge of the window lies *below* the diagonal. np.tril with a positive k moves it "
    "above, where nothing is left to cut.",
    hint="Which side of the diagonal is the past?",
    hidden="sequences no longer than the window",
    cite="huggingface/transformers PR#41228",
    link=WINDOWS,
    limit=lambda d, w: np.ones_like(d, dtype=bool),
)
window_mask.fault(
    "mask.future_visible",
    "Your window reaches into the future as well.",
    why="A window around the token is what an encoder uses. Here a token sees itself and what "
    "came before.",
    hint="What are the allowed distances i - j? May they be negative?",
    link=WINDOWS,
    past=lambda d, w: d > -w,
)
window_mask.fault(
    "mask.diagonal_excluded",
    "You leave the diagonal out: a token cannot attend to itself.",
    why="The window includes the token's own position.",
    hint="Is distance 0 allowed?",
    cite="pbloem/former#10",
    link=OFF_BY_ONE,
    past=lambda d, w: d > 0,
)
window_mask.fault(
    "mask.window_into_future",
    "Your window looks forward: a token sees itself and what comes after it.",
    why="The distance i - j is positive for the past.",
    hint="Rows are queries. Which keys does the first one see?",
    link=TURNED,
    past=lambda d, w: d <= 0,
    limit=lambda d, w: d > -w,
)
window_mask.add(
    Fit(
        "mask.window",
        "limit",
        "Your window holds {found} tokens (here {value}); asked for were w (here {right}).",
        right=lambda dims: dims["w"],
        setting=lambda c: lambda d, w: d < c,
        grid=tuple(map(float, (*range(1, 4), *range(5, 20), 4))),
        integer=True,
        why="The allowed distances are 0 to w - 1.",
        link=WINDOWS,
        hint="Count the True in the last row.",
    )
)


@window_mask.solution
def window_mask_distance(L, w):
    distance = np.arange(L)[:, None] - np.arange(L)  # i - j, (L, L)
    return (distance >= 0) & (distance < w)


@window_mask.solution("a triangle less a smaller one")
def window_mask_triangles(L, w):
    return np.tri(L, dtype=bool) & ~np.tri(L, k=-w, dtype=bool)


@window_mask.solution(shown=False)
def window_mask_loops(L, w):
    mask = np.zeros((L, L), dtype=bool)
    for i in range(L):
        mask[i, max(0, i - w + 1) : i + 1] = True
    return mask


@window_mask.solution(backend="torch")
def window_mask_torch(L, w):
    import torch

    distance = torch.arange(L)[:, None] - torch.arange(L)
    return (distance >= 0) & (distance < w)


@window_mask.solution(backend="torch", shown=False)
def window_mask_torch_triangles(L, w):
    import torch

    return torch.ones(L, L, dtype=torch.bool).tril().triu(1 - w)


# -- catch a window that is too wide ---------------------------------------------------------------

expose_window = Exercise(
    "masking.expose_window",
    kind="catch",
    title="Catch a window that is too wide",
    statement="""
Somebody's attention has a causal window of 3 tokens, and hides what lies further back with
`i - j <= 3`. All their tests pass.

Write `expose_window()`, which returns `(q, k, v)`, three 2-D arrays with the same number of rows,
on which the result is wrong.
""",
    link=OFF_BY_ONE,
    hints=("Which key is the one too many?", "How long must the sequence be for it to exist?"),
    reason="The key at distance 3 is the one too many, and the first query that has one is query "
    "3: four tokens are needed, with values that differ.",
    question="Which other lengths and settings should every test of a mask include?",
)


@expose_window.inputs
def _(rng, S=5, d_k=2, d_v=2):
    return {"q": tokens(rng, S, d_k), "k": tokens(rng, S, d_k), "v": tokens(rng, S, d_v)}


def windowed(q, k, v, widest):
    i, j = positions(len(q), len(k), 0)
    return pipeline(q, k, v, (j <= i) & (i - j <= widest))[0]


@expose_window.model
def _(q, k, v):
    return windowed(q, k, v, 2)


@expose_window.black_box
def _(q, k, v):
    return windowed(q, k, v, 3)


@expose_window.program(
    "catch.too_short",
    "Your sequence is too short: no key is further back than the window allows.",
    why="A window shows only in sequences longer than it.",
    hint="Which query has a key at distance 3?",
    when=lambda q, k, v: len(q) <= 3,
)
def three_tokens():
    return np.eye(3), np.eye(3), np.eye(3)


@expose_window.program(
    "catch.equal_values",
    "All your values are the same, so every mean of them is the same, whatever the weights.",
    why="A mean of equal things shows nothing of its weights.",
    hint="Let the rows of v differ.",
    when=lambda q, k, v: bool(np.allclose(v, v[:1])),
)
def equal_values():
    return np.zeros((5, 2)), np.zeros((5, 2)), np.ones((5, 2))


@expose_window.solution
def expose_window_four():
    return np.zeros((4, 1)), np.zeros((4, 1)), np.array([[1.0], [0.0], [0.0], [0.0]])


@expose_window.solution
def expose_window_random():
    rng = np.random.default_rng(0)
    return rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), rng.normal(size=(6, 2))


# -- several documents -----------------------------------------------------------------------------

packed_mask = Exercise(
    "masking.packed_mask",
    kind="implement",
    title="Several documents in one sequence",
    statement="""
Short documents are packed one after the other into one sequence, to waste nothing on padding.
`doc_ids` $(S,)$ says which document each token belongs to, for instance `[7, 7, 9, 2, 2, 2]`.

Write `packed_mask(doc_ids)`: a boolean array $(S, S)$ in which a token sees itself and earlier
tokens **of its own document**.
""",
    link=WINDOWS,
    goals={
        "same": "only the own document",
        "rule": "itself and what came before",
        "combined": "a key must be allowed by both",
        "form": "True means may attend",
    },
    backends=("numpy", "torch"),
    built_from=of_package("document_mask"),
    hints=(
        "Compare the ids as a column with the ids as a row.",
        "That mask is not causal yet.",
    ),
    reason="Two conditions, one comparison each, joined by *and*: the result is a row of "
    "triangles along the diagonal.",
    question="What do you have to do about the positions, if the model adds them to its tokens?",
)


@packed_mask.stub
def packed_mask_stub(doc_ids):
    """Boolean (S, S) of doc_ids (S,), True = may attend: earlier tokens of the own document."""
    raise NotImplementedError


@packed_mask.inputs
def _(rng, S=7, documents=3):
    n = min(S, documents)
    cuts = np.sort(rng.permutation(np.arange(1, S))[: n - 1])
    lengths = np.diff([0, *cuts, S])
    return {"doc_ids": np.repeat(rng.permutation(3 * n)[:n], lengths)}


packed_mask.probe("three documents", S=8, documents=3)
packed_mask.probe("two documents", S=5, documents=2, seed=1)
packed_mask.special("the ids need not be in order", S=6, documents=3)(
    lambda: {"doc_ids": np.array([7, 7, 9, 2, 2, 2])}
)


@packed_mask.model
def _(doc_ids, *, same=np.equal, rule=itself_and_before, combined=np.logical_and, form=as_made):
    S = len(doc_ids)
    return form(combined(rule(*positions(S, S, 0)), same(doc_ids[:, None], doc_ids)))


packed_mask.add(*RULE_FAULTS, *FORM_FAULTS)
packed_mask.fault(
    "mask.documents_leak",
    "Your tokens see other documents: this is the causal mask of one long sequence.",
    why="The end of a letter says nothing about the recipe packed behind it, and the model "
    "learns that it does.",
    hint="Which tokens have the same id?",
    hidden="one document",
    link=WINDOWS,
    same=lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), dtype=bool),
)
packed_mask.fault(
    "mask.documents_ordered",
    "You compare the ids by size: a token sees documents with a smaller id as well.",
    why="Ids are names. Only equality says anything.",
    hint="== and not >=.",
    hidden="one document",
    link=WINDOWS,
    same=np.greater_equal,
)
packed_mask.fault(
    "mask.future_in_document",
    "Your tokens see the future of their own document.",
    why="The comparison of ids is symmetric. It has to be combined with the causal mask.",
    hint="May token 0 see token 1?",
    link=WINDOWS,
    rule=lambda i, j: np.ones(np.broadcast_shapes(i.shape, j.shape), dtype=bool),
)
packed_mask.add(next(f for f in sdpa_mask.faults if f.id == "mask.either_allows"))


@packed_mask.solution
def packed_mask_compare(doc_ids):
    i = np.arange(len(doc_ids))
    same = doc_ids[:, None] == doc_ids  # (S, S)
    return same & (i <= i[:, None])


@packed_mask.solution("np.tril does the causal part")
def packed_mask_tril(doc_ids):
    return np.tril(np.equal.outer(doc_ids, doc_ids))


@packed_mask.solution(shown=False)
def packed_mask_blocks(doc_ids):
    mask = np.zeros((len(doc_ids), len(doc_ids)), dtype=bool)
    for name in set(doc_ids.tolist()):
        where = np.flatnonzero(doc_ids == name)
        mask[np.ix_(where, where)] = np.tri(len(where), dtype=bool)
    return mask


@packed_mask.solution(backend="torch")
def packed_mask_torch(doc_ids):
    return (doc_ids[:, None] == doc_ids).tril()


@packed_mask.solution(backend="torch", shown=False)
def packed_mask_torch_where(doc_ids):
    import torch

    i = torch.arange(len(doc_ids), device=doc_ids.device)
    return torch.eq(doc_ids.unsqueeze(1), doc_ids.unsqueeze(0)) & (i.unsqueeze(1) >= i)


# -- what a finite fill lets through ---------------------------------------------------------------

leaked_weight = Exercise(
    "masking.leaked_weight",
    kind="predict",
    title="What a fill of -10 lets through",
    statement="""
A query may attend to one key, whose score is 0. The other 1000 keys are padding, and their scores
are set to $-10$ instead of $-\\infty$. $e^{-10}$ is about $4.5\\cdot10^{-5}$.

How much weight do the 1000 hidden keys get **together**?
""",
    link=FILL,
    tolerance=0.03,
    hints=("Add up the exponentials.", "The weights sum to 1: divide by the sum."),
    reason="1000 · e⁻¹⁰ ≈ 0.045, and 0.045 / 1.045 ≈ 0.043: each key gets next to nothing, and "
    "there are many.",
    question="How much would it be if the score of the one real key were -5?",
)


@leaked_weight.model
def _():
    scores = np.full(1001, -10.0)
    scores[0] = 0.0
    return float(zero_where_empty(scores, -1)[1:].sum())


leaked_weight.wrong(
    0.0,
    "mask.fill_is_infinite",
    "Only a fill of -inf gives exactly 0. exp(-10) is small, and there are 1000 of them.",
    hint="Multiply e^-10 by 1000.",
)
leaked_weight.wrong(
    float(np.exp(-10)),
    "mask.fill_one_key",
    "That is the share of one hidden key. There are 1000.",
    hint="Add them up.",
)
leaked_weight.wrong(
    1000 / 1001,
    "mask.fill_uniform",
    "So much they would get if nothing were hidden and all scores were equal.",
    hint="What is the exponential of the real key's score?",
)


# -- a softmax with a mask -------------------------------------------------------------------------

masked_softmax = Exercise(
    "masking.masked_softmax",
    kind="implement",
    title="A softmax that survives empty rows",
    statement="""
Write `masked_softmax(scores, mask)`: softmax over the keys that a query may attend to. `scores` is
$(\\dots, L, S)$, and `mask` is boolean and broadcasts to it, True = may attend.

- Hidden keys get the weight 0, exactly. A row with nothing to attend to gets zeros.
- Scores may be large: visible ones around $-500$ beside hidden ones around $+500$.
""",
    link=NOTHING,
    goals={
        "hide": "hidden keys have no say",
        "axis": "4 softmax: over the keys",
        "normalised": "a row with nothing to attend to gives zeros",
        "late": "the rows sum to 1",
    },
    backends=("numpy", "torch"),
    built_from=("sdpa_course.with_numpy.attention.mask_scores",),
    hints=(
        "np.where chooses; it does not compute with what it leaves out.",
        "What is the maximum of a row with nothing in it? What may you subtract instead?",
    ),
    reason="np.where puts -inf whatever stood there. Only the empty row needs care: its maximum "
    "is -inf and its sum 0, and both are replaced before they do harm.",
    question="Why is nan_to_num at the end right here and wrong in training?",
    properties=(rows_sum_to_one(0),),
)


@masked_softmax.stub
def masked_softmax_stub(scores, mask):
    """Weights (..., L, S) of scores (..., L, S); mask broadcasts to it, True = may attend."""
    raise NotImplementedError


@masked_softmax.inputs
def _(rng, B=2, L=3, S=5):
    mask = rng.random((B, L, S)) < 0.6
    mask[:, 0] = False
    mask[:, 1:, -1] = True
    return {"scores": rng.normal(size=(B, L, S)) * 2, "mask": mask}


masked_softmax.probe("a batch with an empty row", B=2, L=3, S=6)
masked_softmax.probe("as many queries as keys", B=3, L=5, S=5)


@masked_softmax.special("one row of scores", L=1, S=5)
def _():
    mask = np.array([[True, False, True, True, False]])
    return {"scores": np.array([[1.0, 3.0, 0.0, -1.0, 2.0]]), "mask": mask}


@masked_softmax.special("large scores", magnitude=1000)
def _():
    scores = np.array([[-500.0, -501.0, 500.0], [-300.0, 500.0, -301.0]])
    return {"scores": scores, "mask": np.array([[1, 1, 0], [1, 0, 1]], bool)}


@masked_softmax.model
def _(scores, mask, *, hide=hidden, axis=-1, normalised=zero_where_empty, late=None):
    weights = normalised(hide(scores, mask), axis)
    return weights if late is None else late(weights, mask)


def here(id: str, link: str, says: str = "") -> Fault:
    """A mistake of the chapter on attention, with its place in this chapter."""
    fault = next(f for f in (*MASK_FAULTS, *SOFTMAX_FAULTS) if f.id == id)
    return replace(fault, link=link, says=says or fault.says)


HIDE_FAULTS = (
    here("mask.ignored", PATHS),
    here("mask.inverted", POLARITY),
    here("mask.added_as_numbers", NUMBERS),
    here("mask.multiplied_into_scores", NUMBERS),
    here("mask.after_softmax", LATE),
    here("mask.plus_infinity", FILL),
    replace(
        here("mask.zero_times_infinity", NUMBERS),
        switches={"hide": lambda s, m: s + np.where(m, np.nan, -np.inf)},
    ),
)
FILL_HERE = replace(FILL_FIT, link=FILL)
EMPTY_ROW = "A query with nothing to attend to gets equal weights from you; it should get zeros."

masked_softmax.add(
    *HIDE_FAULTS,
    here("mask.mean_of_values", NOTHING, EMPTY_ROW),
    here("mask.nan_row", NOTHING),
    here("softmax.over_queries", LATE),
    FILL_HERE,
)


@masked_softmax.solution
def masked_softmax_where(scores, mask):
    scores = np.where(mask, scores, -np.inf)  # 3 mask
    highest = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(highest), highest, 0))  # 4 softmax
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


@masked_softmax.solution("a finite fill, and empty rows set to zero")
def masked_softmax_finite(scores, mask):
    scores = np.where(mask, scores, -1e30)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) * mask.any(axis=-1, keepdims=True)


@masked_softmax.solution(shown=False)
def masked_softmax_cleaned(scores, mask):
    scores = np.where(mask, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.nan_to_num(e / e.sum(axis=-1, keepdims=True))


@masked_softmax.solution(shown=False)
def masked_softmax_loops(scores, mask):
    weights = np.zeros(scores.shape)
    mask = np.broadcast_to(mask, scores.shape)
    for row in np.ndindex(scores.shape[:-1]):
        seen = np.flatnonzero(mask[row])
        if len(seen):
            e = np.exp(scores[row][seen] - scores[row][seen].max())
            weights[row][seen] = e / e.sum()
    return weights


@masked_softmax.solution(backend="torch")
def masked_softmax_torch(scores, mask):
    weights = scores.masked_fill(~mask, -1e30).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


@masked_softmax.solution(backend="torch", shown=False)
def masked_softmax_torch_exp(scores, mask):
    scores = scores.masked_fill(~mask, float("-inf"))
    highest = scores.amax(-1, keepdim=True)
    e = (scores - highest.masked_fill(highest.isinf(), 0.0)).exp()
    return e / e.sum(-1, keepdim=True).clamp(min=1e-300)


# -- a row with nothing ----------------------------------------------------------------------------

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


# -- NaN behind a mask -----------------------------------------------------------------------------

ignore_padding = Exercise(
    "masking.ignore_padding",
    kind="fix",
    title="Padding that is not a number",
    statement="""
`ignore_padding(q, k, v, lengths)` is attention over a padded batch: `q` $(B, H, L, d_k)$, `k`
$(B, H, S, d_k)$, `v` $(B, H, S, d_v)$, and `lengths` $(B,)$ real keys for each sample, at least 1.
The buffers were never cleared, so **padding may hold NaN or infinity**. The mask is right, and the
result is NaN all the same. Repair it. A NaN in a *real* value must still show.
""",
    link=BEHIND,
    goals={
        **{name: goal for name, goal in GOALS.items() if name != "mixed"},
        "hide": "3 mask: what the padded keys hold does not matter",
        "mixing": "5 mix: what the padded values hold does not matter",
    },
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=("What is 0 * NaN? And NaN + -inf?", "There are two places. Which arrays hold padding?"),
    reason="A weight of 0 does not protect: 0 · NaN is NaN, and NaN + -inf is NaN. Choose with "
    "np.where, in the scores and in the values.",
    question="In training, NaN comes back by the gradient of q unless the padded keys are cleared "
    "too. Why?",
)


@ignore_padding.stub
def ignore_padding_stub(q, k, v, lengths):
    real = (np.arange(k.shape[-2]) < lengths[:, None])[:, None, None, :]  # (B, 1, 1, S)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # 1, 2 (B, H, L, S)
    scores = scores + np.where(real, 0, -np.inf)  # 3 mask
    e = np.exp(scores - scores.max(-1, keepdims=True))  # 4 softmax
    weights = e / e.sum(-1, keepdims=True)
    return weights @ v  # 5 mix (B, H, L, d_v)


@ignore_padding.inputs
def _(rng, B=2, H=3, L=5, S=6, d_k=7, d_v=9):
    q, k = tokens(rng, B, H, L, d_k, std=1.5), tokens(rng, B, H, S, d_k)
    lengths = some_lengths(rng, B, S)
    return {"q": q, "k": k, "v": tokens(rng, B, H, S, d_v), "lengths": lengths}


def with_padding(seed, *, keys=None, values=None):
    """Inputs of three samples, whose padded keys and values hold this."""
    sizes = {"B": 3, "H": 2, "L": 5, "S": 6, "d_k": 7, "d_v": 8}
    inputs = ignore_padding.make_inputs(np.random.default_rng(seed), **sizes)
    inputs["lengths"] = np.array([2, 6, 3])
    for b, n in enumerate(inputs["lengths"]):
        for name, what in (("k", keys), ("v", values)):
            if what is not None:
                inputs[name][b, :, n:] = what
    return inputs


ignore_padding.probe("ordinary padding", B=2, H=3, L=5, S=8, d_k=7, d_v=9)
ignore_padding.probe("as many heads as samples", B=3, H=3, L=6, S=6, d_k=5, d_v=2)
ignore_padding.special("NaN in padded keys")(lambda: with_padding(1, keys=np.nan))
ignore_padding.special("NaN in padded values")(lambda: with_padding(2, values=np.nan))
ignore_padding.special("infinity in padded values")(lambda: with_padding(3, values=np.inf))


@ignore_padding.special("a NaN in a real value still shows")
def _():
    inputs = with_padding(4, values=np.nan)
    inputs["v"][1, 0, 2, 3] = np.nan
    return inputs


def chosen(weights, v, real):
    return weights @ np.where(real.swapaxes(-1, -2), v, 0.0)


@ignore_padding.model
def _(q, k, v, lengths, *, axes=for_all_heads_and_queries, mixing=chosen, **switches):
    real = np.arange(k.shape[-2]) < lengths[:, None]
    keys = for_all_heads_and_queries(real)
    return pipeline(q, k, v, axes(real), mixed=lambda w, x: mixing(w, x, keys), **switches)[0]


ignore_padding.fault(
    "mask.nan_in_scores",
    "You add -inf to hidden scores. Those that are NaN stay NaN, and spread over the row.",
    why="NaN plus anything is NaN. np.where does not look at what it leaves out.",
    hint="What is np.nan + -np.inf?",
    hidden="finite padding",
    link=BEHIND,
    hide=lambda s, m: s + np.where(m, 0.0, -np.inf),
)
ignore_padding.fault(
    "mask.nan_in_values",
    "The padded values still take part in the mix: their weight is 0, but 0 · NaN is NaN.",
    why="A matrix product multiplies everything, zeros too.",
    hint="Which array besides the scores holds padding?",
    hidden="finite padding",
    link=BEHIND,
    mixing=lambda w, v, real: w @ v,
)
ignore_padding.fault(
    "mask.nan_cleaned_late",
    "You replace the NaN in the output. By then the rest of the sum is lost, and zeros stand in "
    "its place.",
    why="One NaN in a sum makes the sum NaN; what the real keys gave cannot be got back.",
    hint="Take the NaN out before it is added up.",
    cite="Xilinx/brevitas PR#1591",
    link=BEHIND,
    mixing=lambda w, v, real: np.nan_to_num(w @ v),
)
ignore_padding.fault(
    "mask.real_nan_hidden",
    "You clear every NaN in the values, in real ones too. An error in the data then goes unseen.",
    why="Only what the mask hides may be cleared. A NaN in a real token is news.",
    hint="Which positions may be cleared? The mask says it.",
    hidden="no NaN in real tokens",
    link=BEHIND,
    mixing=lambda w, v, real: w @ np.nan_to_num(v, posinf=0.0, neginf=0.0),
)
ignore_padding.add(
    here(
        "mask.ignored",
        LATE,
        "You do not hide the scores of padded keys: they stay in the denominator, whatever becomes "
        "of their values.",
    ),
    here("mask.inverted", POLARITY),
    *(f for f in sdpa_mask.faults if f.id == "mask.queries_hidden"),
    *(f for f in SOFTMAX_FAULTS if f.id == "softmax.over_queries"),
)


@ignore_padding.solution
def ignore_padding_where(q, k, v, lengths):
    real = np.arange(k.shape[-2]) < lengths[:, None]  # (B, S)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    scores = np.where(real[:, None, None, :], scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = e / e.sum(-1, keepdims=True)
    return weights @ np.where(real[:, None, :, None], v, 0)


@ignore_padding.solution("the buffers cleared first")
def ignore_padding_cleared(q, k, v, lengths):
    real = (np.arange(k.shape[-2]) < lengths[:, None])[:, None, :, None]  # (B, 1, S, 1)
    k, v = np.where(real, k, 0), np.where(real, v, 0)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + np.where(real, 0, -np.inf).mT
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@ignore_padding.solution(shown=False)
def ignore_padding_cut(q, k, v, lengths):
    output = np.empty((*q.shape[:-1], v.shape[-1]))
    for b, n in enumerate(lengths):
        scores = q[b] @ k[b, :, :n].swapaxes(-1, -2) / q.shape[-1] ** 0.5
        e = np.exp(scores - scores.max(-1, keepdims=True))
        output[b] = e / e.sum(-1, keepdims=True) @ v[b, :, :n]
    return output


@ignore_padding.solution(backend="torch")
def ignore_padding_torch(q, k, v, lengths):
    import torch

    real = (torch.arange(k.shape[-2], device=k.device) < lengths[:, None])[:, None]  # (B, 1, S)
    k, v = k.masked_fill(~real[..., None], 0), v.masked_fill(~real[..., None], 0)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(~real[..., None, :], -torch.inf).softmax(-1) @ v


@ignore_padding.solution(backend="torch", shown=False)
def ignore_padding_torch_where(q, k, v, lengths):
    import torch

    real = (torch.arange(k.shape[-2], device=k.device) < lengths[:, None])[:, None, None]
    scores = torch.where(real, q @ k.mT * q.shape[-1] ** -0.5, -torch.inf)
    return scores.softmax(-1) @ torch.where(real.mT, v, 0.0)


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
    link=COMBINING,
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
    link=COMBINING,
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
    link=OFF_BY_ONE,
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
causal_attention.fault(
    "mask.padding_inverted",
    "You hide the real keys and keep the padding.",
    why="True means *may attend*, and the real keys are those before the length.",
    hint="Is key 0 real?",
    cite="lucidrains/halonet-pytorch#4",
    link=POLARITY,
    real=lambda j, n: j >= n,
)
causal_attention.fault(
    "mask.queries_hidden",
    "You hide padded queries: their rows are empty. It is keys that are to be hidden, from every "
    "query, and the rows stay.",
    why="Keys stand along the last axis of the mask. A padded query may stay: nobody reads it.",
    hint="Which axis of (B, 1, L, S) holds the keys?",
    hidden="no padding",
    cite="hyunwoongko/transformer PR#40; keras-team/keras-io PR#1254; tensorflow/tensorflow#60626",
    link=WRONG_AXIS,
    real=lambda j, n: j.swapaxes(-1, -2) < n,
)
causal_attention.fault(
    "mask.head_axis_missing",
    "Your padding mask lacks the head axis, so samples line up with heads.",
    why="Axes are matched from the back. Where B ≠ H that raises an error; where B = H every head "
    "gets another sample's padding.",
    hint="The mask has four axes: (B, 1, L, L).",
    hidden="B ≠ H raises an error",
    cite="lucidrains/vit-pytorch#71; ml-explore/mlx-lm PR#1903",
    link=WRONG_AXIS,
    real=lambda j, n: j < n[:, 0],
)
causal_attention.add(
    # With L = S the roots of both lengths are one mistake.
    *(f for f in SCALE_FAULTS if f.id not in ("scale.sqrt_queries", *RARE_SCALES)),
    SCALE_FIT,
    *(f for f in SOFTMAX_FAULTS if f.id.startswith(("softmax.over_q", "softmax.over_h", "scale"))),
    *HIDE_FAULTS,
    FILL_HERE,
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


# -- a chunk of queries against a cache ------------------------------------------------------------

cached_attention = Exercise(
    "masking.cached_attention",
    kind="implement",
    title="A chunk of queries against a cache",
    statement="""
Write `cached_attention(q, k, v, lengths)`: all five steps, for the last $L$ of $S$ positions, whose
earlier keys and values come from a cache. It returns two arrays, `(output, weights)`.

`q` is $(B, H, L, d_k)$, `k` is $(B, H, S, d_k)$, `v` is $(B, H, S, d_v)$, with $L \\le S$. The
**last query sits at the last of the $S$ keys**; a query sees its own position and earlier ones. Of
sample $b$ only the first `lengths[b]` keys are real, and a length may be 0. A query with nothing to
attend to gets zeros.
""",
    link=COMBINING,
    outputs=("output", "weights"),
    goals={
        **GOALS,
        "rule": "3 mask: nothing of the future",
        "corner": "3 mask: the last query sits at the last key",
        "padding": "3 mask: no padding",
        "combined": "3 mask: a key must be allowed by both masks",
    },
    backends=("numpy", "torch"),
    built_from=LIBRARY,
    hints=(
        "Build one boolean mask of shape (B, 1, L, S) first, and look at it.",
        "Then it is attention with a mask, as in chapter 04.",
    ),
    reason="Two comparisons of positions make the masks, *and* joins them, and from there on "
    "it is attention with any other mask.",
    question="Which rows of the weights are zero, and for which reason each?",
    properties=(rows_sum_to_one(1), future_does_not_leak("k", "v")),
)


@cached_attention.stub
def cached_attention_stub(q, k, v, lengths):
    """(output, weights) of q (B, H, L, d_k), k (B, H, S, d_k), v (B, H, S, d_v), lengths (B,).

    output (B, H, L, d_v), weights (B, H, L, S)
    """
    raise NotImplementedError


@cached_attention.inputs
def _(rng, B=3, H=2, L=5, S=6, d_k=7, d_v=9):
    L, S = min(L, S), max(L, S)  # the queries are the last of the positions
    q, k = tokens(rng, B, H, L, d_k, std=1.5), tokens(rng, B, H, S, d_k)
    lengths = some_lengths(rng, B, S)
    lengths[1:2] = 0 if B > 2 else lengths[1:2]  # nothing but padding
    return {"q": q, "k": k, "v": tokens(rng, B, H, S, d_v), "lengths": lengths}


cached_attention.probe("as many queries as keys", B=3, H=2, L=6, S=6, d_k=7, d_v=9)
cached_attention.probe("more keys than queries", B=3, H=2, L=3, S=8, d_k=5, d_v=6)
cached_attention.probe("as many heads as samples", B=3, H=3, L=5, S=5, d_k=6, d_v=2)


def padded_keys(lengths, L, S):
    return (np.arange(S) < lengths[:, None])[:, None, None, :]


@cached_attention.model
def _(
    q,
    k,
    v,
    lengths,
    *,
    rule=itself_and_before,
    corner=lambda L, S: S - L,
    padding=padded_keys,
    combined=np.logical_and,
    **switches,
):
    L, S = q.shape[-2], k.shape[-2]
    offset = corner(L, S)
    size = (S, S, 0) if offset == "not sliced" else (L, S, offset)
    mask = combined(rule(*positions(*size)), padding(lengths, L, S))
    return pipeline(q, k, v, mask, **switches)


FACTORS = (  # few, so that three mistakes at once are found in time; others are fitted
    "scale.forgotten",
    "scale.d_k",
    "scale.multiplied",
    "scale.sqrt_d_v",
)
LOWEST = np.finfo(np.float64).min

cached_attention.add(
    *(f for f in SCORES_FAULTS if f.id == "scores.key_reshaped"),
    *(f for f in SCALE_FAULTS if f.id in FACTORS),
    SCALE_FIT,
    *(f for f in SOFTMAX_FAULTS if f.id == "softmax.over_queries"),
    *HIDE_FAULTS,
    here("mask.mean_of_values", NOTHING),
    here("mask.nan_row", NOTHING),
    FILL_HERE,
    *RULE_FAULTS,
    *(f for f in sdpa_mask.faults if f.id == "mask.either_allows"),
)
cached_attention.fault(
    "mask.future_visible",
    "Your queries see the future: only the padding is hidden.",
    why="The second mask has overwritten the first, or the causal one was never made.",
    hint="Which keys may the first query see?",
    hidden="one query",
    cite="keras-team/keras-io PR#1046; facebookresearch/fairseq2 PR#59",
    link=COMBINING,
    rule=lambda i, j: np.ones(np.broadcast_shapes(i.shape, j.shape), dtype=bool),
)
cached_attention.fault(
    "mask.top_left",
    "Your first query sits at the first key (top-left); here the last one sits at the last key.",
    why="With a cache of S - L earlier keys, the first new query has all of those behind it. "
    "PyTorch's is_causal is top-left.",
    hint="Which keys should the last query see?",
    hidden="L = S",
    cite="pytorch/pytorch#144858; skyzh/tiny-llm 0c1ae4b; pytorch/executorch PR#21749",
    link=CORNERS,
    corner=lambda L, S: 0,
)
cached_attention.fault(
    "mask.dropped_on_a_path",
    "You apply the causal mask only where L = S. Several new queries then see each other's future.",
    why="One query against a cache needs no mask; a chunk of them does. Every branch has to hide "
    "the same keys.",
    hint="Does each path through your code make the mask?",
    hidden="L = S, or L = 1",
    cite="keras-team/keras#23038; facebookresearch/xformers#103; huggingface/transformers#48745",
    link=PATHS,
    corner=lambda L, S: 0 if L == S else S,
)
cached_attention.fault(
    "mask.not_sliced",
    "Your causal mask is S by S whatever the number of queries.",
    why="A mask kept for the longest sequence has to be cut to the rows of these queries.",
    hint="Which L rows of it belong to the queries of this call?",
    hidden="L = S",
    cite="facebookresearch/xformers PR#66; harvard-edge/cs249r_book PR#1875",
    link=CORNERS,
    corner=lambda L, S: "not sliced",
)
cached_attention.fault(
    "mask.padding_visible",
    "Your padding is not hidden: only the future is.",
    why="Padded keys take weight from the real ones, so a sample's result depends on how long "
    "the others in its batch are.",
    hint="Where does lengths enter your mask?",
    hidden="full sequences",
    link=PADDING,
    padding=lambda n, L, S: np.ones((len(n), 1, 1, S), dtype=bool),
)
cached_attention.fault(
    "mask.padding_inverted",
    "You hide the real keys and keep the padding.",
    why="True means *may attend*, and the real keys are those before the length.",
    hint="Is key 0 real?",
    cite="lucidrains/halonet-pytorch#4",
    link=POLARITY,
    padding=lambda n, L, S: ~padded_keys(n, L, S),
)
cached_attention.fault(
    "mask.padding_one_more",
    "Your mask lets one padded key through: position `length` is padding.",
    why="Positions count from 0, so the real ones are 0 to length - 1.",
    hint="How many keys are visible to the last query?",
    hidden="full sequences",
    link=OFF_BY_ONE,
    padding=lambda n, L, S: padded_keys(n + 1, L, S),
)
cached_attention.fault(
    "mask.queries_hidden",
    "You lay the padding on the query axis: it blanks padded queries, and padded keys are "
    "attended to.",
    why="Keys stand along the last axis of the mask. A padded query may stay: nobody reads it.",
    hint="Which axis of (B, 1, L, S) holds the keys?",
    hidden="no padding",
    cite="hyunwoongko/transformer PR#40; keras-team/keras-io PR#1254; tensorflow/tensorflow#60626",
    link=WRONG_AXIS,
    padding=lambda n, L, S: (np.arange(L) < n[:, None])[:, None, :, None],
)
cached_attention.fault(
    "mask.head_axis_missing",
    "Your padding mask lacks the head axis, so samples line up with heads.",
    why="Axes are matched from the back. Where B ≠ H that raises an error; where B = H every head "
    "gets another sample's padding.",
    hint="The mask has four axes: (B, 1, L, S).",
    hidden="B ≠ H raises an error",
    cite="lucidrains/vit-pytorch#71; ml-explore/mlx-lm PR#1903",
    link=WRONG_AXIS,
    padding=lambda n, L, S: padded_keys(n, L, S)[:, 0],
)
cached_attention.fault(
    "mask.two_minima_added",
    "You add two masks of the smallest finite number. Their sum overflows to -inf where both hide "
    "a key, and an empty row is spread over the keys that only one of them hides.",
    why="Combine booleans first and convert once.",
    hint="What is np.finfo(float).min + np.finfo(float).min?",
    hidden="every query may attend to something",
    cite="huggingface/transformers PR#27114; NVIDIA-NeMo/Automodel PR#2658; "
    "EleutherAI/gpt-neox PR#25",
    link=COMBINING,
    combined=lambda a, b: np.where(a, 0.0, LOWEST) + np.where(b, 0.0, LOWEST),
    hide=lambda s, m: s + m,
)


@cached_attention.solution
def cached_attention_numpy(q, k, v, lengths):
    L, S = q.shape[-2], k.shape[-2]
    causal = np.arange(S) <= np.arange(S - L, S)[:, None]  # (L, S)
    real = np.arange(S) < lengths[:, None]  # (B, S)
    mask = causal & real[:, None, None, :]  # (B, 1, L, S)
    scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5  # 1, 2 (B, H, L, S)
    e = np.exp(scores - scores.max(-1, keepdims=True)) * mask  # 3, 4
    total = e.sum(-1, keepdims=True)
    weights = e / np.where(total == 0, 1, total)
    return weights @ v, weights  # 5 mix (B, H, L, d_v)


@cached_attention.solution("with -inf, as the formula has it")
def cached_attention_where(q, k, v, lengths):
    L, S = q.shape[-2], k.shape[-2]
    mask = np.tri(L, S, S - L, dtype=bool) & (np.arange(S) < lengths[:, None, None, None])
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5, -np.inf)
    highest = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    weights = e / np.maximum(e.sum(-1, keepdims=True), 1e-300)
    return weights @ v, weights


@cached_attention.solution(shown=False)
def cached_attention_finite(q, k, v, lengths):
    L, S = q.shape[-2], k.shape[-2]
    hide = np.triu(np.ones((L, S)), S - L + 1) + (np.arange(S) >= lengths[:, None, None, None])
    scores = np.einsum("bhld,bhsd->bhls", q, k) / np.sqrt(q.shape[-1]) - 1e9 * hide
    e = np.exp(scores - scores.max(-1, keepdims=True))
    weights = np.where(hide > 0, 0, e / e.sum(-1, keepdims=True))
    return weights @ v, weights


@cached_attention.solution(shown=False)
def cached_attention_loops(q, k, v, lengths):
    L, S = q.shape[-2], k.shape[-2]
    weights = np.zeros((*q.shape[:-1], S))
    for b, h, i in np.ndindex(q.shape[:-1]):
        n = min(i + S - L + 1, lengths[b])
        if n > 0:
            scores = k[b, h, :n] @ q[b, h, i] / q.shape[-1] ** 0.5
            e = np.exp(scores - scores.max())
            weights[b, h, i, :n] = e / e.sum()
    return weights @ v, weights


@cached_attention.solution(backend="torch")
def cached_attention_torch(q, k, v, lengths):
    import torch

    L, S = q.shape[-2], k.shape[-2]
    j = torch.arange(S, device=q.device)
    mask = (j <= j[S - L :, None]) & (j < lengths[:, None, None, None])
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask, -1e9).softmax(-1).masked_fill(~mask, 0.0)
    return weights @ v, weights


@cached_attention.solution(backend="torch", shown=False)
def cached_attention_torch_exp(q, k, v, lengths):
    L, S = q.shape[-2], k.shape[-2]
    scores = q @ k.mT * q.size(-1) ** -0.5
    one = scores.new_ones(L, S)
    real = one.cumsum(-1) <= lengths[:, None, None, None]
    mask = real & one.bool().tril(S - L)
    e = (scores - scores.amax(-1, keepdim=True)).exp() * mask
    weights = e / e.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights @ v, weights


EXERCISES = (
    causal_mask,
    expose_top_left,
    padding_mask,
    from_torch_module,
    sdpa_mask,
    decoder_mask,
    window_count,
    window_mask,
    expose_window,
    packed_mask,
    leaked_weight,
    masked_softmax,
    empty_row,
    causal_attention,
    ignore_padding,
    cached_attention,
)
