"""Graded exercises of the chapter on multi-head attention."""

from __future__ import annotations

import numpy as np

from sdpa_course.formulas import transformer_parameters
from sdpa_course.grading.exercise import Exercise, Fit, Solution
from sdpa_course.grading.properties import rows_sum_to_one, stays_within

from .scaling import softmax, tokens

CHAPTER = "06-multihead"
WHOLE = f"{CHAPTER}#each-head-projects-the-whole-vector"
SPLIT = f"{CHAPTER}#split-and-merge"
OUTPUT = f"{CHAPTER}#the-output-projection"
COST = f"{CHAPTER}#what-heads-cost"
TABLE = f"{CHAPTER}#the-parameters-of-2017"
GROUPS = f"{CHAPTER}#fewer-key-and-value-heads"
NO_TRANSPOSE = f"{CHAPTER}#a-reshape-without-a-transpose"
NOT_BACK = f"{CHAPTER}#merged-without-transposing-back"
SLICED = f"{CHAPTER}#heads-sliced-from-the-embedding"
NO_OUTPUT = f"{CHAPTER}#no-output-projection"
REDUCED = f"{CHAPTER}#heads-averaged"
ACTIVATION = f"{CHAPTER}#an-activation-on-the-projections"
ROOT = f"{CHAPTER}#the-root-of-the-width"
BETWEEN = f"{CHAPTER}#attention-between-heads"
TILED = f"{CHAPTER}#key-value-heads-tiled"
AXIS = "02-scaling#softmax-over-the-wrong-axis"


def leading(B):
    """No batch axis for B = 1, so that one probe is a single sequence."""
    return (B,) if B > 1 else ()


# Ways to split and merge. x is (..., L, H·d), heads are (..., H, L, d).


def split_right(x, H):
    *lead, L, width = x.shape
    return x.reshape(*lead, L, H, width // H).swapaxes(-2, -3)


def split_by_reshape(x, H):
    *lead, L, width = x.shape
    return x.reshape(*lead, H, L, width // H)


def split_untransposed(x, H):
    *lead, L, width = x.shape
    return x.reshape(*lead, L, H, width // H)


def split_interleaved(x, H):
    *lead, L, width = x.shape
    return np.moveaxis(x.reshape(*lead, L, width // H, H), -1, -3)


def merge_right(heads):
    *lead, H, L, d = heads.shape
    return heads.swapaxes(-2, -3).reshape(*lead, L, H * d)


def merge_by_reshape(heads):
    *lead, H, L, d = heads.shape
    return heads.reshape(*lead, L, H * d)


def merge_interleaved(heads):
    *lead, H, L, d = heads.shape
    return np.moveaxis(heads, -3, -1).reshape(*lead, L, H * d)


# -- what a head sees ----------------------------------------------------------------------------

what_a_head_sees = Exercise(
    "multihead.what_a_head_sees",
    kind="quiz",
    title="What a head sees",
    statement="""
A layer has $d_\\text{model} = 512$ and 8 heads of $d_k = d_v = 64$. Of one token's 512 numbers,
only number 300 is changed. Which heads can change their query for this token?
""",
    link=WHOLE,
)
what_a_head_sees.option(
    "A",
    "Head 4 alone (counted from 0), which owns numbers 256 to 319.",
    "No head owns a part of the embedding. What is cut into eight parts is the *projected* vector,"
    " and each of its numbers is a sum over all 512.",
)
what_a_head_sees.option(
    "B",
    "All eight.",
    "Yes. Each head has a matrix of its own, 512 × 64, and multiplies the whole vector with it.",
    right=True,
)
what_a_head_sees.option(
    "C",
    "None before the output projection, which is where heads mix.",
    "W_O mixes what heads return. What they read was mixed before: each column of W_Q is a sum"
    " over all 512 numbers.",
)
what_a_head_sees.option(
    "D",
    "All eight, but only after training: with fresh weights, head 4 alone.",
    "Fresh weights are dense too. A block-diagonal W_Q would make it head 4 alone; nobody"
    " initialises one.",
)


# -- split ---------------------------------------------------------------------------------------

split_heads = Exercise(
    "multihead.split_heads",
    kind="implement",
    title="Split into heads",
    statement="""
Write `split_heads(x, n_heads)`: `x` is $(\\dots, L, H d)$, already projected; the result is
$(\\dots, H, L, d)$. Head $h$ gets features $hd$ to $(h+1)d - 1$ of every token.

There may be a batch axis, or none.
""",
    link=SPLIT,
    goals={"split": "every head gets its own features of every token"},
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.multihead.split_heads",
        "sdpa_course.with_torch.multihead.split_heads",
    ),
    hints=(
        "Cut the last axis in two first, and look at the shape. Which two axes are then in the"
        " wrong order?",
    ),
    reason="A reshape may cut the last axis into (H, d), because the features of one head lie"
    " side by side in memory. To bring H before L, numbers have to change places, and only a"
    " transpose does that.",
    question="For which L or H would a single reshape give the same?",
    next="Merge them again.",
)


@split_heads.stub
def split_heads_stub(x, n_heads):
    """x (..., L, H·d) → (..., H, L, d)"""
    raise NotImplementedError


@split_heads.inputs
def _(rng, B=2, H=3, L=5, d=7):
    return {"x": tokens(rng, *leading(B), L, H * d), "n_heads": H}


split_heads.probe("one sequence, no batch", B=1, H=3, L=2, d=5)
split_heads.probe("a batch", B=2, H=3, L=5, d=7)
split_heads.probe("as many heads as samples", B=3, H=3, L=4, d=2)


@split_heads.model
def _(x, n_heads, *, split=split_right):
    return split(x, n_heads)


split_heads.fault(
    "head.view_without_transpose",
    "You reshape straight to (…, H, L, d). The shape is right, the numbers are not: your first"
    " head holds the first tokens with all their features.",
    why="A reshape keeps the order in memory, in which the features of one token lie together."
    " Each of your heads becomes a slab of tokens.",
    hint="Print x with its numbers counted up, np.arange(L * H * d). Which of them should head 0"
    " hold?",
    hidden="H = 1 or L = 1",
    cite="reczoo/FuxiCTR#30; bentrevett/pytorch-seq2seq#148; hyunwoongko/transformer#15",
    link=NO_TRANSPOSE,
    split=split_by_reshape,
)
split_heads.fault(
    "head.length_before_heads",
    "You return (…, L, H, d): cut, but the heads still come after length.",
    why="Attention works on the last two axes. It would compare the heads of one token with each"
    " other.",
    hint="Two axes are in the wrong order.",
    link=BETWEEN,
    split=split_untransposed,
)
split_heads.fault(
    "head.interleaved",
    "You deal the features out like cards: head h gets features h, h+H, h+2H, …; asked for is a"
    " run of d features for each head.",
    why="With weights that somebody else trained, each head would get another head's columns.",
    hint="Which of H and d comes first when the last axis is cut?",
    hidden="weights that are trained from scratch with the same function",
    link=SPLIT,
    split=split_interleaved,
)
split_heads.fault(
    "head.size_and_number_swapped",
    "You take n_heads for the size of a head: the result has d heads of size H.",
    why="x.reshape(…, L, -1, n_heads) puts H last.",
    hint="Which of the two new axes is counted by n_heads?",
    hidden="H = d, by its shape alone",
    link=SPLIT,
    split=lambda x, H: split_right(x, x.shape[-1] // H),
)
split_heads.fault(
    "head.axes_from_front",
    "You swap axes 1 and 2. Without a batch these are H and d, not L and H.",
    why="Counted from the front, an axis moves when a batch axis comes or goes.",
    hint="Count the axes from the back.",
    hidden="a batch axis in front",
    link=SPLIT,
    split=lambda x, H: split_untransposed(x, H).swapaxes(1, 2),
)
split_heads.fault(
    "head.heads_before_batch",
    "Heads come first in your result, before the batch: (H, …, L, d).",
    why="Asked for is (…, H, L, d). np.split and np.stack put the new axis in front unless told"
    " otherwise.",
    hint="Which axis should the stacked heads stand on?",
    hidden="no batch axis",
    link=SPLIT,
    split=lambda x, H: np.moveaxis(split_right(x, H), -3, 0),
)
split_heads.fault(
    "head.features_before_length",
    "You return (…, H, d, L): each head is transposed.",
    why="In attention, tokens are rows and features are columns.",
    hint="Which two axes have to be swapped after the cut, and which must stay last?",
    hidden="L = d, by its shape alone",
    link=SPLIT,
    split=lambda x, H: split_right(x, H).swapaxes(-1, -2),
)
split_heads.fault(
    "head.in_reverse",
    "Your heads are in reverse order.",
    hint="Head 0 gets the first d features.",
    link=SPLIT,
    split=lambda x, H: np.flip(split_right(x, H), -3),
)


@split_heads.solution
def split_heads_solution(x, n_heads):
    *lead, L, width = x.shape
    x = x.reshape(*lead, L, n_heads, width // n_heads)  # (..., L, H, d)
    return x.swapaxes(-2, -3)  # (..., H, L, d)


@split_heads.solution("One slice for each head, stacked.")
def split_heads_stacked(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-1), axis=-3)


@split_heads.solution(shown=False)
def split_heads_loop(x, n_heads):
    d = x.shape[-1] // n_heads
    heads = np.empty((*x.shape[:-2], n_heads, x.shape[-2], d))
    for h in range(n_heads):
        heads[..., h, :, :] = x[..., h * d : (h + 1) * d]
    return heads


@split_heads.solution(shown=False)
def split_heads_einsum(x, n_heads):
    return np.einsum("...lhd->...hld", x.reshape(*x.shape[:-1], n_heads, -1))


@split_heads.solution(backend="torch")
def split_heads_torch(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(-2, -3)


@split_heads.solution(backend="torch", shown=False)
def split_heads_torch_chunks(x, n_heads):
    import torch

    return torch.stack(x.chunk(n_heads, dim=-1), dim=-3)


# -- merge ---------------------------------------------------------------------------------------

merge_heads = Exercise(
    "multihead.merge_heads",
    kind="fix",
    title="Fix a merge",
    statement="""
`merge_heads(heads)` should undo the split: `heads` is $(\\dots, H, L, d)$, and the result
$(\\dots, L, H d)$ has the heads of one token side by side in its row. The function below returns
the right shape, and a model trained with it learned something. Repair it.
""",
    link=NOT_BACK,
    goals={"merge": "one token's heads side by side in its row"},
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.multihead.merge_heads",
        "sdpa_course.with_torch.multihead.merge_heads",
    ),
    hints=("Let heads be np.arange(H * L * d).reshape(H, L, d). What should row 0 hold?",),
    reason="In memory, (H, L, d) holds all tokens of head 0, then all of head 1. To put one"
    " token's heads side by side, L has to come before H first.",
    question="The function was given a batch with L = 1 in its test. Why did it pass?",
)


@merge_heads.stub
def merge_heads_stub(heads):
    """heads (..., H, L, d) → (..., L, H·d)"""
    *lead, H, L, d = heads.shape
    return heads.reshape(*lead, L, H * d)


@merge_heads.inputs
def _(rng, B=2, H=3, L=5, d=7):
    return {"heads": tokens(rng, *leading(B), H, L, d)}


merge_heads.probe("one sequence, no batch", B=1, H=3, L=2, d=5)
merge_heads.probe("a batch", B=2, H=3, L=5, d=7)
merge_heads.probe("as many heads as samples", B=3, H=3, L=4, d=2)


@merge_heads.model
def _(heads, *, merge=merge_right):
    return merge(heads)


merge_heads.fault(
    "head.merge_without_transpose",
    "You merge without transposing back: each row of your result holds several tokens of one head"
    " and not several heads of one token.",
    why="The shape is right because L·(H·d) numbers fit however they are ordered. Token i's row"
    " then carries what other tokens attended to.",
    hint="Which axis must stand before which, so that a reshape joins H and d?",
    hidden="H = 1 or L = 1",
    cite="jsbaan/transformer-from-scratch PR#6; ajhalthor/Transformer-Neural-Network#8;"
    " meta-pytorch/opacus PR#825",
    link=NOT_BACK,
    merge=merge_by_reshape,
)
merge_heads.fault(
    "head.interleaved",
    "You interleave: feature 0 of every head, then feature 1 of every head. Asked for are all of"
    " head 0, then all of head 1.",
    why="The rows of W_O belong to heads in runs of d.",
    hint="Which of H and d comes last before the reshape?",
    link=SPLIT,
    merge=merge_interleaved,
)
merge_heads.fault(
    "head.wrong_pair_transposed",
    "You swap the last two axes. L and H have to change places, not L and d.",
    why="The reshape then joins L with the heads, as before.",
    hint="Count the axes from the back: d is -1, L is -2, H is -3.",
    link=NOT_BACK,
    merge=lambda heads: merge_by_reshape_to(heads.swapaxes(-1, -2), heads.shape),
)
merge_heads.fault(
    "head.axes_from_front",
    "You swap axes 1 and 2. Without a batch these are L and d.",
    why="Counted from the front, an axis moves when a batch axis comes or goes.",
    hint="Count the axes from the back.",
    hidden="a batch axis in front",
    link=NOT_BACK,
    merge=lambda heads: merge_by_reshape_to(heads.swapaxes(1, 2), heads.shape),
)
merge_heads.fault(
    "head.not_merged",
    "You return (…, L, H, d): transposed back, but the last two axes are not joined.",
    hint="One reshape is missing.",
    link=SPLIT,
    merge=lambda heads: heads.swapaxes(-2, -3),
)
merge_heads.fault(
    "head.mean_over_heads",
    "You average the heads; they should stand side by side.",
    why="An average leaves d numbers of H·d, and no head can be told from another.",
    hint="The result has H·d features.",
    hidden="H = 1",
    cite="broadinstitute/CellCap#40",
    link=REDUCED,
    merge=lambda heads: heads.mean(-3),
)
merge_heads.fault(
    "head.max_over_heads",
    "You take the maximum over the heads; they should stand side by side.",
    why="A maximum leaves d numbers of H·d, and the head they came from is forgotten.",
    hint="The result has H·d features.",
    hidden="H = 1",
    cite="broadinstitute/CellCap#40",
    link=REDUCED,
    merge=lambda heads: heads.max(-3),
)
merge_heads.fault(
    "head.sum_over_heads",
    "You add the heads up; they should stand side by side.",
    why="Heads are added only after W_O has given each a matrix of its own.",
    hint="The result has H·d features.",
    hidden="H = 1",
    link=REDUCED,
    merge=lambda heads: heads.sum(-3),
)
merge_heads.fault(
    "head.joined_along_length",
    "You put the heads one after the other along length: (…, H·L, d).",
    why="Length is the number of tokens, and merging makes no new tokens.",
    hint="On which axis should they be joined?",
    link=NOT_BACK,
    merge=lambda heads: heads.reshape(*heads.shape[:-3], -1, heads.shape[-1]),
)
merge_heads.fault(
    "head.in_reverse",
    "Your heads are in reverse order.",
    hint="The first d features are those of head 0.",
    link=SPLIT,
    merge=lambda heads: merge_right(np.flip(heads, -3)),
)


def merge_by_reshape_to(heads, shape):
    *lead, H, L, d = shape
    return heads.reshape(*lead, L, H * d)


@merge_heads.solution
def merge_heads_solution(heads):
    *lead, H, L, d = heads.shape
    return heads.swapaxes(-2, -3).reshape(*lead, L, H * d)


@merge_heads.solution("Side by side, literally.")
def merge_heads_concatenated(heads):
    return np.concatenate([heads[..., h, :, :] for h in range(heads.shape[-3])], axis=-1)


@merge_heads.solution(shown=False)
def merge_heads_einsum(heads):
    tokens_first = np.einsum("...hld->...lhd", heads)
    return tokens_first.reshape(*tokens_first.shape[:-2], -1)


@merge_heads.solution(backend="torch")
def merge_heads_torch(heads):
    return heads.transpose(-2, -3).flatten(-2)


@merge_heads.solution(backend="torch", shown=False)
def merge_heads_torch_contiguous(heads):
    *lead, H, L, d = heads.shape
    return heads.transpose(-2, -3).contiguous().view(*lead, L, H * d)


# -- one head at a time --------------------------------------------------------------------------

heads_one_by_one = Exercise(
    "multihead.heads_one_by_one",
    kind="parsons",
    title="One head at a time",
    statement="""
Put lines in order to make `heads_one_by_one(x, W_q, W_k, W_v, W_o)`, multi-head attention as the
2017 paper writes it: $\\text{head}_h = \\text{attention}(x W_Q^h, x W_K^h, x W_V^h)$, the heads
side by side, times $W_O$.

Each head has its own matrices: `W_q` and `W_k` are $(H, d_\\text{model}, d_k)$, `W_v` is
$(H, d_\\text{model}, d_v)$; `W_o` is $(H d_v, d_\\text{model})$. Not every line is needed. Set
`heads_one_by_one` to the letters, as in `"ABC"`.
""",
    link=WHOLE,
    header="def heads_one_by_one(x, W_q, W_k, W_v, W_o):\n"
    "    from sdpa_course.with_numpy import scaled_dot_product_attention as attention\n",
    lines={
        "A": "for W_Q, W_K, W_V in zip(W_q, W_k, W_v):",
        "B": "return np.concatenate(heads, axis=-1) @ W_o",
        "C": "    heads.append(attention(x @ W_Q, x @ W_K, x @ W_V))",
        "D": "return np.concatenate(heads, axis=-1)",
        "E": "heads = []",
        "F": "    heads.append(attention(x @ W_q[0], x @ W_k[0], x @ W_v[0]))",
        "G": "return np.stack(heads, axis=-1).reshape(*x.shape[:-1], -1) @ W_o",
        "H": "    heads.append(attention(x @ W_Q, x @ W_Q, x @ W_V))",
    },
    hints=("Four lines are needed: a list, a loop, one head, and what becomes of all of them.",),
    reason="The loop and the fused form with one large matrix and a split are the same function:"
    " the columns of the large matrix are those of the heads, side by side.",
    question="What would the loop cost, and why does nobody write it so in a model?",
    properties=(),
)


@heads_one_by_one.inputs
def _(rng, B=2, H=3, L=5, d_model=11, d_k=7, d_v=6):
    return {
        "x": tokens(rng, *leading(B), L, d_model),
        "W_q": tokens(rng, H, d_model, d_k, std=1.5 / d_model**0.5),
        "W_k": tokens(rng, H, d_model, d_k, std=1.5 / d_model**0.5),
        "W_v": tokens(rng, H, d_model, d_v, std=d_model**-0.5),
        "W_o": tokens(rng, H * d_v, d_model, std=(H * d_v) ** -0.5),
    }


heads_one_by_one.probe("one sequence, no batch", B=1, H=2, L=3, d_model=5, d_k=3, d_v=6)
heads_one_by_one.probe("a batch", B=2, H=3, L=5, d_model=11, d_k=7, d_v=6)


@heads_one_by_one.model
def _(x, W_q, W_k, W_v, W_o):
    x = x[..., None, :, :]  # (..., 1, L, d_model)
    scores = (x @ W_q) @ (x @ W_k).swapaxes(-1, -2) / W_q.shape[-1] ** 0.5
    return merge_right(softmax(scores) @ (x @ W_v)) @ W_o


heads_one_by_one.order(
    "head.no_output_projection",
    "EACD",
    "You return the heads side by side, without the output projection.",
    why="Without W_O each head writes to its own features, and no head's result can meet"
    " another's.",
    hint="What stands after the concatenation in the formula?",
    cite="Kyubyong/transformer#117; d2l-ai/d2l-en PR#439",
    link=NO_OUTPUT,
)
heads_one_by_one.order(
    "head.same_projection",
    "EAFB",
    "All your heads use the matrices of head 0, so all of them are the same.",
    why="Heads differ only by their matrices.",
    hint="Which line of the loop uses what the loop hands it?",
    hidden="H = 1",
    link=WHOLE,
)
heads_one_by_one.order(
    "head.interleaved",
    "EACG",
    "You stack the heads on the last axis and flatten: feature 0 of every head, then feature 1."
    " W_O expects all of head 0 first.",
    why="The rows of W_O belong to heads in runs of d_v.",
    hint="What is side by side: heads, or features?",
    link=SPLIT,
)
heads_one_by_one.order(
    "head.keys_from_query_matrix",
    "EAHB",
    "You make the keys with the query's matrix. Scores become symmetric: token i scores j as j"
    " scores i.",
    why="Asking and being found are two roles, with a matrix each.",
    hint="Three matrices, three uses.",
    link=WHOLE,
)
heads_one_by_one.solutions += [
    Solution("EACB", "A list, a loop, and the projection of what it gathered."),
]


# -- the output projection -----------------------------------------------------------------------

mix_heads = Exercise(
    "multihead.mix_heads",
    kind="implement",
    title="The output projection",
    statement="""
Write `mix_heads(heads, W_o)`: the last step of multi-head attention. `heads` is
$(\\dots, H, L, d_v)$; each token's heads stand side by side, head 0 first, and are multiplied with
`W_o`, $(H d_v, d_\\text{model})$. The result is $(\\dots, L, d_\\text{model})$.
""",
    link=OUTPUT,
    goals={
        "merge": "one token's heads side by side",
        "project": "W_o turns them into one vector of the model",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.multihead.merge_heads",
        "sdpa_course.with_torch.multihead.merge_heads",
    ),
    hints=("Rows h·d_v to (h+1)·d_v - 1 of W_o belong to head h.",),
    reason="Side by side and times W_o is a sum over heads, each with its own block of rows:"
    " Σ_h head_h W_o^h. Heads are added, after each was given a matrix.",
    question="Which rows of W_o would you set to zero to switch head 2 off?",
)


@mix_heads.stub
def mix_heads_stub(heads, W_o):
    """heads (..., H, L, d_v), W_o (H·d_v, d_model) → (..., L, d_model)"""
    raise NotImplementedError


@mix_heads.inputs
def _(rng, B=2, H=3, L=5, d_v=7, d_model=11):
    W_o = tokens(rng, H * d_v, d_model, std=(H * d_v) ** -0.5)
    return {"heads": tokens(rng, *leading(B), H, L, d_v), "W_o": W_o}


mix_heads.probe("one sequence, no batch", B=1, H=3, L=2, d_v=5, d_model=7)
mix_heads.probe("a batch", B=2, H=3, L=5, d_v=7, d_model=11)
mix_heads.probe("as many heads as samples", B=3, H=3, L=6, d_v=2, d_model=5)


def projected_blocks(merged, W_o, H):
    """Each head's part of the output: (H, ..., L, d_model)."""
    d = merged.shape[-1] // H
    cuts = [slice(h * d, (h + 1) * d) for h in range(H)]
    return np.stack([merged[..., cut] @ W_o[cut] for cut in cuts])


def project_right(merged, W_o, H):
    return merged @ W_o


@mix_heads.model
def _(heads, W_o, *, merge=merge_right, project=project_right):
    return project(merge(heads), W_o, heads.shape[-3])


def add_wrong_merges(exercise: Exercise) -> None:
    """Wrong ways to put the heads side by side, as settings of `merge`."""
    exercise.fault(
        "head.merge_without_transpose",
        "You merge without transposing back: each row holds several tokens of one head and not"
        " several heads of one token.",
        why="L·(H·d) numbers fit the shape however they are ordered. Token i's row then carries"
        " what other tokens attended to.",
        hint="Which axis must stand before which, so that a reshape joins H and d?",
        hidden="H = 1 or L = 1",
        cite="jsbaan/transformer-from-scratch PR#6; ajhalthor/Transformer-Neural-Network#8;"
        " meta-pytorch/opacus PR#825",
        link=NOT_BACK,
        merge=merge_by_reshape,
    )
    exercise.fault(
        "head.merged_interleaved",
        "You merge feature by feature: feature 0 of every head, then feature 1. W_o expects all of"
        " head 0 first.",
        why="The rows of W_o belong to heads in runs of d_v.",
        hint="Which of H and d comes last before the reshape?",
        link=SPLIT,
        merge=merge_interleaved,
    )


def add_wrong_outputs(exercise: Exercise) -> None:
    """Wrong ways to project the merged heads, as settings of `project`."""
    exercise.fault(
        "head.no_output_projection",
        "You return the heads side by side; the output projection W_o is missing.",
        why="Without W_o each head writes to its own features, and no head's result can meet"
        " another's.",
        hint="One product is missing.",
        hidden="W_o the identity",
        cite="Kyubyong/transformer#117; d2l-ai/d2l-en PR#439; hyunwoongko/transformer@91368af",
        link=NO_OUTPUT,
        project=lambda merged, W_o, H: merged,
    )
    exercise.fault(
        "head.mean_over_heads",
        "You average over the heads; W_o adds them up, each with its own rows. Your output is H"
        " times too small.",
        why="Side by side times W_o is a sum over heads. An average makes the output depend on how"
        " many heads there are.",
        hint="Compare the size of your output with that of the right one.",
        hidden="H = 1",
        cite="broadinstitute/CellCap#40",
        link=REDUCED,
        project=lambda merged, W_o, H: merged @ W_o / H,
    )
    exercise.fault(
        "head.max_over_heads",
        "You take the maximum over the heads; W_o adds them up.",
        why="A maximum throws away all heads but one at each feature.",
        hint="What does a matrix product do with the blocks of its sum?",
        hidden="H = 1",
        cite="broadinstitute/CellCap#40",
        link=REDUCED,
        project=lambda merged, W_o, H: projected_blocks(merged, W_o, H).max(0),
    )
    exercise.fault(
        "head.activation_on_output",
        "There is an activation (ReLU) after W_o: your output has no negative number.",
        why="Projections in attention are linear maps. What is cut off here never reaches the"
        " residual stream.",
        hint="Look at the smallest number you return.",
        cite="Kyubyong/transformer PR#17",
        link=ACTIVATION,
        project=lambda merged, W_o, H: np.maximum(merged @ W_o, 0),
    )


add_wrong_merges(mix_heads)
add_wrong_outputs(mix_heads)
mix_heads.fault(
    "head.same_rows_of_w_o",
    "You multiply every head with the first d_v rows of W_o; each head has rows of its own.",
    why="With the same rows the heads can no longer be told apart: they are simply added.",
    hint="Rows h·d_v to (h+1)·d_v - 1 belong to head h.",
    hidden="H = 1",
    link=OUTPUT,
    project=lambda merged, W_o, H: merged @ np.tile(W_o[: len(W_o) // H], (H, 1)),
)


@mix_heads.solution
def mix_heads_solution(heads, W_o):
    *lead, H, L, d_v = heads.shape
    merged = heads.swapaxes(-2, -3).reshape(*lead, L, H * d_v)  # (..., L, H·d_v)
    return merged @ W_o  # (..., L, d_model)


@mix_heads.solution("A sum over heads: the same thing.")
def mix_heads_sum(heads, W_o):
    H, d_v = heads.shape[-3], heads.shape[-1]
    blocks = W_o.reshape(H, d_v, -1)  # (H, d_v, d_model)
    return (heads @ blocks).sum(axis=-3)  # (..., L, d_model)


@mix_heads.solution(shown=False)
def mix_heads_einsum(heads, W_o):
    blocks = W_o.reshape(heads.shape[-3], heads.shape[-1], -1)
    return np.einsum("...hld,hdm->...lm", heads, blocks)


@mix_heads.solution(shown=False)
def mix_heads_loop(heads, W_o):
    d = heads.shape[-1]
    output = 0.0
    for h in range(heads.shape[-3]):
        output = output + heads[..., h, :, :] @ W_o[h * d : (h + 1) * d]
    return output


@mix_heads.solution(backend="torch")
def mix_heads_torch(heads, W_o):
    return heads.transpose(-2, -3).flatten(-2) @ W_o


@mix_heads.solution(backend="torch", shown=False)
def mix_heads_torch_sum(heads, W_o):
    return (heads @ W_o.unflatten(0, (heads.shape[-3], -1))).sum(-3)


# -- the whole layer -----------------------------------------------------------------------------

multi_head_attention = Exercise(
    "multihead.multi_head_attention",
    kind="implement",
    outputs=("output", "weights"),
    title="Multi-head attention",
    statement="""
Write `multi_head_attention(x, W_q, W_k, W_v, W_o, n_heads)`: project, split, attend, merge,
project. Return two arrays, `(output, weights)`:

- output is $(B, L, d_\\text{model})$,
- weights are $(B, H, L, L)$: a matrix for each head, rows of which sum to 1.

`x` is $(B, L, d_\\text{model})$; `W_q` and `W_k` are $(d_\\text{model}, H d_k)$, `W_v` is
$(d_\\text{model}, H d_v)$, `W_o` is $(H d_v, d_\\text{model})$. Head $h$ has columns $h d_k$ to
$(h+1) d_k - 1$. $d_k$ need not be $d_\\text{model}/H$. There is no mask and no bias.
""",
    link=f"{CHAPTER}#the-code",
    goals={
        "project": "project: every head its own map of the whole vector",
        "roles": "project: queries, keys and values each with their own matrix",
        "split": "split: one head's features of every token",
        "key": "1 scores: every query meets every key",
        "factor": "2 scale: by one over the root of d_k",
        "axis": "4 softmax: over the keys",
        "merge": "merge: one token's heads side by side",
        "output": "project: W_o turns them into one vector of the model",
        "returned": "the output, and the weights of each head",
    },
    backends=("numpy", "torch"),
    built_from=(
        "sdpa_course.with_numpy.multihead.multi_head_attention",
        "sdpa_course.with_torch.multihead.multi_head_attention",
        "torch.nn.functional.multi_head_attention_forward",
    ),
    hints=(
        "Five lines: project, split, attend, merge, project. Write the shape at the end of each.",
        "Take d_k from the query after the split, not from d_model.",
    ),
    reason="Every head is attention with its own projection of the whole vector. The reshape only"
    " puts the columns of all heads into one matrix product.",
    question="Which line would change if there were fewer key and value heads than query heads?",
    next="What this costs, and how 2017 counted its parameters.",
    properties=(rows_sum_to_one(part=1), stays_within(0, ["x"], "sample")),
)


@multi_head_attention.stub
def multi_head_attention_stub(x, W_q, W_k, W_v, W_o, n_heads):
    """(output, weights) of x (B, L, d_model), heads attending side by side.

    W_q, W_k (d_model, H·d_k), W_v (d_model, H·d_v), W_o (H·d_v, d_model)
    output (B, L, d_model), weights (B, H, L, L)
    """
    raise NotImplementedError


@multi_head_attention.inputs
def _(rng, B=2, H=3, L=5, d=4, d_k=7, d_v=6):
    d_model = H * d  # a multiple of H, so that slicing the embedding would run
    return {
        "x": tokens(rng, B, L, d_model),
        "W_q": tokens(rng, d_model, H * d_k, std=1.5 / d_model**0.5),
        "W_k": tokens(rng, d_model, H * d_k, std=1.5 / d_model**0.5),
        "W_v": tokens(rng, d_model, H * d_v, std=d_model**-0.5),
        "W_o": tokens(rng, H * d_v, d_model, std=(H * d_v) ** -0.5),
        "n_heads": H,
    }


multi_head_attention.probe("a small layer", B=2, H=3, L=5, d=2, d_k=7, d_v=11)
multi_head_attention.probe("another size", B=3, H=2, L=6, d=5, d_k=3, d_v=7)
multi_head_attention.probe("as many heads as samples", B=3, H=3, L=4, d=5, d_k=6, d_v=2)


def projected(x, W, H):
    return x @ W


def projected_slices(x, W, H):
    """Head h sees only its slice of the embedding: W with everything but its diagonal blocks."""
    kept = np.kron(np.eye(H), np.ones((W.shape[0] // H, W.shape[1] // H)))
    return x @ (W * kept)


def transposed(k):
    return k.swapaxes(-1, -2)


@multi_head_attention.model
def _(
    x,
    W_q,
    W_k,
    W_v,
    W_o,
    n_heads,
    *,
    project=projected,
    roles=lambda W_q, W_k: (W_q, W_k),
    split=split_right,
    key=transposed,
    factor=lambda x, q, v: q.shape[-1] ** -0.5,
    axis=-1,
    merge=merge_right,
    output=project_right,
    returned=lambda output, weights: (output, weights),
):
    W_q, W_k = roles(W_q, W_k)
    q, k, v = (split(project(x, W, n_heads), n_heads) for W in (W_q, W_k, W_v))
    scores = (q @ key(k)) * factor(x, q, v)
    weights = scores if axis == "none" else softmax(scores, axis)
    return returned(output(merge(weights @ v), W_o, n_heads), weights)


multi_head_attention.fault(
    "head.sliced_embedding",
    "Each of your heads sees only its own slice of the embedding. Every head projects the whole"
    " vector.",
    why="Heads divide the *projected* vector among them. A head that sees d_model/H numbers of a"
    " token is blind to the rest, and you use one part in H of W_q, W_k and W_v.",
    hint="Change number 0 of one token. Should head 1 notice?",
    hidden="H = 1, or block-diagonal matrices",
    link=SLICED,
    project=projected_slices,
)
multi_head_attention.fault(
    "head.activation_on_projections",
    "There is an activation (ReLU) on your queries, keys and values: none has a negative number.",
    why="Scores of non-negative vectors are never negative, and values can only add.",
    hint="Projections in attention are linear maps.",
    cite="Kyubyong/transformer PR#17",
    link=ACTIVATION,
    project=lambda x, W, H: np.maximum(x @ W, 0),
)
multi_head_attention.fault(
    "head.query_and_key_swapped",
    "You make queries with W_k and keys with W_q: your scores are transposed.",
    why="Row i then says who looks for token i, and not what token i looks for. With weights"
    " learned from scratch it would not matter; with given ones it does.",
    hint="Which matrix belongs to the token that asks?",
    hidden="W_q = W_k, or training from scratch",
    link=WHOLE,
    roles=lambda W_q, W_k: (W_k, W_q),
)
multi_head_attention.fault(
    "head.keys_from_query_matrix",
    "You use W_q for the keys as well; W_k is not used.",
    why="Scores become symmetric: token i scores j as j scores i.",
    hint="Three matrices, three uses.",
    hidden="W_q = W_k",
    link=WHOLE,
    roles=lambda W_q, W_k: (W_q, W_q),
)
multi_head_attention.fault(
    "head.queries_from_key_matrix",
    "You use W_k for the queries as well; W_q is not used.",
    why="Scores become symmetric: token i scores j as j scores i.",
    hint="Three matrices, three uses.",
    hidden="W_q = W_k",
    link=WHOLE,
    roles=lambda W_q, W_k: (W_k, W_k),
)
multi_head_attention.fault(
    "head.view_without_transpose",
    "You split by a reshape to (…, H, L, d) without a transpose: each of your heads is a slab of"
    " tokens and not a part of every token.",
    why="A reshape keeps the order in memory, in which the features of one token lie together.",
    hint="Split np.arange(L * H * d) and look at head 0.",
    hidden="H = 1 or L = 1",
    cite="reczoo/FuxiCTR#30; bentrevett/pytorch-seq2seq#148; hyunwoongko/transformer#15",
    link=NO_TRANSPOSE,
    split=split_by_reshape,
)
multi_head_attention.fault(
    "head.interleaved",
    "You deal the features out like cards: head h gets columns h, h+H, h+2H, …; its columns are a"
    " run of d_k.",
    why="With given weights, each head is then made of other heads' columns.",
    hint="Which of H and d comes first when the last axis is cut?",
    hidden="training from scratch",
    link=SPLIT,
    split=split_interleaved,
)
multi_head_attention.fault(
    "head.attends_across_heads",
    "The heads stand after length when you attend, (…, L, H, d): each token's heads attend to each"
    " other, and tokens never meet.",
    why="Attention works on the last two axes. No shape complains, as the output's shape is right.",
    hint="Print the shape of your weights. How many keys are there?",
    hidden="never by the output's shape",
    cite="layout notes in NVIDIA/cudnn-frontend#94",
    link=BETWEEN,
    split=split_untransposed,
    merge=lambda heads: heads.reshape(*heads.shape[:-2], -1),
)
multi_head_attention.fault(
    "scores.key_reshaped",
    "You reshape k to (…, d_k, L) where it must be transposed: the numbers of one key end up in"
    " several columns.",
    why="A reshape keeps the order in memory and only cuts it at other places.",
    hint="Swap the last two axes.",
    hidden="never by its shape",
    cite="hyunwoongko/transformer, first versions",
    link="01-dot_product",
    key=lambda k: k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]),
)
for id, factor, says, why, hint, hidden, cite in (
    (
        "scale.forgotten",
        lambda x, q, v: 1.0,
        "Your scores are not scaled.",
        "A score is a sum of d_k products, so its standard deviation is √d_k.",
        "Step 2 is missing.",
        "d_k = 1",
        "huggingface/blog PR#2893",
    ),
    (
        "scale.sqrt_d_model",
        lambda x, q, v: x.shape[-1] ** -0.5,
        "You divide by √d_model; each score was summed over the d_k numbers of one head.",
        "With d_k = d_model/H your scores are √H times too small. The model trains, only flatter.",
        "How many products does one score of one head add up?",
        "H = 1",
        "lucidrains/vit-pytorch#65; karpathy/ng-video-lecture PR#6; pbloem/former@0b15530",
    ),
    (
        "scale.sqrt_all_heads",
        lambda x, q, v: (q.shape[-3] * q.shape[-1]) ** -0.5,
        "You divide by √(H·d_k), the root of all columns of W_q; each score was summed over the"
        " d_k of one head.",
        "The width before the split is not the width of a head.",
        "Take the size after the split.",
        "H = 1",
        "lucidrains/vit-pytorch#65",
    ),
    (
        "scale.sqrt_d_model_over_heads",
        lambda x, q, v: (x.shape[-1] // q.shape[-3]) ** -0.5,
        "You divide by √(d_model/H). A head's size is what W_q gives it, and here that is not"
        " d_model/H.",
        "d_k = d_model/H is a habit, not a law: the paper's Table 3 has rows where it does not"
        " hold.",
        "Take d_k from the query after the split.",
        "d_k = d_model/H",
        "",
    ),
    (
        "scale.d_k",
        lambda x, q, v: 1 / q.shape[-1],
        "You divide by d_k and not by its square root, or by the root twice.",
        "The standard deviation of a score is √d_k.",
        "Is something scaled twice?",
        "d_k = 1",
        "huggingface/transformers PR#38290",
    ),
    (
        "scale.multiplied",
        lambda x, q, v: q.shape[-1] ** 0.5,
        "You multiply the scores by √d_k; they should be divided by it.",
        "The weights become almost one-hot.",
        "Scores should get smaller.",
        "d_k = 1",
        "esceptico/perceiver-io#9",
    ),
    (
        "scale.precedence",
        lambda x, q, v: 2 / q.shape[-1],
        "You divide by d_k/2: in Python, `d ** 1/2` means `(d ** 1)/2`.",
        "Power binds tighter than division.",
        "Put the exponent in brackets.",
        "d_k = 4",
        "mkara44/transunet_pytorch#4",
    ),
    (
        "scale.sqrt_d_v",
        lambda x, q, v: v.shape[-1] ** -0.5,
        "You divide by √d_v; the scores came from d_k numbers.",
        "The values take no part in the scores.",
        "Which of q, k and v does a score depend on?",
        "d_v = d_k",
        "juho-lee/set_transformer#18",
    ),
    (
        "scale.sqrt_keys",
        lambda x, q, v: x.shape[-2] ** -0.5,
        "You divide by √L, the root of the number of tokens.",
        "Your weights change when a token is added.",
        "Which axis does the product sum over?",
        "L = d_k",
        "lucidrains/denoising-diffusion-pytorch#265 (the confusion)",
    ),
):
    multi_head_attention.fault(
        id, says, why=why, hint=hint, hidden=hidden, cite=cite, link=ROOT, factor=factor
    )
multi_head_attention.add(
    Fit(
        "scale.factor",
        "factor",
        "Your scores are multiplied by {found} (here {value}); the formula multiplies them by"
        " 1/√d_k (here {right}).",
        right=lambda dims: dims["d_k"] ** -0.5,
        setting=lambda value: lambda x, q, v: value,
        why="One factor explains all your numbers, and it is not the one in the formula.",
        hint="Take d_k from the query after the split.",
        link=ROOT,
    )
)
multi_head_attention.fault(
    "softmax.over_queries",
    "You normalise over the queries: the columns of your weights sum to 1, the rows do not.",
    why="Each query shares out one unit of weight among the keys.",
    hint="Which axis of the (B, H, L, L) weights runs over the keys?",
    hidden="L = 1",
    cite="labmlai/annotated_deep_learning_paper_implementations#146",
    link=AXIS,
    axis=-2,
)
multi_head_attention.fault(
    "softmax.over_heads",
    "You normalise over the heads: for each query and key, the heads' weights sum to 1.",
    why="Heads know nothing of each other; each has its own softmax over the keys.",
    hint="Count the axis from the back.",
    cite="jadore801120/attention-is-all-you-need-pytorch#52; FudanNLP/fastNLP#254",
    link=AXIS,
    axis=-3,
)
multi_head_attention.fault(
    "softmax.missing",
    "There is no softmax: your weights are the scaled scores.",
    why="Scores may be negative and do not sum to 1.",
    hint="Step 4 turns scores into weights.",
    link=AXIS,
    axis="none",
)
add_wrong_merges(multi_head_attention)
for fault in mix_heads.faults:
    if "project" in fault.switches and fault.id != "head.same_rows_of_w_o":
        multi_head_attention.fault(
            fault.id,
            fault.says,
            why=fault.why,
            hint=fault.hint,
            hidden=fault.hidden,
            cite=fault.cite,
            link=fault.link,
            output=fault.switches["project"],
        )
multi_head_attention.fault(
    "head.weights_averaged",
    "You return the weights averaged over the heads; asked for is a matrix for each head.",
    why="An average hides what the heads do differently. (nn.MultiheadAttention averages unless"
    " told otherwise.)",
    hint="The weights have four axes.",
    hidden="H = 1",
    link=REDUCED,
    returned=lambda output, weights: (output, weights.mean(-3)),
)
multi_head_attention.fault(
    "attention.returns_swapped",
    "You return (weights, output); the order asked for is (output, weights).",
    hint="Look at the last line.",
    link=f"{CHAPTER}#the-code",
    returned=lambda output, weights: (weights, output),
)
multi_head_attention.fault(
    "attention.weights_not_returned",
    "You return the output alone; the weights are asked for too.",
    hint="Return a pair.",
    link=f"{CHAPTER}#the-code",
    returned=lambda output, weights: output,
)


@multi_head_attention.program(
    "head.never_split",
    "You never split: one head attends with all H·d_k columns at once.",
    why="One softmax for the whole width gives one set of weights; H heads give H.",
    hint="What happens to n_heads in your function?",
    hidden="H = 1",
    link=SPLIT,
)
def never_split(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = x @ W_q, x @ W_k, x @ W_v
    weights = softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return weights @ v @ W_o, weights


@multi_head_attention.solution
def multi_head_attention_solution(x, W_q, W_k, W_v, W_o, n_heads):
    def split(a):  # (..., L, H·d) → (..., H, L, d)
        return a.reshape(*a.shape[:-1], n_heads, -1).swapaxes(-2, -3)

    q, k, v = (split(x @ W) for W in (W_q, W_k, W_v))  # project, split
    scores = q @ k.swapaxes(-1, -2)  # 1 scores (..., H, L, L)
    scores = scores / q.shape[-1] ** 0.5  # 2 scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))  # 4 softmax
    weights = weights / weights.sum(axis=-1, keepdims=True)
    heads = weights @ v  # 5 mix (..., H, L, d_v)
    merged = heads.swapaxes(-2, -3).reshape(*x.shape[:-1], -1)  # merge (..., L, H·d_v)
    return merged @ W_o, weights  # project (..., L, d_model)


@multi_head_attention.solution("Head by head, as the paper writes it: slower, the same numbers.")
def multi_head_attention_loop(x, W_q, W_k, W_v, W_o, n_heads):
    from sdpa_course.with_numpy import scaled_dot_product_attention

    output, all_weights = 0.0, []
    columns = [np.split(W, n_heads, axis=-1) for W in (W_q, W_k, W_v)]
    for Q, K, V, O in zip(*columns, np.split(W_o, n_heads), strict=True):
        head, weights = scaled_dot_product_attention(x @ Q, x @ K, x @ V, return_weights=True)
        output = output + head @ O
        all_weights.append(weights)
    return output, np.stack(all_weights, axis=-3)


@multi_head_attention.solution(shown=False)
def multi_head_attention_einsum(x, W_q, W_k, W_v, W_o, n_heads):
    d_model = x.shape[-1]
    Q, K, V = (W.reshape(d_model, n_heads, -1) for W in (W_q, W_k, W_v))
    q, k, v = (np.einsum("...lm,mhd->...hld", x, W) for W in (Q, K, V))
    s = np.einsum("...hld,...hsd->...hls", q * Q.shape[-1] ** -0.5, k)
    w = np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))
    out = w @ v
    return np.einsum("...hld,hdm->...lm", out, W_o.reshape(n_heads, -1, d_model)), w


@multi_head_attention.solution(shown=False)
def multi_head_attention_flat_batch(x, W_q, W_k, W_v, W_o, n_heads):
    *lead, L, _ = x.shape
    root = (W_q.shape[-1] // n_heads) ** -0.25

    def split(a):
        a = a.reshape(-1, L, n_heads, a.shape[-1] // n_heads).transpose(0, 2, 1, 3)
        return a.reshape(-1, L, a.shape[-1])  # (B·H, L, d)

    q, k, v = split(x @ W_q * root), split(x @ W_k * root), split(x @ W_v)
    e = np.exp(np.matmul(q, k.transpose(0, 2, 1)))
    w = e / e.sum(-1, keepdims=True)
    heads = (w @ v).reshape(-1, n_heads, L, v.shape[-1]).transpose(0, 2, 1, 3)
    return heads.reshape(*lead, L, -1) @ W_o, w.reshape(*lead, n_heads, L, L)


@multi_head_attention.solution(backend="torch")
def multi_head_attention_torch(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = ((x @ W).unflatten(-1, (n_heads, -1)).transpose(-2, -3) for W in (W_q, W_k, W_v))
    weights = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1)
    merged = (weights @ v).transpose(-2, -3).flatten(-2)
    return merged @ W_o, weights


@multi_head_attention.solution(backend="torch", shown=False)
def multi_head_attention_torch_einsum(x, W_q, W_k, W_v, W_o, n_heads):
    import torch

    Q, K, V = (W.view(W.shape[0], n_heads, -1) for W in (W_q, W_k, W_v))
    q, k, v = (torch.einsum("...lm,mhd->...hld", x, W) for W in (Q, K, V))
    weights = ((q * q.size(-1) ** -0.5) @ k.mT).softmax(-1)
    return torch.einsum(
        "...hld,hdm->...lm", weights @ v, W_o.view(n_heads, -1, x.shape[-1])
    ), weights


# -- count ---------------------------------------------------------------------------------------

count_parameters = Exercise(
    "multihead.count_parameters",
    kind="implement",
    title="Count the parameters",
    statement="""
Write `count_parameters(d_model, n_heads, n_kv_heads, d_k, d_v)`: how many numbers
$W_Q$, $W_K$, $W_V$ and $W_O$ hold together. `n_heads` query heads share `n_kv_heads` heads of keys
and values; a head's query and key have size `d_k`, its value `d_v`. There are no biases.
""",
    link=TABLE,
    goals={
        "rows": "every head reads the whole vector",
        "kv": "keys and values have heads of their own",
        "d_v": "values have a size of their own",
        "output": "the output projection counts too",
        "bias": "no biases",
    },
    hints=("Write the shape of each of the four matrices, and multiply it out.",),
    reason="W_Q is (d_model, H·d_k), W_K (d_model, H_kv·d_k), W_V (d_model, H_kv·d_v) and W_O"
    " (H·d_v, d_model). With d_k = d_v = d_model/H and H_kv = H that is 4·d_model², whatever H"
    " is.",
    question="By how much does the count shrink when H_kv goes from H to 1?",
)


@count_parameters.stub
def count_parameters_stub(d_model, n_heads, n_kv_heads, d_k, d_v):
    """The number of parameters of W_q, W_k, W_v and W_o together."""
    raise NotImplementedError


@count_parameters.inputs
def _(rng, H_kv=2, group=3, d=5, d_k=7, d_v=11):
    H = H_kv * group
    return {"d_model": H * d, "n_heads": H, "n_kv_heads": H_kv, "d_k": d_k, "d_v": d_v}


count_parameters.probe("two key heads of six", H_kv=2, group=3, d=5, d_k=7, d_v=11)
count_parameters.probe("three of six", H_kv=3, group=2, d=7, d_k=11, d_v=6)
count_parameters.probe("one for all", H_kv=1, group=5, d=3, d_k=2, d_v=7)


@count_parameters.model
def _(
    d_model,
    n_heads,
    n_kv_heads,
    d_k,
    d_v,
    *,
    rows=lambda d_model, n_heads: d_model,
    kv=lambda n_heads, n_kv_heads: n_kv_heads,
    v_size=lambda d_k, d_v: d_v,
    output=True,
    bias=False,
):
    n_kv_heads, d_v = kv(n_heads, n_kv_heads), v_size(d_k, d_v)
    columns = n_heads * d_k + n_kv_heads * (d_k + d_v)
    return np.asarray(
        rows(d_model, n_heads) * columns
        + output * n_heads * d_v * d_model
        + bias * (columns + d_model)
    )


count_parameters.fault(
    "count.output_forgotten",
    "You leave out W_O: (H·d_v) × d_model more numbers.",
    why="It is the fourth matrix, and with equal sizes a quarter of the layer.",
    hint="Count the matrices.",
    link=OUTPUT,
    output=False,
)
count_parameters.fault(
    "count.kv_heads_not_shared",
    "You give keys and values as many heads as queries; there are only n_kv_heads of them.",
    why="Fewer key and value heads is what grouped attention saves.",
    hint="Which matrices use n_kv_heads?",
    hidden="H_kv = H",
    link=GROUPS,
    kv=lambda n_heads, n_kv_heads: n_heads,
)
count_parameters.fault(
    "count.d_v_is_d_k",
    "You use d_k for the values as well; their size is d_v.",
    why="W_V and W_O know d_v, W_Q and W_K know d_k.",
    hint="Which two matrices have d_v in their shape?",
    hidden="d_v = d_k",
    link=TABLE,
    v_size=lambda d_k, d_v: d_k,
)
count_parameters.fault(
    "count.sliced_embedding",
    "You give each head only d_model/H rows, as if it saw a slice of the embedding. Its matrices"
    " have d_model rows.",
    why="Every head projects the whole vector.",
    hint="What is the shape of one head's W_Q?",
    hidden="H = 1",
    link=WHOLE,
    rows=lambda d_model, n_heads: d_model // n_heads,
)
count_parameters.fault(
    "count.times_heads",
    "You count heads twice: d_model rows for each head, but H·d_k columns for each head too.",
    why="H·d_k is the width of all heads together.",
    hint="Heads are counted once, in the columns.",
    hidden="H = 1",
    link=TABLE,
    rows=lambda d_model, n_heads: d_model * n_heads,
)
count_parameters.fault(
    "count.biases",
    "You count biases; this layer has none.",
    why="The 2017 paper's projections have none. nn.MultiheadAttention has them unless told"
    " otherwise.",
    hint="Only the four matrices.",
    link=TABLE,
    bias=True,
)


@count_parameters.program(
    "count.four_squares",
    "4·d_model² holds only if d_k = d_v = d_model/H and H_kv = H.",
    why="The sizes are arguments here, and they do not obey that habit.",
    hint="Write the shapes with d_k, d_v and n_kv_heads.",
    hidden="the sizes of the 2017 base model",
    link=TABLE,
)
def four_squares(d_model, n_heads, n_kv_heads, d_k, d_v):
    return 4 * d_model**2


@count_parameters.program(
    "count.one_head",
    "You count one head; there are n_heads of queries and n_kv_heads of keys and values.",
    why="Each head has matrices of its own.",
    hint="Where do n_heads and n_kv_heads enter?",
    hidden="H = H_kv = 1",
    link=TABLE,
)
def one_head(d_model, n_heads, n_kv_heads, d_k, d_v):
    return d_model * (2 * d_k + 2 * d_v)


@count_parameters.solution
def count_parameters_solution(d_model, n_heads, n_kv_heads, d_k, d_v):
    W_q = d_model * n_heads * d_k
    W_k = d_model * n_kv_heads * d_k
    W_v = d_model * n_kv_heads * d_v
    W_o = n_heads * d_v * d_model
    return W_q + W_k + W_v + W_o


@count_parameters.solution("d_model in front: queries and outputs, keys and values.")
def count_parameters_factored(d_model, n_heads, n_kv_heads, d_k, d_v):
    return d_model * (n_heads + n_kv_heads) * (d_k + d_v)


@count_parameters.solution(shown=False)
def count_parameters_of_arrays(d_model, n_heads, n_kv_heads, d_k, d_v):
    shapes = [(n_heads, d_k), (n_kv_heads, d_k), (n_kv_heads, d_v), (n_heads, d_v)]
    return sum(np.empty((d_model, h * d)).size for h, d in shapes)


# -- Table 3 -------------------------------------------------------------------------------------

millions_saved = Exercise(
    "multihead.millions_saved",
    kind="predict",
    title="A row of Table 3",
    statement="""
The base model of the 2017 paper has 6 encoder and 6 decoder layers, $d_\\text{model} = 512$,
8 heads, $d_k = d_v = 64$. In row (B) of its Table 3, $d_k$ is 16 and all else stays, $d_v$ too.

How many **million** parameters does that save? Set `millions_saved` to your number. 5 % is close
enough.
""",
    link=TABLE,
    tolerance=0.05,
    hints=("How many attention layers are there? A decoder layer has two.",),
    reason="W_Q and W_K each lose 512 · 8 · 48 numbers. There are 18 attention layers: 6 in the"
    " encoder, 6 + 6 in the decoder. 2 · 18 · 512 · 384 = 7.08 million; the paper's column, in"
    " rounded millions, goes from 65 to 58.",
    question="Why does the column stay empty in the rows where only the number of heads changes?",
)


@millions_saved.model
def _():
    return (transformer_parameters() - transformer_parameters(d_k=16)) / 1e6


for value, id, says, hint in (
    (
        12 * 2 * 512 * 384 / 1e6,
        "count.cross_attention_forgotten",
        "That counts 12 attention layers. A decoder layer has two, one on its own sequence and one"
        " on the encoder's: 18 in all.",
        "Count the attention layers of the decoder again.",
    ),
    (
        6 * 2 * 512 * 384 / 1e6,
        "count.encoder_only",
        "That counts 6 attention layers, the encoder's. The decoder has 12 more.",
        "What else attends?",
    ),
    (
        18 * 4 * 512 * 384 / 1e6,
        "count.values_too",
        "That shrinks all four matrices. d_v stays 64, so W_V and W_O stay as they are.",
        "Which of the matrices have d_k in their shape?",
    ),
    (
        18 * 512 * 384 / 1e6,
        "count.query_only",
        "That shrinks one matrix in each layer. Queries and keys both have size d_k.",
        "Can a key of 64 numbers meet a query of 16?",
    ),
    (
        18 * 2 * 512 * 48 / 1e6,
        "count.one_head",
        "That counts one head in each layer; there are 8.",
        "Each head loses 48 columns of its W_Q.",
    ),
    (
        18 * 3 * 512 * 384 / 1e6,
        "count.three_matrices",
        "That shrinks W_Q, W_K and W_V. The values keep d_v = 64.",
        "Which of the matrices have d_k in their shape?",
    ),
    (
        0.0,
        "count.nothing_saved",
        "Nothing is saved when the number of heads changes at a fixed total width. Here the width"
        " of queries and keys shrinks itself.",
        "What is the shape of W_Q?",
    ),
):
    millions_saved.wrong(value, id, says, hint=hint, link=TABLE)
millions_saved.solutions += [
    Solution("millions_saved = 18 * 2 * 512 * 8 * (64 - 16) / 1e6\n"),
    Solution("millions_saved = 7.08\n"),
]


# -- fewer key and value heads -------------------------------------------------------------------

repeat_kv_heads = Exercise(
    "multihead.repeat_kv_heads",
    kind="implement",
    title="Share key heads",
    statement="""
Query heads may share heads of keys and values: with $H$ query heads and $H_{kv}$ of the others,
query head $h$ reads number $\\lfloor h\\,/\\,(H/H_{kv}) \\rfloor$.

Write `repeat_kv_heads(kv, n_heads)`: `kv` is $(\\dots, H_{kv}, S, d)$, and the result is
$(\\dots, H, S, d)$, with what query head $h$ reads at place $h$.
""",
    link=GROUPS,
    goals={"repeat": "each query head finds its group's keys"},
    backends=("numpy", "torch"),
    hints=("With H = 6 and H_kv = 2, which key head does each query head read? Write the list.",),
    reason="The first H/H_kv query heads share head 0, the next ones head 1: 0, 0, 0, 1, 1, 1. A"
    " trained model's weights fit this order and no other.",
    question="For which H_kv do np.repeat and np.tile give the same?",
)


@repeat_kv_heads.stub
def repeat_kv_heads_stub(kv, n_heads):
    """kv (..., H_kv, S, d) → (..., n_heads, S, d)"""
    raise NotImplementedError


@repeat_kv_heads.inputs
def _(rng, B=2, H_kv=3, group=2, S=5, d=7):
    return {"kv": tokens(rng, *leading(B), H_kv, S, d), "n_heads": H_kv * group}


repeat_kv_heads.probe("one sequence, no batch", B=1, H_kv=2, group=3, S=4, d=5)
repeat_kv_heads.probe("a batch", B=2, H_kv=3, group=2, S=5, d=7)
repeat_kv_heads.probe("as many key heads as samples", B=2, H_kv=2, group=5, S=3, d=6)


def repeat_right(kv, H):
    return np.repeat(kv, H // kv.shape[-3], axis=-3)


@repeat_kv_heads.model
def _(kv, n_heads, *, repeat=repeat_right):
    return repeat(kv, n_heads)


repeat_kv_heads.fault(
    "gqa.tiled",
    "You repeat the whole block of heads, as in 0, 1, 0, 1; each head should be repeated in its"
    " place, as in 0, 0, 1, 1.",
    why="np.tile and torch's Tensor.repeat copy the block; np.repeat and repeat_interleave copy"
    " each head. Most query heads then read another group's keys.",
    hint="Write the list of key heads that query heads 0, 1, 2, … read.",
    hidden="H_kv = 1 or H_kv = H",
    link=TILED,
    repeat=lambda kv, H: np.concatenate([kv] * (H // kv.shape[-3]), axis=-3),
)
repeat_kv_heads.fault(
    "gqa.repeated_along_length",
    "You repeat along the sequence: every key stands there several times, and there are as few"
    " heads as before.",
    why="The head axis is -3 here. In a (B, S, H, d) layout it is -2, which is S in ours.",
    hint="Which axis should grow?",
    hidden="the layout (B, S, H, d)",
    cite="PrimeIntellect-ai/prime-rl PR#2681",
    link=TILED,
    repeat=lambda kv, H: np.repeat(kv, H // kv.shape[-3], axis=-2),
)
repeat_kv_heads.fault(
    "gqa.not_expanded",
    "You return as many heads as came in.",
    why="q with H heads does not fit k with H_kv; only H_kv = 1 broadcasts.",
    hint="Which axis should grow, and to what?",
    hidden="H_kv = H, or H_kv = 1 where it broadcasts",
    cite="state-spaces/mamba PR#462",
    link=GROUPS,
    repeat=lambda kv, H: kv,
)
repeat_kv_heads.fault(
    "gqa.repeated_n_heads_times",
    "You repeat each head n_heads times; n_heads/H_kv is right.",
    why="Only H of them are needed in all.",
    hint="How many query heads share one key head?",
    hidden="H_kv = 1",
    link=GROUPS,
    repeat=lambda kv, H: np.repeat(kv, H, axis=-3),
)
repeat_kv_heads.fault(
    "gqa.first_axis",
    "You repeat along axis 0, which is the batch if there is one.",
    why="Counted from the front, an axis moves when a batch axis comes or goes.",
    hint="Count the axis from the back.",
    hidden="no batch axis",
    link=GROUPS,
    repeat=lambda kv, H: np.repeat(kv, H // kv.shape[-3], axis=0),
)
repeat_kv_heads.fault(
    "gqa.second_axis",
    "You repeat along axis 1, which is length where there is no batch.",
    why="Counted from the front, an axis moves when a batch axis comes or goes.",
    hint="Count the axis from the back.",
    hidden="a batch axis in front",
    link=GROUPS,
    repeat=lambda kv, H: np.repeat(kv, H // kv.shape[-3], axis=1),
)
repeat_kv_heads.fault(
    "gqa.first_head_only",
    "All your query heads read key head 0.",
    why="That would be multi-query attention, with the other heads thrown away.",
    hint="There are H_kv heads, and each has a group.",
    hidden="H_kv = 1",
    link=GROUPS,
    repeat=lambda kv, H: np.repeat(kv[..., :1, :, :], H, axis=-3),
)
repeat_kv_heads.fault(
    "gqa.features_repeated",
    "You repeat the features: each vector becomes longer, and there are as few heads as before.",
    why="The head axis is -3.",
    hint="Which axis should grow?",
    link=GROUPS,
    repeat=lambda kv, H: np.repeat(kv, H // kv.shape[-3], axis=-1),
)


@repeat_kv_heads.solution
def repeat_kv_heads_solution(kv, n_heads):
    return np.repeat(kv, n_heads // kv.shape[-3], axis=-3)


@repeat_kv_heads.solution("The formula as an index.")
def repeat_kv_heads_by_index(kv, n_heads):
    group = n_heads // kv.shape[-3]
    return kv[..., np.arange(n_heads) // group, :, :]


@repeat_kv_heads.solution(shown=False)
def repeat_kv_heads_broadcast(kv, n_heads):
    *lead, H_kv, S, d = kv.shape
    wide = np.broadcast_to(kv[..., None, :, :], (*lead, H_kv, n_heads // H_kv, S, d))
    return wide.reshape(*lead, n_heads, S, d)


@repeat_kv_heads.solution(shown=False)
def repeat_kv_heads_loop(kv, n_heads):
    group = n_heads // kv.shape[-3]
    return np.stack([kv[..., h // group, :, :] for h in range(n_heads)], axis=-3)


@repeat_kv_heads.solution(backend="torch")
def repeat_kv_heads_torch(kv, n_heads):
    return kv.repeat_interleave(n_heads // kv.shape[-3], dim=-3)


@repeat_kv_heads.solution(backend="torch", shown=False)
def repeat_kv_heads_torch_expand(kv, n_heads):
    *lead, H_kv, S, d = kv.shape
    return kv.unsqueeze(-3).expand(*lead, H_kv, n_heads // H_kv, S, d).flatten(-4, -3)


# -- catch a tile --------------------------------------------------------------------------------

expose_tile = Exercise(
    "multihead.expose_tile",
    kind="catch",
    title="Catch a tile",
    statement="""
A library shares key heads with `np.tile`: for 6 query heads and 2 key heads, query heads read key
heads 0, 1, 0, 1, 0, 1, where it should be 0, 0, 0, 1, 1, 1. Its tests have passed for a year.

Write `expose_tile()`, which returns `(kv, n_heads)`: an array `kv` $(H_{kv}, S, d)$ and a multiple
of $H_{kv}$, for which the library returns something else than it should.
""",
    link=TILED,
    hints=("Write both lists for H_kv = 1, and for H_kv = H. Then choose.",),
    reason="With one key head there is nothing to confuse, and with as many as query heads nothing"
    " is repeated. Only in between, 1 < H_kv < H, do the two orders differ; and heads that are"
    " equal hide them there too.",
    question="Which two well-known kinds of attention are H_kv = 1 and H_kv = H?",
)


@expose_tile.inputs
def _(rng, H_kv=2, group=3, S=4, d=5):
    return {"kv": tokens(rng, H_kv, S, d), "n_heads": H_kv * group}


@expose_tile.model
def _(kv, n_heads):
    kv, n_heads = three_axes(kv), int(n_heads)
    if n_heads < 1 or n_heads % len(kv):
        raise ValueError(f"{n_heads} query heads cannot share {len(kv)} key heads equally.")
    return np.repeat(kv, n_heads // len(kv), axis=0)


@expose_tile.black_box
def _(kv, n_heads):
    return np.tile(three_axes(kv), (int(n_heads) // len(kv), 1, 1))


def three_axes(kv):
    kv = np.asarray(kv, float)
    if kv.ndim != 3 or not kv.size:
        raise ValueError(f"kv: expected (H_kv, S, d), got {kv.shape}.")
    return kv


@expose_tile.program(
    "catch.one_key_head",
    "With one key head every query head reads it, whatever the order.",
    why="Tile and repeat of a single head are the same.",
    hint="Take more key heads than one.",
    link=TILED,
    when=lambda kv, n_heads: np.shape(kv)[0] == 1,
)
def _():
    return np.arange(6.0).reshape(1, 2, 3), 6


@expose_tile.program(
    "catch.nothing_repeated",
    "With as many key heads as query heads nothing is repeated, and no order can be wrong.",
    why="Both functions return kv as it came.",
    hint="Take more query heads than key heads.",
    link=TILED,
    when=lambda kv, n_heads: np.shape(kv)[0] > 1 and np.shape(kv)[0] == n_heads,
)
def _():
    return np.arange(12.0).reshape(2, 2, 3), 2


@expose_tile.program(
    "catch.equal_heads",
    "Your key heads are all equal, so it does not show which of them a query head reads.",
    why="Zeros and ones hide every mix-up.",
    hint="Give each head numbers of its own.",
    link=TILED,
    when=lambda kv, n_heads: (
        1 < np.shape(kv)[0] < n_heads and np.ndim(kv) == 3 and not np.ptp(kv, axis=0).any()
    ),
)
def _():
    return np.ones((2, 4, 5)), 6


@expose_tile.solution
def expose_tile_solution():
    kv = np.arange(2 * 3 * 4).reshape(2, 3, 4)  # two heads that differ
    return kv, 6


@expose_tile.solution
def expose_tile_smallest():
    return np.array([[[0.0]], [[1.0]]]), 4


# -- what heads cost -----------------------------------------------------------------------------

what_heads_cost = Exercise(
    "multihead.what_heads_cost",
    kind="quiz",
    title="What heads cost",
    statement="""
A layer with $d_\\text{model} = 512$ is changed from 8 heads of 64 to 32 heads of 16. What happens
to parameters, multiplications in matrix products, and exponentials?
""",
    link=COST,
)
what_heads_cost.option(
    "A",
    "All three stay the same: the width is shared out among the heads.",
    "Parameters and matrix products stay, but each head has a softmax of its own: L² exponentials"
    " for each head.",
)
what_heads_cost.option(
    "B",
    "All three become four times as many.",
    "Four times as many heads of a quarter of the size: parameters and matrix products stay.",
)
what_heads_cost.option(
    "C",
    "Parameters and multiplications stay; exponentials become four times as many.",
    "Yes. And so does the room for scores, where they are stored.",
    right=True,
)
what_heads_cost.option(
    "D",
    "Parameters stay; multiplications and exponentials become four times as many.",
    "Scores cost 2·L²·d_k for each head: four times as many heads, a quarter of d_k.",
)


EXERCISES = (
    what_a_head_sees,
    split_heads,
    merge_heads,
    heads_one_by_one,
    mix_heads,
    multi_head_attention,
    count_parameters,
    millions_saved,
    repeat_kv_heads,
    expose_tile,
    what_heads_cost,
)
