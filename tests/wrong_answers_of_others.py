"""Wrong answers in many hands: `WRONG` is a list of (exercise, function, ids of the mistakes).

Where no mistake is given, none of the known ones is made: the answer must only fail.
"""

from __future__ import annotations

import functools
import math

import numpy as np

WRONG: list = []


def wrong(exercise: str, *mistakes: str):
    """Add a wrong answer to an exercise, with the mistakes that the report must name."""

    def add(answer):
        WRONG.append((exercise, answer, mistakes))
        return answer

    return add


def stable(x, axis=-1):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


# -- lookup ------------------------------------------------------------------------------------


@wrong("soft_lookup")
def values_before_the_softmax(q, k, v, temperature):
    return stable(q @ k.swapaxes(-1, -2) / temperature @ v)


@wrong("soft_lookup", "lookup.mixes_keys")
def keys_for_values(q, k, v, temperature):
    return stable(q @ k.swapaxes(-1, -2) / temperature) @ k


@wrong("soft_lookup")
def rounded_to_the_best_two(q, k, v, temperature):
    s = q @ k.swapaxes(-1, -2) / temperature
    second = np.sort(s, axis=-1)[..., -2:-1]
    return stable(np.where(s >= second, s, -np.inf)) @ v


@wrong("soft_lookup", "softmax.no_max")
def overflows(q, k, v, temperature):
    e = np.exp(np.einsum("...ld,...sd->...ls", q, k) / temperature)
    return e @ v / e.sum(-1, keepdims=True)


@wrong("soft_lookup")
def squared_scores(q, k, v, temperature):
    return stable((q @ k.swapaxes(-1, -2)) ** 2 / temperature) @ v


@wrong("output_bounds", "hull.over_coordinates")
def bounds_along_the_last_axis(v):
    return v.min(-1), v.max(-1)


@wrong("output_bounds")
def bounds_of_the_first_and_last_row(v):
    return v[..., 0, :], v[..., -1, :]


@wrong("output_bounds")
def bounds_kept_as_rows(v):
    return v.min(-2, keepdims=True), v.max(-2, keepdims=True)


@wrong("output_bounds")
def bounds_by_index(v):
    return v.argmin(-2), v.argmax(-2)


@wrong("output_bounds")
def only_the_upper(v):
    return v.max(-2)


@wrong("smooth")
def with_a_laplace_kernel_of_both(x, x_known, y_known, bandwidth):
    w = np.exp(-np.abs(x[:, None] - x_known) / (2 * bandwidth))
    return (w / w.sum(1, keepdims=True)) @ y_known


# -- dot_product -------------------------------------------------------------------------------


@wrong("pairwise_scores", "scores.keys_with_keys")
def keys_with_keys(q, k):
    return k @ k.swapaxes(-1, -2)


@wrong("pairwise_scores")
def an_outer_sum(q, k):
    return (q[..., :, None, :] + k[..., None, :, :]).sum(-1)


@wrong("pairwise_scores", "scores.turned")
def sides_exchanged(q, k):
    return k @ q.swapaxes(-1, -2)


@wrong("pairwise_scores", "inputs.mutated")
def shifted_and_forgotten(q, k):
    s = q @ k.swapaxes(-1, -2)
    q -= q
    return s


@wrong("pairwise_scores", "dtype.rounded")
def through_float32(q, k):
    return q.astype("f4") @ k.astype("f4").swapaxes(-1, -2)


@wrong("pairwise_scores")
def whole_numbers(q, k):
    return q.astype(int) @ k.astype(int).swapaxes(-1, -2)


@wrong("heads_apart")
def first_head_only(q, k):
    s = q[:, :, 0] @ k[:, :, 0].swapaxes(-1, -2)
    return np.repeat(s[:, None], q.shape[2], axis=1)


@wrong("bilinear_scores")
def w_squared(q, W, k):
    return q @ W @ W.T @ W @ k.swapaxes(-1, -2)


@wrong("bilinear_scores", "scores.weight_turned")
def w_turned(q, W, k):
    return q @ W.T @ k.swapaxes(-1, -2)


@wrong("additive_scores", "additive.tanh_outside")
def tanh_last(q, k, W_q, W_k, v):
    return np.tanh(((q @ W_q)[..., None, :] + (k @ W_k)[..., None, :, :]) @ v)


@wrong("additive_scores")
def hyperbolic_sine(q, k, W_q, W_k, v):
    return np.sinh((q @ W_q)[..., None, :] + (k @ W_k)[..., None, :, :]) @ v


# -- scaling -----------------------------------------------------------------------------------


@wrong("scale_scores", "scale.multiplied")
def divided_by_the_inverse(q, k):
    scale = q.shape[-1] ** -0.5
    return q @ k.swapaxes(-1, -2) / scale


@wrong("scale_scores", "scale.d_k")
def scaled_twice(q, k):
    q, k = q / math.sqrt(q.shape[-1]), k / math.sqrt(k.shape[-1])
    return q @ k.swapaxes(-1, -2)


@wrong("scale_scores", "scale.factor")
def a_ninth(q, k):
    return q @ k.swapaxes(-1, -2) / 9


@wrong("scale_scores", "scale.factor")
def root_of_one_less(q, k):
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1] - 1)


@wrong("scale_scores", "scale.factor")
def integer_root(q, k):
    return q @ k.swapaxes(-1, -2) / int(math.sqrt(q.shape[-1]))


@wrong("scale_scores", "dtype.rounded")
def slightly_off(q, k):
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1] + 1e-5)


@wrong("scale_scores", "scale.factor")
def logarithm_of_the_size(q, k):
    return q @ k.swapaxes(-1, -2) / np.log(q.shape[-1])


@wrong("scale_scores")
def scaled_by_row(q, k):
    s = q @ k.swapaxes(-1, -2)
    return s / np.linalg.norm(s, axis=-1, keepdims=True)


@wrong("scale_scores")
def centred(q, k):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return s - s.mean(-1, keepdims=True)


@wrong("scale_scores", "calls.differ")
def remembers(q, k, seen=[]):  # noqa: B006
    seen.append(1)
    return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + 0.1 * (len(seen) > 3)


@wrong("attention", "calls.differ")
def with_dropout(q, k, v):
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return (w * (np.random.default_rng().random(w.shape) > 0.1) / 0.9) @ v


@wrong("scale_scores")
def a_generator(q, k):
    yield q @ k.swapaxes(-1, -2)


@wrong("score_heads", "scale.factor")
def twice_the_root(q, k):
    return q @ k.swapaxes(-1, -2) / (2 * q.shape[-1] ** 0.5)


@wrong("score_heads", "scale.forgotten")
def only_integer_exponent(q, k):
    return q @ k.swapaxes(-1, -2) / q.shape[-1] ** (1 // 2)


@wrong("weighted_values", "scale.forgotten", "softmax.over_queries")
def two_mistakes(q, k, v):
    w = stable(np.einsum("...id,...jd->...ij", q, k), axis=-2)
    return w @ v, w


@wrong("weighted_values", "scale.sqrt_d_v", "attention.returns_swapped")
def two_others(q, k, v):
    w = stable(q @ k.swapaxes(-1, -2) / v.shape[-1] ** 0.5)
    return w, w @ v


@wrong("weighted_values")
def output_of_unnormalised_weights(q, k, v):
    e = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return e @ v, e / e.sum(-1, keepdims=True)


@wrong("weighted_values")
def never_normalised(q, k, v):
    e = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    return e @ v, e


@wrong("weighted_values")
def scores_returned(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return stable(s) @ v, s


@wrong("weighted_values")
def distances_for_products(q, k, v):
    w = stable(-np.linalg.norm(q[..., :, None, :] - k[..., None, :, :], axis=-1))
    return w @ v, w


@wrong("weighted_values")
def softmax_twice(q, k, v):
    w = stable(stable(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])))
    return w @ v, w


@wrong("t5_query_weights", "init.factor")
def three_sizes(z):
    return z / (z.shape[0] ** 2 * z.shape[1]) ** 0.5


@wrong("fold_scale", "fold.factor")
def a_third(W_q, b_q):
    return W_q / 3, b_q / 3


@wrong("fold_scale", "inputs.mutated")
def folded_in_place(W_q, b_q):
    W_q /= W_q.shape[1] ** 0.5
    b_q /= b_q.shape[0] ** 0.5
    return W_q, b_q


# -- softmax -----------------------------------------------------------------------------------


@wrong("softmax", "softmax.unit_norm")
def normalised_by_the_norm(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / np.linalg.norm(e, axis=-1, keepdims=True)


@wrong("softmax", "softmax.no_max")
def textbook(z):
    return np.exp(z) / np.sum(np.exp(z), axis=-1, keepdims=True)


@wrong("softmax", "softmax.clipped")
def clipped(x):
    e = np.exp(np.clip(x, -500, 500))
    return e / e.sum(-1, keepdims=True)


@wrong("softmax", "softmax.constant_in_sum")
def epsilon_below(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / (e.sum(-1, keepdims=True) + 1e-6)


@wrong("softmax", "softmax.temperature")
def tempered(x):
    return stable(x / 1.7)


@wrong("softmax", "softmax.infinity_as_zero")
def infinity_replaced_by_zero(x):
    return stable(np.where(np.isinf(x), 0, x))


@wrong("softmax")
def nan_for_infinity(x):
    return stable(np.nan_to_num(x, neginf=-1000))


@wrong("softmax", "inputs.mutated")
def maximum_taken_off_in_place(x):
    x -= x.max(-1, keepdims=True)
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@wrong("softmax", "dtype.rounded")
def half_way_in_float32(x):
    return stable(x.astype(np.float32)).astype(np.float64)


@wrong("softmax", "softmax.hard")
def an_argmax(x):
    return (x == x.max(-1, keepdims=True)).astype(float)


@wrong("softmax_rows", "softmax.over_heads")
def two_axes_only(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@wrong("logsumexp", "softmax.no_max")
def log_of_the_sum(x):
    return np.log(np.exp(x).sum(-1))


@wrong("logsumexp")
def sum_of_logs(x):
    return x.sum(-1)


@wrong("logsumexp")
def maximum_times(x):
    m = x.max(-1)
    return m * np.log(np.exp(x - m[..., None]).sum(-1))


@wrong("entropy", "entropy.epsilon")
def entropy_with_epsilon(p):
    return -(p * np.log(p + 1e-9)).sum(-1)


@wrong("entropy", "entropy.epsilon")
def entropy_with_a_larger_one(p):
    return -np.sum(p * np.log(p + 1e-7), axis=-1)


@wrong("entropy", "dtype.rounded")
def entropy_clipped(p):
    return -(p * np.log(np.clip(p, 1e-6, 1))).sum(-1)


@wrong("entropy")
def cross_entropy(p):
    return -np.log(p.max(-1))


@wrong("entropy", "entropy.bits")
def entropy_in_bits(p):
    return -(p * np.log2(np.where(p > 0, p, 1))).sum(-1)


@wrong("entropy", "entropy.perplexity")
def perplexity(p):
    return np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(-1))


@wrong("softmax_vjp", "softmax.jacobian_diagonal")
def elementwise(p, d_p):
    return d_p * p * (1 - p)


@wrong("softmax_vjp", "softmax.jacobian_outer_squared")
def weights_squared(p, d_p):
    return p**2 * (d_p - (p * d_p).sum(-1, keepdims=True))


@wrong("softmax_vjp")
def gradient_centred_by_its_maximum(p, d_p):
    return p * (d_p - d_p.max(-1, keepdims=True))


# -- attention ---------------------------------------------------------------------------------


@wrong("attention_weights", "scale.lengths")
def cosine_weights(q, k):
    q = q / np.linalg.norm(q, axis=-1, keepdims=True)
    k = k / np.linalg.norm(k, axis=-1, keepdims=True)
    return stable(q @ k.swapaxes(-1, -2))


@wrong("attention_weights", "scale.forgotten", "softmax.no_max")
def raw_exponentials(q, k):
    e = np.exp(q @ k.swapaxes(-1, -2))
    return e / e.sum(-1, keepdims=True)


@wrong("attention", "mix.values_untouched")
def every_key_the_same(q, k, v):
    return np.broadcast_to(v.mean(-2, keepdims=True), (*q.shape[:-1], v.shape[-1]))


@wrong("attention")
def a_residual(q, k, v):
    out = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v
    return out + v.mean(-2, keepdims=True)


@wrong("attention")
def causal_unasked(q, k, v):
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    return stable(np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)) @ v


@wrong("attention", "scale.sqrt_d_v", "softmax.over_queries")
def wrong_root_wrong_axis(q, k, v):
    return stable(q @ k.swapaxes(-1, -2) / v.shape[-1] ** 0.5, axis=-2) @ v


@wrong("attention", "softmax.exponentials_only")
def not_normalised(q, k, v):
    return np.exp(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v


@wrong("masked_attention")
def small_fill(q, k, v, mask):
    s = np.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -10.0)
    w = stable(s) * mask.any(-1, keepdims=True)
    return w @ v, w


@wrong("masked_attention", "mask.mean_of_values")
def finite_fill_and_nothing_else(q, k, v, mask):
    w = stable(np.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -1e9))
    return w @ v, w


@wrong("masked_attention", "mask.nan_row")
def infinite_fill_and_nothing_else(q, k, v, mask):
    w = stable(np.where(mask, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf))
    return w @ v, w


@wrong("masked_attention", "mask.after_softmax")
def weights_multiplied_only(q, k, v, mask):
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) * mask
    return w @ v, w


@wrong("masked_attention")
def values_masked(q, k, v, mask):
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return (w * mask) @ v, w


@wrong("masked_attention")
def causal_on_top(q, k, v, mask):
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    s = np.where(mask & np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    w = np.nan_to_num(stable(s))
    return w @ v, w


@wrong("attend_tokens")
def queries_moved_only(q, k, v):
    q = q.swapaxes(1, 2)
    return (
        stable(q @ k.swapaxes(1, 2).swapaxes(-1, -2) / q.shape[-1]) @ v.swapaxes(1, 2)
    ).swapaxes(1, 2)


# -- multihead ---------------------------------------------------------------------------------


@wrong("split_heads", "head.view_without_transpose")
def one_reshape(x, n_heads):
    return x.reshape(*x.shape[:-2], n_heads, x.shape[-2], -1)


@wrong("split_heads")
def halves_swapped(x, n_heads):
    heads = np.stack(np.split(x, n_heads, axis=-1), axis=-3)
    return heads[..., ::-1]


@wrong("split_heads")
def rolled(x, n_heads):
    return np.roll(np.stack(np.split(x, n_heads, axis=-1), axis=-3), 1, axis=-3)


@wrong("merge_heads", "head.interleaved")
def features_outside(heads):
    return np.moveaxis(heads, -3, -1).reshape(*heads.shape[:-3], heads.shape[-2], -1)


@wrong("mix_heads")
def first_rows_of_w_o(heads, W_o):
    return heads[..., 0, :, :] @ W_o[: heads.shape[-1]]


@wrong("multi_head_attention", "scale.forgotten", "head.no_output_projection")
def unscaled_unprojected(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = (np.stack(np.split(x @ W, n_heads, -1), 1) for W in (W_q, W_k, W_v))
    w = stable(q @ k.swapaxes(-1, -2))
    return np.concatenate([*np.moveaxis(w @ v, 1, 0)], -1), w


@wrong("multi_head_attention", "softmax.over_queries", "head.query_and_key_swapped")
def exchanged_and_wrong_axis(x, W_q, W_k, W_v, W_o, n_heads):
    k, q, v = (np.stack(np.split(x @ W, n_heads, -1), 1) for W in (W_q, W_k, W_v))
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, axis=-2)
    return np.concatenate([*np.moveaxis(w @ v, 1, 0)], -1) @ W_o, w


@wrong("multi_head_attention")
def with_a_residual(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = (np.stack(np.split(x @ W, n_heads, -1), 1) for W in (W_q, W_k, W_v))
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return x + np.concatenate([*np.moveaxis(w @ v, 1, 0)], -1) @ W_o, w


@wrong("multi_head_attention")
def weights_summed(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = (np.stack(np.split(x @ W, n_heads, -1), 1) for W in (W_q, W_k, W_v))
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5)
    return np.concatenate([*np.moveaxis(w @ v, 1, 0)], -1) @ W_o, w.sum(1)


@wrong("count_parameters", "count.output_forgotten")
def three_matrices(d_model, n_heads, n_kv_heads, d_k, d_v):
    return d_model * (n_heads * d_k + n_kv_heads * (d_k + d_v))


@wrong("count_parameters")
def off_by_one(d_model, n_heads, n_kv_heads, d_k, d_v):
    return (n_heads + n_kv_heads) * d_model * (d_k + d_v) + 1


@wrong("repeat_kv_heads", "gqa.tiled")
def tiled_by_modulo(kv, n_heads):
    return np.stack([kv[..., h % kv.shape[-3], :, :] for h in range(n_heads)], axis=-3)


@wrong("repeat_kv_heads")
def zeros_for_the_rest(kv, n_heads):
    pad = [(0, 0)] * kv.ndim
    pad[-3] = (0, n_heads - kv.shape[-3])
    return np.pad(kv, pad)


# -- masking -----------------------------------------------------------------------------------

wrong("causal_mask", "mask.top_left")(lambda L, S: np.tri(L, S, dtype=bool))
wrong("causal_mask", "mask.diagonal_excluded")(lambda L, S: np.tri(L, S, S - L - 1) == 1)
wrong("causal_mask", "dtype.changed")(lambda L, S: np.tri(L, S, S - L))


@wrong("causal_mask", "mask.triangle_turned")
def upper_with_the_cached_part(L, S):
    return np.triu(np.ones((L, S), bool), k=S - L)


@wrong("padding_mask", "mask.queries_hidden")
def a_column_for_a_row(lengths, S):
    return (np.arange(S) < np.asarray(lengths)[:, None])[:, None, :, None]


@wrong("padding_mask", "mask.padding_one_more")
def up_to_and_including(lengths, S):
    return (np.arange(S) <= np.asarray(lengths)[:, None])[:, None, None]


@wrong("padding_mask", "mask.one_length_for_all")
def the_longest_for_all(lengths, S):
    return np.broadcast_to(np.arange(S) < max(lengths), (len(lengths), 1, 1, S))


@wrong("window_mask", "mask.future_visible")
def window_on_both_sides(L, w):
    gap = np.subtract.outer(np.arange(L), np.arange(L))
    return np.abs(gap) < w


@wrong("window_mask")
def window_in_blocks(L, w):
    block = np.arange(L) // w
    return (block[:, None] == block) & np.tri(L, dtype=bool)


@wrong("masked_softmax", "mask.nan_row")
def nothing_for_empty_rows(scores, mask):
    return stable(np.where(mask, scores, -np.inf))


@wrong("masked_softmax", "mask.mean_of_values")
def equal_weights_for_empty_rows(scores, mask):
    return stable(np.where(mask, scores, -1e9))


@wrong("from_torch_module", "mask.inverted")
def as_it_came(key_padding_mask):
    return key_padding_mask.astype(bool)[:, None, None]


@wrong("causal_attention", "mask.future_visible", "scale.forgotten")
def padding_only_unscaled(q, k, v, lengths):
    real = np.arange(q.shape[-2]) < np.asarray(lengths)[:, None, None, None]
    w = stable(np.where(real, q @ k.swapaxes(-1, -2), -np.inf))
    return w @ v, w


@wrong("causal_attention", "mask.queries_hidden")
def padded_queries_emptied(q, k, v, lengths):
    L = q.shape[-2]
    real = np.arange(L) < np.asarray(lengths)[:, None, None, None]
    ok = np.tri(L, dtype=bool) & real & real.swapaxes(-1, -2)
    w = stable(np.where(ok, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -1e9)) * ok
    return w @ v, w


@wrong("causal_attention")
def masks_added(q, k, v, lengths):
    L = q.shape[-2]
    real = np.arange(L) < np.asarray(lengths)[:, None, None, None]
    bias = np.where(np.tri(L), 0.0, -5.0) + np.where(real, 0.0, -5.0)
    w = stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + bias)
    return w @ v, w


# -- backward ----------------------------------------------------------------------------------


@wrong("value_gradient", "backward.value_columns_normalised")
def value_gradient_averaged(weights, d_output):
    return (weights / weights.sum(-2, keepdims=True)).swapaxes(-1, -2) @ d_output


@wrong("value_gradient")
def value_gradient_of_the_sum(weights, d_output):
    return np.broadcast_to(
        d_output.sum(-2, keepdims=True),
        (*weights.shape[:-2], weights.shape[-1], d_output.shape[-1]),
    )


@wrong("scores_gradient", "softmax.jacobian_diagonal")
def diagonal_of_the_jacobian(weights, d_output, v):
    return weights * (1 - weights) * (d_output @ v.swapaxes(-1, -2))


@wrong("scores_gradient", "backward.scores_factor")
def scaled_too_early(weights, d_output, v):
    d_weights = d_output @ v.swapaxes(-1, -2) / v.shape[-1] ** 0.5
    return weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))


@wrong("query_and_key_gradients", "backward.scale_forgotten")
def products_only(d_scores, q, k):
    return d_scores @ k, d_scores.swapaxes(-1, -2) @ q


@wrong("query_and_key_gradients", "backward.scale_forgotten", "backward.returned_swapped")
def unscaled_and_exchanged(d_scores, q, k):
    return d_scores.swapaxes(-1, -2) @ q, d_scores @ k


@wrong("query_and_key_gradients")
def of_self_attention(d_scores, q, k):
    both = (d_scores + d_scores) @ k / q.shape[-1] ** 0.5
    return both, d_scores.swapaxes(-1, -2) @ q / q.shape[-1] ** 0.5


@wrong("mend_backward", "backward.scale_missing_on_key")
def one_of_two_mended(d_output, q, k, v, weights):
    d_weights = d_output @ v.swapaxes(-1, -2)
    d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    d_q = d_scores @ k * q.shape[-1] ** -0.5
    return d_q, d_scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_output


@wrong("attention_gradients")
def gradient_of_a_finite_fill(d_output, q, k, v, mask):
    scale = q.shape[-1] ** -0.5
    p = stable(np.where(mask, q @ k.swapaxes(-1, -2) * scale, -3.0))
    d_p = d_output @ v.swapaxes(-1, -2)
    d_s = p * (d_p - (p * d_p).sum(-1, keepdims=True)) * mask * scale
    return d_s @ k, d_s.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_output


@wrong("softmax_row_sums", "backward.delta_not_kept")
def row_sums_without_the_axis(d_output, output):
    return (d_output * output).sum(-1)


@wrong("softmax_row_sums")
def row_sums_of_absolute_values(d_output, output):
    return np.abs(d_output * output).sum(-1, keepdims=True)


@wrong("gradients_from_lse", "mask.empty_row_nan")
def normalised_once_more(d_output, q, k, v, output, lse, mask):
    scale = q.shape[-1] ** -0.5
    p = stable(np.where(mask, q @ k.swapaxes(-1, -2) * scale, -np.inf))
    d_s = p * (d_output @ v.swapaxes(-1, -2) - (d_output * output).sum(-1, keepdims=True)) * scale
    return d_s @ k, d_s.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_output


@wrong("gradients_from_lse")
def output_gradient_not_weighted(d_output, q, k, v, output, lse, mask):
    p = np.where(mask, np.exp(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5 - lse[..., None]), 0)
    d_s = p * (d_output @ v.swapaxes(-1, -2)) - (d_output * output).sum(-1, keepdims=True)
    return d_s @ k, d_s.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_output


# -- no answer at all --------------------------------------------------------------------------

wrong("softmax_vjp")(lambda p, d_p: 0 * p)
wrong("entropy")(lambda p: 0)
wrong("attention")(lambda q, k, v: v)
wrong("scale_scores")(lambda q, k: np.full((*q.shape[:-1], k.shape[-2]), np.nan))
wrong("pairwise_scores")(functools.partial(np.subtract.outer))
wrong("logsumexp")(lambda x: x.max(-1) > 0)
wrong("count_parameters")(lambda *sizes: "many")
