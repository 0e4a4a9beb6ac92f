"""The course's attention on torch tensors, on any device: the names of the NumPy modules."""

from sdpa_course.with_torch.attention import scaled_dot_product_attention
from sdpa_course.with_torch.dot_product import (
    additive_scores,
    additive_scores_shared,
    cosine_scores,
    dot_product_scores,
    score_cost,
)
from sdpa_course.with_torch.masking import (
    causal_mask,
    combine_masks,
    document_mask,
    padding_mask,
    rows_with_nothing,
    sliding_window_mask,
    to_additive,
)
from sdpa_course.with_torch.scaling import (
    default_scale,
    init_projections,
    init_score_variance,
    init_std,
    scaled_scores,
    score_mean,
    score_variance,
)
from sdpa_course.with_torch.softmax import (
    entropy,
    log_softmax,
    logsumexp,
    softmax,
    softmax_jacobian,
    softmax_jacobian_norm,
    softmax_jvp,
    softmax_naive,
    softmax_vjp,
    softmax_with_temperature,
)

__all__ = [
    "additive_scores",
    "additive_scores_shared",
    "causal_mask",
    "combine_masks",
    "cosine_scores",
    "default_scale",
    "document_mask",
    "dot_product_scores",
    "entropy",
    "init_projections",
    "init_score_variance",
    "init_std",
    "log_softmax",
    "logsumexp",
    "padding_mask",
    "rows_with_nothing",
    "scaled_dot_product_attention",
    "scaled_scores",
    "score_cost",
    "score_mean",
    "score_variance",
    "sliding_window_mask",
    "softmax",
    "softmax_jacobian",
    "softmax_jacobian_norm",
    "softmax_jvp",
    "softmax_naive",
    "softmax_vjp",
    "softmax_with_temperature",
    "to_additive",
]
