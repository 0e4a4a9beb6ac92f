"""Masks: who may attend to whom."""

import numpy as np
import pytest
from helpers import normal
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("error")  # a NumPy warning is a mistake of ours

length = st.integers(0, 6)


@settings(max_examples=40)
@given(L=length, S=length, align=st.sampled_from(["top-left", "bottom-right"]))
def test_a_query_sees_its_own_position_and_earlier_ones(backend, L, S, align):
    mask = backend.causal_mask(L, S, align=align)
    assert mask.dtype == bool
    assert mask.shape == (L, S)
    first = 0 if align == "top-left" else S - L
    for i, j in np.ndindex(L, S):
        assert mask[i, j] == (j <= first + i)


def test_a_square_causal_mask_includes_the_diagonal(backend):
    np.testing.assert_array_equal(backend.causal_mask(4), np.tri(4))
    np.testing.assert_array_equal(backend.causal_mask(4, 4), np.tri(4))


def test_the_last_query_of_a_cache_sees_every_key(backend):
    assert backend.causal_mask(1, 7, align="bottom-right").all()
    assert backend.causal_mask(1, 7, align="top-left").sum() == 1


def test_steps_with_a_cache_are_rows_of_the_full_mask(backend):
    full = backend.causal_mask(6)
    for done in range(6):
        for new in range(1, 7 - done):
            step = backend.causal_mask(new, done + new, align="bottom-right")
            np.testing.assert_array_equal(step, full[done : done + new, : done + new])


@settings(max_examples=40)
@given(L=length, S=length, window=st.integers(1, 8))
def test_a_window_of_w_shows_at_most_w_positions_ending_at_the_query(backend, L, S, window):
    mask = backend.sliding_window_mask(L, S, window, align="bottom-right")
    for i, j in np.ndindex(L, S):
        assert mask[i, j] == (0 <= (i + S - L) - j < window)
    assert (mask.sum(axis=-1) <= window).all()


def test_a_window_as_long_as_the_sequence_is_causal_and_a_window_of_one_is_the_diagonal(backend):
    np.testing.assert_array_equal(backend.sliding_window_mask(5, 5, 5), np.tri(5))
    np.testing.assert_array_equal(backend.sliding_window_mask(5, None, 1), np.eye(5))


def test_padding_hides_keys_behind_the_length(backend):
    mask = backend.padding_mask(np.array([2, 0, 4]), S=4)
    assert mask.shape == (3, 1, 1, 4)
    expected = [[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]
    np.testing.assert_array_equal(mask[:, 0, 0], expected)
    by_matrix = backend.padding_mask(np.array(expected) == 1)
    np.testing.assert_array_equal(by_matrix, mask)


def test_padding_never_leaks(backend):
    query, key, value = normal(2, 3, 4, 5), normal(2, 3, 6, 5, seed=1), normal(2, 3, 6, 2, seed=2)
    mask = backend.padding_mask(np.array([4, 6]), S=6)
    padded = backend.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    alone = backend.scaled_dot_product_attention(query[:1], key[:1, :, :4], value[:1, :, :4])
    np.testing.assert_allclose(padded[:1], alone, atol=1e-14)


def test_a_document_sees_only_itself(backend):
    doc_ids = np.array([[0, 0, 1, 1, 1], [4, 2, 2, 4, 4]])
    mask = backend.document_mask(doc_ids)
    assert mask.shape == (2, 1, 5, 5)
    for b, i, j in np.ndindex(2, 5, 5):
        assert mask[b, 0, i, j] == (doc_ids[b, i] == doc_ids[b, j])
    np.testing.assert_array_equal(backend.document_mask(doc_ids[1]), mask[1, 0])


def test_packed_documents_give_what_each_gives_alone(backend):
    query, key, value = (normal(5, n, seed=n) for n in (4, 4, 3))
    both = backend.combine_masks(
        backend.document_mask(np.array([0, 0, 1, 1, 1])), backend.causal_mask(5)
    )
    packed = backend.scaled_dot_product_attention(query, key, value, attn_mask=both)
    for part in slice(0, 2), slice(2, 5):
        alone = backend.scaled_dot_product_attention(
            query[part], key[part], value[part], is_causal=True
        )
        np.testing.assert_allclose(packed[part], alone, atol=1e-14)


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_a_key_must_be_allowed_by_every_mask(backend, seed):
    rng = np.random.default_rng(seed)
    masks = [rng.random(shape) < 0.7 for shape in ((2, 1, 1, 4), (3, 4), (2, 1, 3, 1))]
    combined = backend.combine_masks(*masks, None)
    assert combined.shape == (2, 1, 3, 4)
    np.testing.assert_array_equal(combined, masks[0] & masks[1] & masks[2])
    swapped = backend.combine_masks(*masks[::-1])
    np.testing.assert_array_equal(combined, swapped)


def test_no_mask_is_no_mask(backend):
    assert backend.combine_masks() is None
    assert backend.combine_masks(None, None) is None


def test_combining_does_not_change_its_masks(backend):
    masks = [backend.array(np.tri(3, dtype=bool)), backend.array(np.eye(3, dtype=bool))]
    backend.module.combine_masks(masks[0], masks[1])
    backend.module.combine_masks(masks[0])
    np.testing.assert_array_equal(backend.numpy(masks[0]), np.tri(3))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_additive_mask_has_minus_infinity_where_the_boolean_one_is_false(backend, dtype):
    mask = np.array([[True, False], [False, True]])
    kind = dtype if backend.name == "numpy" else getattr(pytest.importorskip("torch"), dtype)
    additive = backend.to_additive(mask, kind)
    assert additive.dtype == dtype
    np.testing.assert_array_equal(additive, [[0, -np.inf], [-np.inf, 0]])


def test_rows_with_nothing_are_found(backend):
    mask = np.array([[[True, False], [False, False]], [[False, False], [True, True]]])
    nothing = backend.rows_with_nothing(mask)
    np.testing.assert_array_equal(nothing, [[False, True], [True, False]])
    bottom_right = backend.causal_mask(5, 3, align="bottom-right")
    np.testing.assert_array_equal(backend.rows_with_nothing(bottom_right), np.arange(5) < 2)


def test_errors_say_what_was_expected_and_what_came(backend):
    with pytest.raises(ValueError, match=r'3 queries and 5 keys.*align="top-left".*"bottom-right"'):
        backend.causal_mask(3, 5)
    with pytest.raises(ValueError, match=r"2 queries and 5 keys"):
        backend.sliding_window_mask(2, 5, 2)
    with pytest.raises(ValueError, match=r'expected "top-left" or "bottom-right", got \'left\''):
        backend.causal_mask(3, align="left")
    with pytest.raises(ValueError, match=r"window: expected at least 1.*got 0"):
        backend.sliding_window_mask(3, 3, 0)
    with pytest.raises(ValueError, match=r"from 0 to S = 4, got \[5, 1\]"):
        backend.padding_mask(np.array([5, 1]), S=4)
    with pytest.raises(ValueError, match=r"together with the padded length S.*\(2,\)"):
        backend.padding_mask(np.array([2, 1]))
    with pytest.raises(ValueError, match=r"must be boolean: pass matrix == 1"):
        backend.padding_mask(np.array([[1, 0]]))
    with pytest.raises(TypeError, match=r"whole numbers.*float64"):
        backend.padding_mask(np.array([2.0, 1.0]), S=4)
    with pytest.raises(ValueError, match=r"real tokens: expected.*\(2,\)"):
        backend.padding_mask(np.array([True, False]))
    with pytest.raises(ValueError, match=r"doc_ids: expected shape \(S,\) or \(B, S\)"):
        backend.document_mask(np.zeros((2, 2, 2), int))
    with pytest.raises(TypeError, match=r"masks\[1\]: expected a boolean.*float64.*== 0"):
        backend.combine_masks(np.tri(3, dtype=bool), np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"broadcast.*\(3, 3\), \(2, 4\).*\[:, None, None, :\]"):
        backend.combine_masks(np.tri(3, dtype=bool), np.ones((2, 4), bool))
    with pytest.raises(TypeError, match=r"mask: expected a boolean"):
        backend.to_additive(np.ones((2, 2)))
    with pytest.raises(TypeError, match=r"mask: expected a boolean.*int64"):
        backend.rows_with_nothing(np.ones((2, 2), int))


def test_torch_masks_are_made_where_they_are_asked_for():
    torch = pytest.importorskip("torch")
    from sdpa_course import with_torch

    meta = torch.device("meta")
    assert with_torch.causal_mask(3, device=meta).device == meta
    assert with_torch.sliding_window_mask(3, 3, 2, device=meta).device == meta
    assert with_torch.document_mask(torch.zeros(3, device=meta)).device == meta
