"""Attention as a soft dictionary: a query looks keys up and gets a blend of their values.

>>> key, value = torch.eye(2), torch.tensor([[10.0], [20.0]])
>>> hard_lookup(torch.tensor([[0.9, 0.1]]), key, value)
tensor([[10.]])
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpa_course.with_torch._checks import as_floats, check_attention
from sdpa_course.with_torch.dot_product import dot_product_scores
from sdpa_course.with_torch.softmax import softmax, softmax_with_temperature


def hard_lookup(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The value of the key with the largest dot product, as a dictionary would give it.

    query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). Of equal keys the
    first one wins. No gradient reaches query and key. Raises ValueError where the shapes do not fit
    or S = 0.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    lead = check_attention(query, key, value)[:-2]
    if key.shape[-2] == 0:
        raise ValueError(f"key: expected at least one key to find, got {tuple(key.shape)}.")
    best = dot_product_scores(query, key).argmax(dim=-1)[..., None]  # (..., L, 1)
    value = value.expand(*lead, *value.shape[-2:])
    best = best.expand(*lead, *best.shape[-2:])
    return torch.take_along_dim(value, best, dim=-2).to(dtype)  # (..., L, d_v)


def soft_lookup(query: Tensor, key: Tensor, value: Tensor, temperature: float = 1.0) -> Tensor:
    """softmax(Q Kᵀ / temperature) V: every key answers, the better it matches the louder.

    query (..., L, d_k), key (..., S, d_k), value (..., S, d_v) → (..., L, d_v). As the temperature
    falls to 0 it becomes `hard_lookup`; temperature √d_k is scaled dot-product attention.
    Raises ValueError where the shapes do not fit or unless temperature > 0.
    """
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    check_attention(query, key, value)
    scores = dot_product_scores(query, key)  # (..., L, S)
    weights = softmax_with_temperature(scores, temperature)  # (..., L, S)
    return (weights @ value).to(dtype)  # (..., L, d_v)


def kernel_smoother(query: Tensor, key: Tensor, value: Tensor, bandwidth: float = 1.0) -> Tensor:
    """Nadaraya-Watson regression with a Gaussian kernel: an average of the values near a query.

    weight ∝ exp(-‖q - k‖² / (2·bandwidth²)), with query (..., L, d), key (..., S, d) and value
    (..., S, d_v) → (..., L, d_v). For keys of one length it equals `soft_lookup` at temperature
    bandwidth².
    Raises ValueError where the shapes do not fit or unless bandwidth > 0.
    Source: Nadaraya 1964; Watson 1964.
    """
    if not bandwidth > 0:
        raise ValueError(f"bandwidth: expected a number above 0, got {bandwidth!r}.")
    (query, key, value), dtype = as_floats(query=query, key=key, value=value)
    check_attention(query, key, value)
    gaps = query[..., :, None, :] - key[..., None, :, :]  # (..., L, S, d)
    scores = -(gaps**2).sum(dim=-1) / (2 * bandwidth**2)  # (..., L, S)
    return (softmax(scores) @ value).to(dtype)  # (..., L, d_v)
