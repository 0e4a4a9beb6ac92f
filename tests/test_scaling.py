"""The scale, the variance of a score, and what initialisations give."""

import math

import numpy as np
import pytest
from helpers import normal, rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpa_course import with_numpy as ours
from sdpa_course.formulas import INITIALISATIONS

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours


@settings(max_examples=30)
@given(d_k=st.integers(1, 300), seed=st.integers(0, 1000))
def test_scores_are_divided_by_the_root_of_the_query_size(backend, d_k, seed):
    query, key = normal(2, 3, d_k, seed=seed), normal(2, 5, d_k, seed=seed + 1)
    expected = query @ key.swapaxes(-1, -2) / math.sqrt(d_k)
    tolerance = rounding(np.float64, d_k, 16)
    np.testing.assert_allclose(backend.scaled_scores(query, key), expected, atol=tolerance)
    doubled = backend.scaled_scores(query, key, scale=2 / math.sqrt(d_k))
    np.testing.assert_allclose(doubled, 2 * expected, atol=2 * tolerance)


def test_dividing_by_eight_is_exact_and_dividing_by_the_root_of_128_is_not():
    every_half = np.arange(2**16, dtype=np.uint16).view(np.float16)
    normal_halves = every_half[np.isfinite(every_half) & (np.abs(every_half) >= 2.0**-10)]
    there_and_back = (normal_halves * np.float16(0.125)) * np.float16(8)
    np.testing.assert_array_equal(there_and_back, normal_halves)
    root = np.float16(math.sqrt(128))
    halves = normal_halves[np.abs(normal_halves) < 1000]
    assert ((halves / root) * root != halves).mean() > 0.1


def test_a_half_precision_score_that_only_the_scale_brings_into_range_survives(backend):
    query = np.full((1, 64), 40, np.float16)  # q·k = 102400, beyond float16
    assert np.isinf(backend.dot_product_scores(query, query)).all()
    assert backend.scaled_scores(query, query) == np.float16(12800)


@pytest.mark.parametrize("law", ["gaussian", "uniform", "signs"])
def test_the_variance_of_a_score_is_d_k_for_every_law_of_unit_variance(law):
    rng, n, d_k = np.random.default_rng(0), 100_000, 64
    draw = {
        "gaussian": lambda size: rng.normal(size=size),
        "uniform": lambda size: rng.uniform(-math.sqrt(3), math.sqrt(3), size=size),
        "signs": lambda size: rng.choice([-1.0, 1.0], size=size),
    }[law]
    scores = (draw((n, d_k)) * draw((n, d_k))).sum(axis=-1)
    check_moments(scores, ours.score_mean(d_k), ours.score_variance(d_k))


@pytest.mark.parametrize(("rho", "mean"), [(0.5, 0.0), (-0.8, 0.0), (0.0, 1.0), (0.4, -0.7)])
def test_the_variance_of_a_score_of_correlated_vectors_with_a_mean(rho, mean):
    rng, n, d_k = np.random.default_rng(1), 100_000, 32
    query, noise = rng.normal(size=(2, n, d_k))
    key = rho * query + math.sqrt(1 - rho**2) * noise
    scores = ((query + mean) * (key + mean)).sum(axis=-1)
    check_moments(scores, ours.score_mean(d_k, rho, mean), ours.score_variance(d_k, rho, mean))


def check_moments(scores, mean, variance):
    """Within five standard errors, for a distribution close to normal (d_k terms each)."""
    n = scores.size
    assert abs(scores.mean() - mean) < 5 * math.sqrt(variance / n)
    assert abs(scores.var() - variance) < 5 * variance * math.sqrt(2.5 / n)


def test_the_table_of_initialisations():
    table = {name: ours.init_score_variance(name, 512, 64) for name in INITIALISATIONS[:4]}
    assert table["xavier_per_head"] == pytest.approx((16 / 9) ** 2)  # 3.16
    assert table["xavier_fused"] == pytest.approx(1)
    assert table["torch_mha"] == pytest.approx(0.25)
    assert table["linear_default"] == pytest.approx(1 / 9)
    assert ours.init_score_variance("gpt2", 768, 64) == pytest.approx(0.0944, abs=5e-5)
    assert ours.init_score_variance("t5", 512, 64, scale=1.0) == pytest.approx(1)


@pytest.mark.parametrize("name", INITIALISATIONS)
def test_measured_scores_have_the_variance_that_the_initialisation_promises(backend, name):
    d_model, d_k, draws, tokens = 96, 16, 60, 40
    scale = 1.0 if name == "t5" else None
    squares = []
    for seed in range(draws):
        W_q, W_k = backend.init_projections(name, d_model, d_k, rng=seed)
        x, y = normal(2, tokens, d_model, seed=1000 + seed)
        scores = backend.scaled_scores(x @ W_q, y @ W_k, scale=scale)
        squares.append((np.float64(scores) ** 2).mean())
    expected = ours.init_score_variance(name, d_model, d_k, scale)
    standard_error = np.std(squares, ddof=1) / math.sqrt(draws)
    assert abs(np.mean(squares) - expected) < 4 * standard_error
    assert standard_error < 0.05 * expected


def test_the_standard_deviations_are_those_of_torch_itself():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    linear = torch.nn.Linear(512, 512).weight.std().item()
    fused = torch.nn.MultiheadAttention(512, 8).in_proj_weight.std().item()
    entries = 512 * 512
    assert linear == pytest.approx(
        ours.init_std("linear_default", 512, 64)[0], rel=5 / entries**0.5
    )
    assert fused == pytest.approx(ours.init_std("torch_mha", 512, 64)[0], rel=5 / entries**0.5)


def test_errors_say_what_was_expected_and_what_came():
    with pytest.raises(ValueError, match=r"d_k: expected .* at least 1, got 0"):
        ours.default_scale(0)
    with pytest.raises(ValueError, match=r"expected one of xavier_per_head, .*, got 'xavier'"):
        ours.init_std("xavier", 512, 64)


def test_torch_scaled_scores_are_differentiable():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    query = torch.from_numpy(normal(2, 3, 5)).requires_grad_()
    key = torch.from_numpy(normal(2, 4, 5, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(with_torch.scaled_scores, (query, key))
