"""Right answers in many hands: `RIGHT` is a list of (exercise, function). All of them must pass.

Each is written as someone might write it who has not seen the declared solutions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator

import numpy as np

from sdpa_course.with_numpy import softmax as course_softmax

RIGHT: list = []


def right(exercise: str):
    """Add a right answer to an exercise."""

    def add(answer):
        RIGHT.append((exercise, answer))
        return answer

    return add


# What learners keep at the top of a notebook.


def stable(x, axis=-1):
    shifted = x - np.max(x, axis=axis, keepdims=True)
    e = np.exp(shifted)
    return e / np.sum(e, axis=axis, keepdims=True)


def as_floats(function):
    """A decorator that hides the signature of what it wraps."""

    def wrapped(*args, **kwargs):
        args = [np.asarray(a, dtype=float) if hasattr(a, "shape") else a for a in args]
        return function(*args, **kwargs)

    return wrapped


def to_last_axis(function):
    return lambda x: np.apply_along_axis(function, -1, x)


# -- lookup ------------------------------------------------------------------------------------


@right("soft_lookup")
def lookup_in_four_lines(query, key, value, tau):
    s = np.matmul(query, np.moveaxis(key, -1, -2))
    s /= tau
    w = np.exp(s - s.max(axis=-1)[..., np.newaxis])
    return np.matmul(w, value) / w.sum(axis=-1)[..., np.newaxis]


@right("soft_lookup")
def lookup_by_einsum(q, k, v, temperature):
    s = np.einsum("...ld,...sd->...ls", q / temperature, k)
    return np.einsum("...ls,...sv->...lv", stable(s), v)


@right("soft_lookup")
def lookup_query_by_query(q, k, v, temperature):
    if q.ndim > 2:
        parts = [lookup_query_by_query(*item, temperature) for item in zip(q, k, v, strict=True)]
        return np.stack(parts)
    rows = []
    for query in q:
        scores = [float(np.dot(query, key)) / temperature for key in k]
        top = max(scores)
        weights = [math.exp(s - top) for s in scores]
        blend = sum(w * row for w, row in zip(weights, v, strict=True))
        rows.append(blend / sum(weights))
    return np.array(rows)


@right("soft_lookup")
def lookup_keys_first(q, k, v, temperature):
    columns = k @ q.swapaxes(-1, -2) / temperature  # (..., S, L): keys first
    return stable(columns, axis=-2).swapaxes(-1, -2) @ v


@right("soft_lookup")
def lookup_online(q, k, v, temperature):
    top = np.full((*q.shape[:-1], 1), -np.inf)
    total, out = np.zeros_like(top), 0.0
    for j in range(k.shape[-2]):
        s = (q * k[..., j : j + 1, :]).sum(-1, keepdims=True) / temperature
        new = np.maximum(top, s)
        old, p = np.exp(top - new), np.exp(s - new)
        total, out, top = total * old + p, out * old + p * v[..., j : j + 1, :], new
    return out / total


@right("soft_lookup")
def lookup_in_base_two(q, k, v, temperature):
    s = q @ np.swapaxes(k, -1, -2) * (math.log2(math.e) / temperature)
    w = np.exp2(s - s.max(-1, keepdims=True))
    w = w / np.add.reduce(w, axis=-1, keepdims=True)
    return w @ v


@right("soft_lookup")
def lookup_with_the_courses_softmax(q, k, v, temperature):
    return course_softmax(q @ k.swapaxes(-1, -2) / temperature) @ v


right("output_bounds")(lambda v: (np.amin(v, -2), np.amax(v, -2)))


@right("output_bounds")
def bounds_by_sorting(v):
    ordered = np.sort(v, axis=-2)
    return ordered[..., 0, :], ordered[..., -1, :]


@right("output_bounds")
def bounds_as_a_list(v):
    return [np.minimum.reduce(v, axis=v.ndim - 2), np.maximum.reduce(v, axis=v.ndim - 2)]


@right("output_bounds")
def bounds_row_by_row(v):
    rows = [v[..., j, :] for j in range(v.shape[-2])]
    return functools.reduce(np.minimum, rows), functools.reduce(np.maximum, rows)


@right("output_bounds")
def bounds_by_quantiles(v):
    return tuple(np.quantile(v, [0.0, 1.0], axis=-2))


@right("smooth")
def smooth_point_by_point(x, x_known, y_known, bandwidth):
    def at(point):
        w = np.exp(-0.5 * ((point - x_known) / bandwidth) ** 2)
        return np.dot(w, y_known) / w.sum()

    return np.array([at(point) for point in x])


@right("smooth")
def smooth_as_a_lookup(x, x_known, y_known, bandwidth):
    s = -np.square(np.subtract.outer(x, x_known)) / (2 * bandwidth**2)
    return stable(s) @ y_known


@right("smooth")
def smooth_with_average(x, x_known, y_known, bandwidth):
    precision = bandwidth**-2
    w = np.exp((x[:, None] - x_known) ** 2 * (-precision / 2))
    return np.average(np.broadcast_to(y_known, w.shape), axis=1, weights=w)


# -- dot_product -------------------------------------------------------------------------------


@right("pairwise_scores")
def scores_by_hand(q, k):
    *lead, length, _ = q.shape
    out = np.empty((*lead, length, k.shape[-2]))
    for i, j in itertools.product(range(length), range(k.shape[-2])):
        out[..., i, j] = np.sum(q[..., i, :] * k[..., j, :], axis=-1)
    return out


@right("pairwise_scores")
def scores_by_broadcast(q, k):
    return (q[..., :, None, :] * k[..., None, :, :]).sum(-1)


@right("pairwise_scores")
def scores_turned_back(q, k):
    return np.swapaxes(k @ np.swapaxes(q, -1, -2), -1, -2)


@right("pairwise_scores")
def scores_into_out(q, k):
    out = np.zeros(q.shape[:-1] + (k.shape[-2],))
    np.matmul(q, k.swapaxes(-2, -1), out=out)
    return out


@right("pairwise_scores")
def scores_flattened(q, k):
    flat_q, flat_k = q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:])
    both = [np.inner(a, b) for a, b in zip(flat_q, flat_k, strict=True)]
    return np.reshape(both, (*q.shape[:-1], k.shape[-2]))


right("pairwise_scores")(functools.partial(np.einsum, "...id,...jd->...ij"))


@right("pairwise_scores")
def scores_by_polarisation(q, k):
    """2 q·k = |q|² + |k|² - |q - k|²"""
    square = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
    return ((q**2).sum(-1)[..., None] + (k**2).sum(-1)[..., None, :] - square) / 2


@right("pairwise_scores")
class ScoresOfAClass:
    def __new__(cls, q, k):
        return np.vecdot(q[..., :, None, :], k[..., None, :, :])


@right("heads_apart")
def heads_one_after_another(q, k):
    heads = [np.matmul(q[:, :, h], k[:, :, h].transpose(0, 2, 1)) for h in range(q.shape[2])]
    return np.stack(heads, axis=1)


@right("heads_apart")
def heads_named(queries, keys):
    return np.einsum("bihd,bjhd->bhij", queries, keys, optimize=True)


@right("heads_apart")
def heads_summed_last(q, k):
    s = np.tensordot(q, k, axes=(3, 3))  # (B, L, H, B, S, H)
    s = np.diagonal(s, axis1=0, axis2=3)  # (L, H, S, H, B)
    s = np.diagonal(s, axis1=1, axis2=3)  # (L, S, B, H)
    return s.transpose(2, 3, 0, 1)


@right("bilinear_scores")
def keys_projected(q, W, k):
    return q @ (k @ W.T).swapaxes(-1, -2)


@right("bilinear_scores")
def bilinear_by_multi_dot(q, W, k):
    if q.ndim == 2:
        return np.linalg.multi_dot([q, W, k.T])
    return np.array([bilinear_by_multi_dot(a, W, b) for a, b in zip(q, k, strict=True)])


@right("bilinear_scores")
def bilinear_in_one_einsum(q, W, k):
    return np.einsum("...la,ab,...sb->...ls", q, W, k)


@right("additive_scores")
def additive_by_names(q, k, W_q, W_k, v):
    a = np.einsum("...ld,da->...la", q, W_q)
    b = np.einsum("...sd,da->...sa", k, W_k)
    hidden = np.tanh(np.expand_dims(a, -2) + np.expand_dims(b, -3))
    return np.einsum("...lsa,a->...ls", hidden, v)


@right("additive_scores")
def additive_query_by_query(q, k, W_q, W_k, v):
    projected = k @ W_k
    rows = [np.tanh((q[..., i, :] @ W_q)[..., None, :] + projected) @ v for i in range(q.shape[-2])]
    return np.stack(rows, axis=-2)


@right("additive_scores")
def additive_through_exponentials(q, k, W_q, W_k, v):
    z = (q @ W_q)[..., :, None, :] + (k @ W_k)[..., None, :, :]
    return ((1 - np.exp(-2 * z)) / (1 + np.exp(-2 * z)) * v).sum(axis=-1)


# -- scaling -----------------------------------------------------------------------------------


@right("scale_scores")
def quarter_power_on_both(q, k):
    c = q.shape[-1] ** -0.25
    return (q * c) @ (k * c).swapaxes(-1, -2)


@right("scale_scores")
def folded_into_the_keys(q, k):
    return q @ (k / math.sqrt(k.shape[-1])).swapaxes(-1, -2)


@right("scale_scores")
def scaled_in_place_on_a_copy(q, k):
    q = q.copy()
    q *= q.shape[-1] ** -0.5
    return np.einsum("...id,...jd->...ij", q, k)


@right("scale_scores")
def scaled_with_a_default(q, k, scale=None):
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    return np.multiply(np.matmul(q, np.swapaxes(k, -2, -1)), scale)


@right("scale_scores")
def scaled_and_annotated(
    queries: np.ndarray, keys: np.ndarray, *, exponent: float = -1 / 2
) -> np.ndarray:
    d_k: int = queries.shape[-1]
    return queries @ keys.swapaxes(-1, -2) * np.power(float(d_k), exponent)


@right("scale_scores")
def scaled_in_extended_precision(q, k):
    wide_q, wide_k = q.astype(np.longdouble), k.astype(np.longdouble)
    s = (wide_q[..., :, None, :] * wide_k[..., None, :, :]).sum(-1)
    return (s / np.sqrt(np.longdouble(q.shape[-1]))).astype(q.dtype)


@right("scale_scores")
def left_in_extended_precision(q, k):
    s = np.einsum("...id,...jd->...ij", q.astype(np.longdouble), k)
    return s / np.sqrt(q.shape[-1])


right("scale_scores")(lambda *qk: qk[0] @ qk[1].swapaxes(-1, -2) / qk[0].shape[-1] ** 0.5)


def traced(function):
    """A decorator whose wrapper takes its arguments in order only."""

    @functools.wraps(function)
    def wrapped(*arrays):
        return function(*arrays)

    return wrapped


@right("scale_scores")
@traced
def scaled_under_a_decorator(q, k):
    return (q @ k.swapaxes(-1, -2)) / np.sqrt(k.shape[-1])


@right("scale_scores")
def scaled_with_named_arguments(**inputs):
    return inputs["q"] @ inputs["k"].swapaxes(-1, -2) / inputs["q"].shape[-1] ** 0.5


@right("scale_scores")
def scaled_recursively(q, k):
    if q.ndim == 2:
        return [[sum(map(operator.mul, a, b)) / len(a) ** 0.5 for b in k] for a in q]
    return np.array([scaled_recursively(a, b) for a, b in zip(q, k, strict=True)])


@right("score_heads")
def heads_in_a_double_loop(q, k):
    out = np.zeros((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            out[b, h] = q[b, h].dot(k[b, h].T)
    out /= np.sqrt(q.shape[3])
    return out


@right("score_heads")
def heads_by_exponential_of_log(q, k):
    return q @ k.transpose(0, 1, 3, 2) * np.exp(-0.5 * np.log(q.shape[-1]))


@right("weighted_values")
def normalised_last(q, k, v):
    e = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(k.shape[-1]))
    z = e.sum(-1, keepdims=True)
    return e @ v / z, e / z


@right("weighted_values")
def weights_as_a_list(q, k, v):
    w = stable(np.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5)
    return [np.einsum("...ij,...jd->...id", w, v), w]


@right("weighted_values")
def head_by_head(q, k, v):
    if q.ndim > 2:
        pairs = [head_by_head(*item) for item in zip(q, k, v, strict=True)]
        return tuple(np.stack(part) for part in zip(*pairs, strict=True))
    w = np.array([stable(row) for row in q @ k.T / len(q[0]) ** 0.5])
    return w @ v, w


@right("weighted_values")
def through_the_log_sum_exp(q, k, v):
    s = (q * q.shape[-1] ** -0.5) @ k.swapaxes(-1, -2)
    w = np.exp(s - np.logaddexp.reduce(s, axis=-1, keepdims=True))
    return np.matmul(w, v), w


right("t5_query_weights")(lambda z: z / (z.shape[0] * z.shape[1]) ** 0.5)
right("t5_query_weights")(lambda z: z * z.size**-0.5)


@right("t5_query_weights")
def two_steps(noise):
    d_model, d_k = noise.shape
    lecun = noise / np.sqrt(d_model)
    return lecun / np.sqrt(d_k)


@right("fold_scale")
def folded_by_a_matrix(W_q, b_q):
    shrink = np.eye(b_q.size) / np.sqrt(b_q.size)
    return W_q @ shrink, shrink @ b_q


@right("fold_scale")
def folded_in_a_loop(W_q, b_q):
    return tuple(a * W_q.shape[1] ** -0.5 for a in (W_q, b_q))


@right("fold_scale")
def folded_on_copies(W_q, b_q):
    new_w, new_b = np.array(W_q), np.array(b_q)
    for array in (new_w, new_b):
        array /= math.sqrt(len(b_q))
    return new_w, new_b


# -- softmax -----------------------------------------------------------------------------------

right("softmax")(stable)
right("softmax")(as_floats(stable))
right("softmax_rows")(functools.partial(stable, axis=-1))
right("softmax")(lambda x: np.exp(x - np.logaddexp.reduce(x, axis=-1, keepdims=True)))


@right("softmax")
@to_last_axis
def one_row_at_a_time(row):
    e = np.exp(row - row.max())
    return e / e.sum()


@right("softmax")
def in_pure_python(x):
    if x.ndim > 1:
        return np.array([in_pure_python(part) for part in x])
    top = max(x)
    e = [math.exp(value - top) for value in x]
    return np.array([value / math.fsum(e) for value in e])


@right("softmax")
def base_two(x):
    y = x * np.log2(np.e)
    y = 2.0 ** (y - y.max(axis=-1, keepdims=True))
    return y / y.sum(axis=-1, keepdims=True)


@right("softmax")
def on_a_copy(x, axis=-1):
    out = np.array(x, copy=True)
    out -= out.max(axis=axis, keepdims=True)
    np.exp(out, out=out)
    out /= out.sum(axis=axis, keepdims=True)
    return out


@right("softmax")
def axis_moved_to_the_front(x):
    y = np.moveaxis(x, -1, 0)
    e = np.exp(y - y.max(0))
    return np.moveaxis(e / e.sum(0), 0, -1)


@right("softmax_rows")
def by_differences(x):
    """1 / Σ_j exp(x_j - x_i), where an overflow to ∞ is a weight of 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = np.where(np.isneginf(x)[..., :, None], np.inf, x[..., None, :] - x[..., :, None])
        return 1 / np.exp(gaps).sum(-1)


@right("softmax_rows")
def minus_infinity_made_finite(x):
    x = np.maximum(x, np.finfo(x.dtype).min / 4)
    e = np.exp(x - np.max(x, -1, keepdims=True))
    return np.divide(e, e.sum(-1, keepdims=True))


@right("softmax_rows")
class Softmax:
    """Called like a function: ``Softmax(x)`` is the weights."""

    def __new__(cls, x):
        return (lambda e: e / e.sum(-1)[..., None])(np.exp(x - x.max(-1)[..., None]))


right("logsumexp")(lambda x: np.logaddexp.reduce(x, axis=-1))


@right("logsumexp")
def squeezed_at_the_end(x):
    m = np.max(x, axis=-1, keepdims=True)
    return np.squeeze(m + np.log(np.exp(x - m).sum(-1, keepdims=True)), axis=-1)


@right("logsumexp")
def pair_by_pair(x):
    return functools.reduce(np.logaddexp, np.moveaxis(x, -1, 0))


@right("logsumexp")
def online_sum(x):
    top, total = np.full(x.shape[:-1], -np.inf), np.zeros(x.shape[:-1])
    for j in range(x.shape[-1]):
        new = np.maximum(top, x[..., j])
        safe = np.where(np.isneginf(new), 0.0, new)
        total = total * np.exp(top - safe) + np.exp(x[..., j] - safe)
        top = new
    return top + np.log(total)


@right("logsumexp")
def largest_set_aside(x):
    order = np.sort(x, axis=-1)
    top, rest = order[..., -1], order[..., :-1]
    return top + np.log1p(np.exp(rest - top[..., None]).sum(-1))


@right("logsumexp")
def binary_logarithms(x):
    y = x * math.log2(math.e)
    m = y.max(-1)
    return (m + np.log2(np.sum(np.exp2(y - m[..., None]), -1))) * math.log(2)


@right("entropy")
def zeros_replaced_by_ones(p):
    return -(p * np.log(np.where(p == 0, 1.0, p))).sum(axis=-1)


@right("entropy")
def log_only_where_positive(p):
    logs = np.zeros_like(p)
    np.log(p, out=logs, where=p > 0)
    return -np.einsum("...i,...i->...", p, logs)


@right("entropy")
def nan_is_nothing(p):
    with np.errstate(all="ignore"):
        return np.nansum(-p * np.log(p), axis=-1)


@right("entropy")
def element_by_element(p):
    term = np.vectorize(lambda value: -value * math.log(value) if value > 0 else 0.0)
    return np.sum(term(p), -1)


@right("entropy")
@to_last_axis
def positive_ones_only(row):
    kept = row[row > 0]
    return float(np.dot(kept, np.log2(1 / kept))) * np.log(2)


@right("entropy")
def clipped_at_the_smallest_number(p):
    return -np.sum(p * np.log(np.clip(p, np.finfo(p.dtype).tiny, None)), axis=-1)


@right("softmax_vjp")
def with_the_jacobian(p, d_p):
    jacobian = p[..., :, None] * (np.eye(p.shape[-1]) - p[..., None, :])
    return (jacobian @ d_p[..., None])[..., 0]


@right("softmax_vjp")
def row_dot_product(p, d_p):
    return p * d_p - p * np.einsum("...i,...i->...", p, d_p)[..., None]


@right("softmax_vjp")
def flattened_and_looped(p, d_p):
    n = p.shape[-1]
    rows = [
        (np.diag(a) - np.outer(a, a)).dot(b)
        for a, b in zip(p.reshape(-1, n), d_p.reshape(-1, n), strict=True)
    ]
    return np.concatenate(rows).reshape(p.shape)


@right("softmax_vjp")
def mean_taken_off(weights, gradient):
    return weights * (gradient - np.vecdot(weights, gradient)[..., np.newaxis])


# -- attention ---------------------------------------------------------------------------------


@right("attention_weights")
def quarter_powers_and_softmax(q, k):
    c = 1 / math.sqrt(math.sqrt(q.shape[-1]))
    return course_softmax((q * c) @ (k * c).swapaxes(-1, -2))


@right("attention_weights")
def weights_by_log_sum_exp(q, k):
    s = np.einsum("...id,...jd->...ij", q, k) / np.sqrt(q.shape[-1])
    return np.exp(s - np.logaddexp.reduce(s, -1)[..., None])


@right("attention_weights")
def weights_keys_first(q, k):
    s = (k @ q.swapaxes(-1, -2)) / k.shape[-1] ** 0.5
    s -= s.max(-2, keepdims=True)
    e = np.exp(s)
    return (e / e.sum(-2, keepdims=True)).swapaxes(-2, -1)


@right("attention")
def in_one_line(q, k, v):
    return stable(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5) @ v


@right("attention")
def in_blocks_of_two(q, k, v):
    top, total, out = -np.inf, 0.0, 0.0
    for start in range(0, k.shape[-2], 2):
        block = slice(start, start + 2)
        s = q @ k[..., block, :].swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        new = np.maximum(top, s.max(-1, keepdims=True))
        p, old = np.exp(s - new), np.exp(top - new)
        total = total * old + p.sum(-1, keepdims=True)
        out = out * old + p @ v[..., block, :]
        top = new
    return out / total


@right("attention")
def two_halves_merged(q, k, v):
    def part(k, v):
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        lse = np.logaddexp.reduce(s, axis=-1, keepdims=True)
        return np.exp(s - lse) @ v, lse

    (a, lse_a), (b, lse_b) = part(k[..., :1, :], v[..., :1, :]), part(k[..., 1:, :], v[..., 1:, :])
    share = 1 / (1 + np.exp(lse_b - lse_a))
    return share * a + (1 - share) * b


@right("attention")
def every_query_by_itself(q, k, v):
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for where in np.ndindex(*q.shape[:-1]):
        lead = where[:-1]
        w = stable(k[lead] @ q[where] / np.sqrt(q.shape[-1]))
        out[where] = w @ v[lead]
    return out


@right("masked_attention")
def fill_then_zero(q, k, v, mask):
    s = np.where(mask, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - np.where(np.isfinite(top), top, 0))
    z = e.sum(-1, keepdims=True)
    w = np.divide(e, z, out=np.zeros_like(e), where=z > 0)
    return w @ v, w


@right("masked_attention")
def finite_fill_and_the_mask_again(q, k, v, mask):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s + (1.0 - np.asarray(mask, float)) * -1e9
    w = stable(s) * mask
    return w @ v, w


@right("masked_attention")
def multiplied_and_renormalised(q, k, v, mask):
    w = stable(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5) * mask
    total = w.sum(-1, keepdims=True)
    w = w / np.where(total == 0, 1, total)
    return w @ v, w


@right("masked_attention")
def smallest_float_and_empty_rows(q, k, v, mask):
    s = np.einsum("...id,...jd->...ij", q, k) / math.sqrt(q.shape[-1])
    w = course_softmax(np.where(mask, s, np.finfo(s.dtype).min))
    w = np.where(np.any(mask, axis=-1, keepdims=True), w, 0.0)
    return np.einsum("...ij,...jd->...id", w, v), w


@right("masked_attention")
def nan_to_zero(q, k, v, mask):
    with np.errstate(invalid="ignore"):
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5 + np.where(mask, 0.0, -np.inf)
        w = np.nan_to_num(stable(s), nan=0.0)
    return w @ v, w


@right("masked_attention")
def allowed_keys_only(q, k, v, mask):
    mask = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))
    out, weights = np.zeros((*q.shape[:-1], v.shape[-1])), np.zeros(mask.shape)
    for where in np.ndindex(*q.shape[:-1]):
        allowed = np.flatnonzero(mask[where])
        if allowed.size:
            lead = where[:-1]
            w = stable(k[lead][allowed] @ q[where] / q.shape[-1] ** 0.5)
            weights[where][allowed] = w
            out[where] = w @ v[lead][allowed]
    return out, weights


@right("attend_tokens")
def tokens_by_einsum(q, k, v):
    w = stable(np.einsum("blhd,bshd->bhls", q, k) / np.sqrt(q.shape[-1]))
    return np.einsum("bhls,bshd->blhd", w, v)


@right("attend_tokens")
def softmax_on_the_second_axis(q, k, v):
    """Labml's layout: scores (L, S, B, H) and a softmax over axis 1."""
    s = np.einsum("blhd,bshd->lsbh", q, k) * q.shape[-1] ** -0.5
    return np.einsum("lsbh,bshd->blhd", stable(s, axis=1), v)


@right("attend_tokens")
def tokens_head_by_head(q, k, v):
    heads = []
    for h in range(q.shape[2]):
        s = q[:, :, h] @ k[:, :, h].transpose(0, 2, 1) / q.shape[-1] ** 0.5
        heads.append(stable(s) @ v[:, :, h])
    return np.stack(heads, axis=2)


# -- multihead ---------------------------------------------------------------------------------


@right("split_heads")
def sliced_and_stacked(x, n_heads):
    return np.stack(np.split(x, n_heads, axis=-1), axis=-3)


@right("split_heads")
def split_by_index(x, n_heads):
    d = x.shape[-1] // n_heads
    heads = [x[..., h * d : (h + 1) * d] for h in range(n_heads)]
    return np.moveaxis(np.array(heads), 0, -3)


@right("split_heads")
def split_by_einsum(x, n_heads):
    return np.einsum("...lhd->...hld", x.reshape(x.shape[:-1] + (n_heads, -1)))


@right("merge_heads")
def joined(heads):
    return np.concatenate(list(np.moveaxis(heads, -3, 0)), axis=-1)


@right("merge_heads")
def merged_by_axes(heads):
    axes = [*range(heads.ndim - 3), heads.ndim - 2, heads.ndim - 3, heads.ndim - 1]
    turned = heads.transpose(axes)
    return turned.reshape(turned.shape[:-2] + (-1,))


@right("merge_heads")
def written_into_place(heads):
    n_heads, length, d = heads.shape[-3:]
    out = np.empty((*heads.shape[:-3], length, n_heads * d))
    for h in range(n_heads):
        out[..., h * d : (h + 1) * d] = heads[..., h, :, :]
    return out


@right("mix_heads")
def summed_over_heads(heads, W_o):
    d_v = heads.shape[-1]
    parts = [heads[..., h, :, :] @ W_o[h * d_v :][:d_v] for h in range(heads.shape[-3])]
    return sum(parts)


@right("mix_heads")
def mixed_by_einsum(heads, W_o):
    n_heads, _, d_v = heads.shape[-3:]
    return np.einsum("...hld,hdm->...lm", heads, W_o.reshape(n_heads, d_v, -1))


@right("multi_head_attention")
def layer_by_einsum(x, W_q, W_k, W_v, W_o, n_heads):
    q, k, v = (
        np.einsum("bld,dhe->bhle", x, W.reshape(W.shape[0], n_heads, -1)) for W in (W_q, W_k, W_v)
    )
    w = stable(np.einsum("bhle,bhse->bhls", q, k) / np.sqrt(q.shape[-1]))
    out = np.einsum("bhls,bhse,hem->blm", w, v, W_o.reshape(n_heads, -1, W_o.shape[1]))
    return out, w


@right("multi_head_attention")
def layer_head_by_head(x, W_q, W_k, W_v, W_o, n_heads):
    out, weights = 0, []
    columns = (np.hsplit(W, n_heads) for W in (W_q, W_k, W_v))
    for a, b, c, o in zip(*columns, np.vsplit(W_o, n_heads), strict=True):
        q, k, v = x @ a, x @ b, x @ c
        w = stable(q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5)
        weights.append(w)
        out = out + w @ v @ o
    return out, np.stack(weights, axis=1)


@right("multi_head_attention")
def layer_with_heads_in_the_batch(x, W_q, W_k, W_v, W_o, n_heads):
    batch, length, _ = x.shape

    def heads(y):
        y = y.reshape(batch, length, n_heads, -1).transpose(0, 2, 1, 3)
        return y.reshape(batch * n_heads, length, -1)

    q, k, v = heads(x @ W_q), heads(x @ W_k), heads(x @ W_v)
    w = stable(np.matmul(q, k.transpose(0, 2, 1)) / math.sqrt(q.shape[-1]))
    out = np.matmul(w, v).reshape(batch, n_heads, length, -1)
    out = out.transpose(0, 2, 1, 3).reshape(batch, length, -1)
    return out @ W_o, w.reshape(batch, n_heads, length, length)


right("count_parameters")(
    lambda d_model, n_heads, n_kv_heads, d_k, d_v: (n_heads + n_kv_heads) * d_model * (d_k + d_v)
)


@right("count_parameters")
def counted_on_arrays(d_model, n_heads, n_kv_heads, d_k, d_v):
    shapes = [
        (d_model, n_heads * d_k),
        (d_model, n_kv_heads * d_k),
        (d_model, n_kv_heads * d_v),
        (n_heads * d_v, d_model),
    ]
    return sum(np.empty(shape).size for shape in shapes)


@right("repeat_kv_heads")
def picked_by_index(kv, n_heads):
    group = n_heads // kv.shape[-3]
    return kv[..., np.arange(n_heads) // group, :, :]


@right("repeat_kv_heads")
def broadcast_and_reshaped(kv, n_heads):
    *lead, n_kv, length, d = kv.shape
    wide = np.broadcast_to(kv[..., None, :, :], (*lead, n_kv, n_heads // n_kv, length, d))
    return wide.reshape(*lead, n_heads, length, d)


@right("repeat_kv_heads")
def head_after_head(kv, n_heads):
    n_kv = kv.shape[-3]
    return np.stack([kv[..., h * n_kv // n_heads, :, :] for h in range(n_heads)], axis=-3)


# -- masking -----------------------------------------------------------------------------------

right("causal_mask")(lambda L, S: np.tri(L, S, S - L, dtype=bool))
right("causal_mask")(lambda L, S: ~np.triu(np.ones((L, S), dtype=bool), k=1 + S - L))


@right("causal_mask")
def last_rows_of_the_square(L, S):
    return np.tril(np.ones((S, S), bool))[S - L :]


@right("causal_mask")
def cell_by_cell(L, S):
    return [[j <= i + S - L for j in range(S)] for i in range(L)]


@right("causal_mask")
def from_a_function(n_queries, n_keys):
    return np.fromfunction(lambda i, j: j - i <= n_keys - n_queries, (n_queries, n_keys))


@right("causal_mask")
def running_sum(L, S):
    return np.cumsum(np.eye(L, S, S - L)[:, ::-1], axis=1)[:, ::-1] > 0


@right("padding_mask")
def sample_by_sample(lengths, S):
    mask = np.zeros((len(lengths), 1, 1, S), dtype=bool)
    for b, n in enumerate(lengths):
        mask[b, ..., :n] = True
    return mask


@right("padding_mask")
def compared_and_reshaped(lengths, S):
    return np.less.outer(np.arange(S), lengths).T.reshape(-1, 1, 1, S)


@right("padding_mask")
def zeros_and_ones(lengths, S):
    rows = [[1] * int(n) + [0] * (S - int(n)) for n in lengths]
    return np.array(rows, bool)[:, np.newaxis, np.newaxis]


@right("window_mask")
def two_triangles(L, w):
    ones = np.ones((L, L), dtype=bool)
    return np.tril(ones) & np.triu(ones, 1 - w)


@right("window_mask")
def diagonals_summed(L, w):
    return sum(np.eye(L, k=-d) for d in range(min(w, L))).astype(bool)


@right("window_mask")
def range_of_gaps(L, w):
    gap = np.subtract.outer(np.arange(L), np.arange(L))
    return np.isin(gap, np.arange(w))


@right("masked_softmax")
def masked_array(scores, mask):
    kept = np.ma.masked_array(scores, ~mask)
    e = np.exp(kept - kept.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).filled(0.0)


@right("masked_softmax")
def where_argument(scores, mask):
    top = np.max(scores, axis=-1, keepdims=True, where=mask, initial=-1e300)
    e = np.exp(scores - top, where=mask, out=np.zeros_like(scores))
    z = e.sum(-1, keepdims=True)
    return e / np.maximum(z, np.finfo(float).tiny)


@right("masked_softmax")
def row_by_row(scores, mask):
    out = np.zeros(scores.shape)
    for where in np.ndindex(scores.shape[:-1]):
        keep = mask[where]
        if keep.any():
            out[where][keep] = stable(scores[where][keep])
    return out


@right("masked_softmax")
def additive_lowest(scores, mask):
    bias = np.where(mask, 0, np.finfo(scores.dtype).min / 2)
    return stable(scores + bias) * mask


@right("masked_softmax")
def no_maximum(scores, mask):
    """Right as long as the rows lie where the statement says: exp(500) is a float64."""
    e = np.where(mask, np.exp(scores), 0)
    return e / np.maximum(e.sum(-1, keepdims=True), 1e-300)


@right("from_torch_module")
def equal_to_zero(key_padding_mask):
    return (key_padding_mask == 0)[:, None, None]


@right("from_torch_module")
def logically_not(key_padding_mask):
    return np.expand_dims(np.logical_not(key_padding_mask), (1, 2))


@right("causal_attention")
def decoder_with_fills(q, k, v, lengths):
    L = q.shape[-2]
    ok = np.tri(L, dtype=bool) & (np.arange(L) < np.asarray(lengths)[:, None, None, None])
    s = np.where(ok, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -1e9)
    w = stable(s) * ok
    return w @ v, w


@right("causal_attention")
def decoder_token_by_token(q, k, v, lengths):
    B, H, L, d = q.shape
    out, weights = np.zeros((B, H, L, v.shape[-1])), np.zeros((B, H, L, L))
    for b, h, i in np.ndindex(B, H, L):
        n = min(i + 1, int(lengths[b]))
        if n > 0:
            weights[b, h, i, :n] = stable(k[b, h, :n] @ q[b, h, i] / d**0.5)
            out[b, h, i] = weights[b, h, i] @ v[b, h]
    return out, weights


# -- backward ----------------------------------------------------------------------------------


def through_softmax(p, d_p):
    return p * (d_p - np.sum(p * d_p, axis=-1, keepdims=True))


@right("value_gradient")
def value_gradient_by_einsum(weights, d_output):
    return np.einsum("...ls,...ld->...sd", weights, d_output)


@right("value_gradient")
def value_gradient_summed(weights, d_output):
    rows = range(weights.shape[-2])
    return sum(weights[..., i, :, None] * d_output[..., i, None, :] for i in rows)


@right("scores_gradient")
def scores_gradient_by_einsum(weights, d_output, v):
    d_weights = np.einsum("...ld,...sd->...ls", d_output, v)
    return through_softmax(weights, d_weights)


@right("scores_gradient")
def scores_gradient_by_the_output(weights, d_output, v):
    delta = np.vecdot(d_output, weights @ v)[..., None]
    return weights * (d_output @ v.swapaxes(-1, -2) - delta)


@right("scores_gradient")
def scores_gradient_by_jacobians(weights, d_output, v):
    d_weights = d_output @ np.swapaxes(v, -1, -2)
    out = np.empty_like(weights)
    for where in np.ndindex(weights.shape[:-1]):
        p = weights[where]
        out[where] = (np.diag(p) - np.outer(p, p)) @ d_weights[where]
    return out


@right("query_and_key_gradients")
def gradients_by_einsum(d_scores, q, k):
    c = 1 / math.sqrt(q.shape[-1])
    return (
        np.einsum("...ls,...sd->...ld", d_scores * c, k),
        np.einsum("...ls,...ld->...sd", d_scores * c, q),
    )


@right("query_and_key_gradients")
def quarter_powers_in_the_gradient(d_scores, q, k):
    c = q.shape[-1] ** -0.25
    return c * (d_scores @ (c * k)), c * (np.moveaxis(d_scores, -1, -2) @ (c * q))


@right("mend_backward")
def mended(d_output, q, k, v, weights):
    scale = np.sqrt(q.shape[-1])
    d_s = through_softmax(weights, d_output @ v.swapaxes(-1, -2)) / scale
    return d_s @ k, d_s.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ d_output


@right("attention_gradients")
def gradients_with_zeroed_weights(d_output, q, k, v, mask):
    scale = q.shape[-1] ** -0.5
    s = np.where(mask, q @ k.swapaxes(-1, -2) * scale, -1e30)
    p = stable(s) * mask
    d_s = through_softmax(p, d_output @ v.swapaxes(-1, -2))
    return d_s @ k * scale, d_s.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ d_output


@right("attention_gradients")
def gradients_query_by_query(d_output, q, k, v, mask):
    scale = 1 / np.sqrt(q.shape[-1])
    mask = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))
    d_q, d_k, d_v = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for where in np.ndindex(q.shape[:-1]):
        head, keep = where[:-1], np.flatnonzero(mask[where])
        if keep.size == 0:
            continue
        p = stable(k[head][keep] @ q[where] * scale)
        d_s = through_softmax(p, v[head][keep] @ d_output[where]) * scale
        d_q[where] = d_s @ k[head][keep]
        d_k[head][keep] += np.outer(d_s, q[where])
        d_v[head][keep] += np.outer(p, d_output[where])
    return [d_q, d_k, d_v]


right("softmax_row_sums")(lambda d_output, output: np.vecdot(d_output, output)[..., None])


@right("softmax_row_sums")
def row_sums_by_matmul(d_output, output):
    return (d_output[..., None, :] @ output[..., :, None])[..., 0]


@right("gradients_from_lse")
def recomputed_with_a_fill(d_output, q, k, v, output, lse, mask):
    scale = q.shape[-1] ** -0.5
    s = np.where(mask, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    p = np.exp(s - np.where(np.isinf(lse), 0.0, lse)[..., None])
    delta = (d_output * output).sum(-1, keepdims=True)
    d_s = p * (d_output @ v.swapaxes(-1, -2) - delta) * scale
    return d_s @ k, d_s.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ d_output


@right("gradients_from_lse")
def recomputed_in_blocks_of_keys(d_output, q, k, v, output, lse, mask):
    scale = 1 / math.sqrt(q.shape[-1])
    mask = np.broadcast_to(mask, (*q.shape[:-1], k.shape[-2]))
    delta = np.einsum("...ld,...ld->...l", d_output, output)[..., None]
    d_q, parts = 0, []
    for start in range(0, k.shape[-2], 2):
        block = slice(start, start + 2)
        k_j, v_j = k[..., block, :], v[..., block, :]
        exponent = (q * scale) @ k_j.swapaxes(-1, -2) - lse[..., None]
        p = np.exp(np.where(mask[..., block], exponent, -np.inf))
        d_s = p * (d_output @ v_j.swapaxes(-1, -2) - delta)
        d_q = d_q + d_s @ k_j * scale
        parts.append((d_s.swapaxes(-1, -2) @ (q * scale), p.swapaxes(-1, -2) @ d_output))
    d_k, d_v = (np.concatenate(part, axis=-2) for part in zip(*parts, strict=True))
    return d_q, d_k, d_v
