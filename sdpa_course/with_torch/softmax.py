"""Softmax: from scores to weights that sum to one, its logarithm, its derivative, and how it fails.

>>> softmax(torch.tensor([0.0, 0.0, -torch.inf]))
tensor([0.5000, 0.5000, 0.0000])
"""

from __future__ import annotations

import torch
from torch import Tensor

from sdpa_course.with_torch._checks import as_floats


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / Σ exp(x) along an axis, safe for scores of any size.

    x (..., n) → (..., n), in its dtype; half precision is computed in float32 and cast back.
    `torch.softmax` subtracts the maximum itself. Where every score is -inf there is nothing to
    attend to: the row is made harmless before the softmax and set to zeros after it, so that
    neither the weights nor the gradients are NaN. NaN and +inf give NaN.
    """
    (x,), dtype = as_floats(x=x)
    nothing = (x == -torch.inf).all(dim=axis, keepdim=True)
    weights = torch.softmax(x.masked_fill(nothing, 0), dim=axis)
    return weights.masked_fill(nothing, 0).to(dtype)


def softmax_naive(x: Tensor, axis: int = -1) -> Tensor:
    """The formula as it stands, exp(x) / Σ exp(x), in x's own dtype: to see it fail.

    It overflows above ln(largest number): 11.09 in float16, 88.72 in float32 and bfloat16, 709.78
    in float64.
    """
    exps = torch.exp(torch.as_tensor(x))
    return exps / exps.sum(dim=axis, keepdim=True)


def softmax_with_temperature(x: Tensor, temperature: float, axis: int = -1) -> Tensor:
    """softmax(x / temperature): towards the maximum as it falls to 0, towards uniform as it grows.

    Raises ValueError unless temperature > 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature: expected a number above 0, got {temperature!r}.")
    (x,), dtype = as_floats(x=x)
    return softmax(x / temperature, axis).to(dtype)


def logsumexp(x: Tensor, axis: int = -1) -> Tensor:
    """ln Σ exp(x) along an axis, which is removed: x (..., n) → (...); -inf where all x are -inf.

    >>> logsumexp(torch.tensor([1000.0, 1000.0])).round(decimals=2)
    tensor(1000.6900)
    """
    (x,), dtype = as_floats(x=x)
    nothing = (x == -torch.inf).all(dim=axis)
    safe = x.masked_fill(nothing.unsqueeze(axis), 0)
    return torch.logsumexp(safe, dim=axis).masked_fill(nothing, -torch.inf).to(dtype)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """ln softmax(x) = x - logsumexp(x), exact even where softmax itself would round to 0.

    x (..., n) → (..., n). Where every score is -inf, so is every result.
    """
    (x,), dtype = as_floats(x=x)
    nothing = (x == -torch.inf).all(dim=axis, keepdim=True)
    logs = torch.log_softmax(x.masked_fill(nothing, 0), dim=axis)
    return logs.masked_fill(nothing, -torch.inf).to(dtype)


def softmax_jacobian(p: Tensor) -> Tensor:
    """∂p_i/∂x_j = p_i (δ_ij - p_j): diag(p) - p pᵀ. Weights p (..., n) → (..., n, n).

    >>> softmax_jacobian(torch.tensor([0.5, 0.5]))
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """
    (p,), dtype = as_floats(p=p)
    outer = p[..., :, None] * p[..., None, :]  # (..., n, n)
    return (torch.diag_embed(p) - outer).to(dtype)  # (..., n, n)


def softmax_jvp(p: Tensor, tangent: Tensor) -> Tensor:
    """How the weights p move when the scores move by the tangent: p ∘ (t - Σ p t).

    p (..., n), tangent (..., n) → (..., n). Source: the product of `softmax_jacobian` with a
    vector.
    """
    (p, t), dtype = as_floats(p=p, tangent=tangent)
    return (p * (t - (p * t).sum(dim=-1, keepdim=True))).to(dtype)


def softmax_vjp(p: Tensor, d_p: Tensor) -> Tensor:
    """The gradient at the scores, from the gradient d_p at the weights p: p ∘ (dp - Σ p dp).

    The same product as `softmax_jvp`, because the Jacobian is symmetric. Each row of the result
    sums to 0.
    """
    return softmax_jvp(p, d_p)


def softmax_jacobian_norm(p: Tensor) -> Tensor:
    """‖diag(p) - p pᵀ‖ (Frobenius) without the matrix: √(Σp² - 2Σp³ + (Σp²)²).

    Weights p (..., n) → (...).
    """
    (p,), dtype = as_floats(p=p)
    squares, cubes = (p**2).sum(dim=-1), (p**3).sum(dim=-1)  # (...)
    return (squares - 2 * cubes + squares**2).clamp(min=0).sqrt().to(dtype)


def entropy(p: Tensor, axis: int = -1) -> Tensor:
    """-Σ p ln p in nats, with 0 ln 0 = 0: 0 for one-hot weights, ln n for uniform ones.

    Weights p (..., n) → (...).
    """
    (p,), dtype = as_floats(p=p)
    return (p * -torch.log(torch.where(p == 0, 1, p))).sum(dim=axis).to(dtype)
