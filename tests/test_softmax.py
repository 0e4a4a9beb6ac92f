"""Softmax, its logarithm, its derivative and its entropy."""

import math
import warnings

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sdpa_course import with_numpy as ours

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

scores = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 4), st.integers(1, 7)), elements=st.floats(-1e4, 1e4)
)
EPS = np.finfo(np.float64).eps


@settings(max_examples=50)
@given(x=scores)
def test_every_row_sums_to_one_and_no_weight_is_negative(backend, x):
    weights = backend.softmax(x)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=rounding(np.float64, x.shape[-1]))


@settings(max_examples=50)
@given(x=scores, shift=st.integers(-(10**6), 10**6))
def test_only_differences_within_a_row_matter(backend, x, shift):
    shifted = x + shift
    tolerance = 4 * (np.abs(shifted).max() + np.abs(x).max()) * EPS + rounding(np.float64, 8)
    np.testing.assert_allclose(backend.softmax(shifted), backend.softmax(x), atol=tolerance)


def test_it_equals_the_formula_where_the_formula_works(backend):
    x = normal(3, 5, seed=2)
    expected = [[math.exp(s) / sum(map(math.exp, row)) for s in row] for row in x.tolist()]
    np.testing.assert_allclose(backend.softmax(x), expected, rtol=rounding(np.float64, 5))
    np.testing.assert_allclose(backend.softmax_naive(x), expected, rtol=rounding(np.float64, 5))


def test_negative_scores_are_not_unrelated_keys(backend):
    weights = backend.softmax(np.array([-1.0, -2.0, -3.0]))
    np.testing.assert_allclose(weights, [0.665, 0.245, 0.090], atol=5e-4)


@pytest.mark.parametrize(
    ("dtype", "limit"), [(np.float16, 11.09), (np.float32, 88.72), (np.float64, 709.78)]
)
def test_the_naive_formula_overflows_where_the_stable_one_does_not(backend, dtype, limit):
    below, above = (np.full((1, 2), x, dtype) for x in (limit - 1.0, limit + 0.1))
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isfinite(backend.softmax_naive(below[:, :1])).all()
        assert np.isnan(backend.softmax_naive(above)).all()
    np.testing.assert_array_equal(backend.softmax(above), [[0.5, 0.5]])


def test_a_row_far_below_the_others_is_as_exact_as_they_are(backend):
    x = np.array([[1000.0, 1001.0], [-1000.0, -999.0], [0.0, 1.0]])
    weights = backend.softmax(x)
    np.testing.assert_allclose(weights, np.broadcast_to(weights[2], (3, 2)), rtol=4 * EPS)


def test_a_row_with_nothing_gives_zeros_and_no_warning(backend):
    x = np.array([[-np.inf, -np.inf], [-np.inf, 3.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(backend.softmax(x), [[0, 0], [0, 1]])
        np.testing.assert_array_equal(backend.softmax(np.empty((2, 0))), np.empty((2, 0)))
        np.testing.assert_array_equal(backend.logsumexp(x), [-np.inf, 3])
        expected = [[-np.inf, -np.inf], [-np.inf, 0]]
        np.testing.assert_array_equal(backend.log_softmax(x), expected)


def test_nan_and_plus_infinity_are_not_hidden(backend):
    assert np.isnan(backend.softmax(np.array([1.0, np.nan]))).all()
    assert np.isnan(backend.softmax(np.array([1.0, np.inf]))).any()


@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_the_axis_is_the_one_that_sums_to_one(backend, axis):
    x = normal(3, 4, 5)
    np.testing.assert_allclose(backend.softmax(x, axis=axis).sum(axis=axis), 1, rtol=16 * EPS)
    moved = np.moveaxis(backend.softmax(np.moveaxis(x, axis, -1)), -1, axis)
    np.testing.assert_allclose(backend.softmax(x, axis=axis), moved, rtol=16 * EPS)
    np.testing.assert_allclose(
        backend.logsumexp(x, axis=axis),
        np.log(np.exp(x).sum(axis=axis)),
        rtol=16 * EPS,
        atol=16 * EPS,
    )


@settings(max_examples=50)
@given(x=scores)
def test_log_softmax_is_the_logarithm_and_does_not_underflow(backend, x):
    logs = backend.log_softmax(x)
    assert np.isfinite(logs).all()
    tolerance = 4 * EPS * (np.abs(x).max() + 10)
    np.testing.assert_allclose(np.exp(logs), backend.softmax(x), atol=tolerance)
    np.testing.assert_allclose(x - backend.logsumexp(x)[:, None], logs, atol=tolerance)


@settings(max_examples=30)
@given(x=arrays.arrays(np.float64, (2, 4), elements=st.floats(-5, 5)))
def test_the_jacobian_agrees_with_finite_differences(backend, x):
    jacobian = backend.softmax_jacobian(backend.softmax(x))
    assert jacobian.shape == (2, 4, 4)
    step = 1e-5
    for j in range(4):
        move = step * np.eye(4)[j]
        slope = (backend.softmax(x + move) - backend.softmax(x - move)) / (2 * step)
        # error of the formula step²/6 · |third derivative| (below 1), and rounding eps/step
        np.testing.assert_allclose(jacobian[:, :, j], slope, atol=step**2 + 8 * EPS / step)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
def test_the_products_are_the_jacobian_times_a_vector(backend, seed, n):
    p, t = backend.softmax(3 * normal(2, n, seed=seed)), normal(2, n, seed=seed + 1)
    expected = np.einsum("bij,bj->bi", backend.softmax_jacobian(p), t)
    tolerance = rounding(np.float64, n, 10)
    np.testing.assert_allclose(backend.softmax_jvp(p, t), expected, atol=tolerance)
    np.testing.assert_allclose(backend.softmax_vjp(p, t), expected, atol=tolerance)
    np.testing.assert_allclose(backend.softmax_vjp(p, t).sum(axis=-1), 0, atol=tolerance)
    norm = np.linalg.norm(backend.softmax_jacobian(p), axis=(-2, -1))
    # a square root loses half of the digits next to 0
    np.testing.assert_allclose(backend.softmax_jacobian_norm(p), norm, atol=math.sqrt(tolerance))


def test_the_jacobian_vanishes_for_one_hot_and_shrinks_for_uniform_weights(backend):
    one_hot, uniform = np.eye(4)[0], np.full(4096, 1 / 4096)
    assert backend.softmax_jacobian_norm(one_hot) == 0
    assert backend.softmax_jacobian_norm(uniform) == pytest.approx(1 / 64, rel=1e-3)  # 1/√n


@settings(max_examples=50)
@given(x=scores)
def test_entropy_is_between_zero_and_ln_n(backend, x):
    n = x.shape[-1]
    entropies = backend.entropy(backend.softmax(x))
    assert (entropies >= 0).all()
    assert (entropies <= math.log(n) + rounding(np.float64, n, math.log(n) + 1)).all()
    assert backend.entropy(np.eye(n)[0]) == 0
    assert backend.entropy(np.full(n, 1 / n)) == pytest.approx(math.log(n), abs=n * EPS)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_temperature_goes_from_the_maximum_to_uniform(backend, seed):
    x = normal(6, seed=seed)
    entropies = [
        float(backend.entropy(backend.softmax_with_temperature(x, t))) for t in (0.1, 0.5, 1, 4, 20)
    ]
    assert entropies == sorted(entropies)
    gap = np.diff(np.sort(x))[-1]
    coldest = backend.softmax_with_temperature(x, gap / 50)  # the runner-up weighs e^-50
    np.testing.assert_allclose(coldest, np.eye(6)[x.argmax()], atol=5 * math.exp(-50))
    hottest = backend.softmax_with_temperature(x, 1e9)
    np.testing.assert_allclose(hottest, 1 / 6, atol=1e-8)
    with pytest.raises(ValueError, match="temperature: expected a number above 0, got 0"):
        backend.softmax_with_temperature(x, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_stays_and_half_precision_is_summed_in_single(backend, dtype):
    x = normal(3, 2000, dtype=dtype)
    weights = backend.softmax(x)
    assert weights.dtype == dtype
    exact = ours.softmax(x.astype(np.float64))
    # one rounding to the dtype (or to its smallest step), and the float32 sum of 2000 terms
    working = np.finfo(np.promote_types(dtype, np.float32)).eps
    rtol = np.finfo(dtype).eps + 64 * working
    smallest_step = float(np.finfo(dtype).smallest_subnormal)
    np.testing.assert_allclose(weights.astype(np.float64), exact, rtol=rtol, atol=smallest_step)


def test_torch_functions_are_differentiable_and_a_row_with_nothing_has_no_gradient():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    x = torch.from_numpy(normal(3, 4)).requires_grad_()
    p = torch.softmax(x.detach(), -1).requires_grad_()
    for function in with_torch.softmax, with_torch.log_softmax, with_torch.logsumexp:
        assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradcheck(with_torch.entropy, (p,))
    assert torch.autograd.gradcheck(with_torch.softmax_jvp, (p, x))
    masked = torch.tensor([[-torch.inf, -torch.inf], [1.0, -torch.inf]], requires_grad=True)
    with_torch.softmax(masked)[:, 0].sum().backward()
    assert torch.equal(masked.grad, torch.zeros(2, 2))


def test_torch_agrees_with_torch():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    for dtype in torch.float16, torch.bfloat16, torch.float32, torch.float64:
        x = 5 * torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
        eps = torch.finfo(dtype).eps
        weights = with_torch.softmax(x)
        assert weights.dtype == dtype
        torch.testing.assert_close(weights, torch.softmax(x, -1), rtol=8 * eps, atol=eps**2)
        logs = with_torch.log_softmax(x)
        torch.testing.assert_close(logs, torch.log_softmax(x, -1), rtol=2 * eps, atol=8 * eps)
