"""Right answers in torch, in many hands: `RIGHT` is a list of (exercise, function)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RIGHT: list = []


def right(exercise: str):
    """Add a right answer to an exercise."""

    def add(answer):
        RIGHT.append((exercise, answer))
        return answer

    return add


@right("soft_lookup")
def lookup_functional(q, k, v, temperature):
    return F.softmax(q @ k.transpose(-2, -1) / temperature, dim=-1) @ v


@right("soft_lookup")
def lookup_by_lse(q, k, v, temperature):
    s = torch.einsum("...ld,...sd->...ls", q, k).div(temperature)
    return s.sub(s.logsumexp(-1, keepdim=True)).exp().matmul(v)


right("output_bounds")(lambda v: torch.aminmax(v, dim=-2))


@right("output_bounds")
def bounds_by_methods(v):
    return v.min(dim=-2).values, v.max(dim=-2)[0]


@right("output_bounds")
def bounds_by_quantile(v):
    return v.quantile(0.0, dim=-2), v.quantile(1.0, dim=-2)


@right("smooth")
def smooth_in_torch(x, x_known, y_known, bandwidth):
    gaps = x.unsqueeze(1) - x_known.unsqueeze(0)
    return torch.softmax(-gaps.square() / (2 * bandwidth**2), dim=1).mv(y_known)


@right("pairwise_scores")
def scores_as_methods(q, k):
    return q.matmul(k.mT)


@right("pairwise_scores")
def scores_as_a_batch(q: Tensor, k: Tensor) -> Tensor:
    s = torch.bmm(q.reshape(-1, *q.shape[-2:]), k.reshape(-1, *k.shape[-2:]).transpose(1, 2))
    return s.reshape(*q.shape[:-1], k.size(-2))


@right("heads_apart")
def heads_permuted(q, k):
    return torch.matmul(q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1))


@right("bilinear_scores")
def bilinear_as_linear(q, W, k):
    return F.linear(q, W.t()) @ k.transpose(-1, -2)


@right("additive_scores")
def additive_unsqueezed(q, k, W_q, W_k, v):
    return torch.tanh((q @ W_q).unsqueeze(-2) + (k @ W_k).unsqueeze(-3)).matmul(v)


@right("scale_scores")
def scaled_by_rsqrt(q, k):
    d_k = torch.tensor(q.shape[-1], dtype=q.dtype, device=q.device)
    return q @ k.transpose(-1, -2) * d_k.rsqrt()


@right("scale_scores")
def scaled_in_place_on_the_product(q, k):
    s = torch.matmul(q, k.transpose(-2, -1))
    s /= math.sqrt(q.size(-1))
    return s


@right("score_heads")
def heads_in_a_comprehension(q, k):
    rows = [[a @ b.T / len(a.T) ** 0.5 for a, b in zip(m, n)] for m, n in zip(q, k)]  # noqa: B905
    return torch.stack([torch.stack(row) for row in rows])


@right("weighted_values")
def weighted_by_modules(q, k, v):
    weights = nn.Softmax(dim=-1)(q @ k.mT * q.shape[-1] ** -0.5)
    return weights @ v, weights


right("t5_query_weights")(lambda z: z.div(math.sqrt(z.numel())))


@right("fold_scale")
def folded_in_torch(W_q, b_q):
    root = b_q.numel() ** 0.5
    return W_q / root, b_q / root


@right("softmax")
def softmax_of_amax(x):
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


@right("softmax")
def softmax_detached_maximum(x):
    top, _ = x.detach().max(-1, keepdim=True)
    return F.normalize(torch.exp(x - top), p=1, dim=-1)


@right("softmax_rows")
def rows_in_base_two(x):
    y = x * math.log2(math.e)
    e = torch.exp2(y - torch.max(y, dim=-1, keepdim=True).values)
    return torch.div(e, torch.sum(e, -1, True))


@right("logsumexp")
def logsumexp_squeezed(x):
    m = x.amax(-1, keepdim=True)
    return ((x - m).exp().sum(-1, keepdim=True).log() + m).squeeze(-1)


@right("entropy")
def entropy_by_xlogy(p):
    return -torch.xlogy(p, p).sum(dim=-1)


@right("entropy")
def entropy_masked(p):
    return -(p * p.masked_fill(p == 0, 1.0).log()).sum(-1)


@right("softmax_vjp")
def vjp_with_a_jacobian(p, d_p):
    jacobian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return (jacobian @ d_p.unsqueeze(-1)).squeeze(-1)


@right("attention_weights")
def weights_functional(q, k):
    return F.softmax(q.matmul(k.transpose(-1, -2)).div(math.sqrt(k.size(-1))), dim=-1)


@right("attention")
def attention_with_baddbmm(q, k, v):
    lead = q.shape[:-2]
    q, k, v = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v))
    zero = torch.zeros(1, 1, 1, dtype=q.dtype, device=q.device)
    s = torch.baddbmm(zero, q, k.mT, beta=0, alpha=q.size(-1) ** -0.5)
    out = s.softmax(-1).bmm(v)
    return out.reshape(*lead, *out.shape[-2:])


@right("masked_attention")
def masked_fill_and_nan_to_num(q, k, v, mask):
    s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, float("-inf"))
    w = s.softmax(-1).nan_to_num(0.0)
    return w @ v, w


@right("masked_attention")
def masked_fill_and_mask_again(q, k, v, mask):
    s = (q @ k.mT * q.size(-1) ** -0.5).masked_fill(mask == 0, torch.finfo(q.dtype).min)
    w = s.softmax(-1).masked_fill(mask.logical_not(), 0)
    return torch.einsum("...ls,...sd->...ld", w, v), w


@right("attend_tokens")
def tokens_transposed(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    w = F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, -1)
    return (w @ v).transpose(1, 2).contiguous()


@right("split_heads")
def unflattened(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).transpose(-3, -2)


@right("split_heads")
def chunked(x, n_heads):
    return torch.stack(x.chunk(n_heads, dim=-1), dim=-3)


@right("merge_heads")
def flattened(heads):
    return heads.transpose(-3, -2).flatten(-2)


@right("merge_heads")
def concatenated(heads):
    return torch.cat(heads.unbind(-3), dim=-1)


@right("mix_heads")
def mixed_by_linear(heads, W_o):
    return F.linear(heads.transpose(-3, -2).flatten(-2), W_o.mT)


@right("multi_head_attention")
def layer_of_views(x, W_q, W_k, W_v, W_o, n_heads):
    B, L, _ = x.size()
    q, k, v = ((x @ W).view(B, L, n_heads, -1).transpose(1, 2) for W in (W_q, W_k, W_v))
    w = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1)
    return (w @ v).transpose(1, 2).contiguous().view(B, L, -1) @ W_o, w


@right("repeat_kv_heads")
def interleaved(kv, n_heads):
    return kv.repeat_interleave(n_heads // kv.size(-3), dim=-3)


@right("repeat_kv_heads")
def expanded(kv, n_heads):
    group = n_heads // kv.size(-3)
    wide = kv.unsqueeze(-3).expand(*kv.shape[:-2], group, *kv.shape[-2:])
    return wide.flatten(-4, -3)


@right("masked_softmax")
def masked_softmax_in_torch(scores, mask):
    return scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num()


@right("causal_attention")
def decoder_in_torch(q, k, v, lengths):
    L = q.size(-2)
    causal = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    real = torch.arange(L, device=q.device) < lengths.view(-1, 1, 1, 1)
    s = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~(causal & real), float("-inf"))
    w = torch.nan_to_num(F.softmax(s, dim=-1))
    return w @ v, w


@right("value_gradient")
def value_gradient_in_torch(weights, d_output):
    return weights.mT.matmul(d_output)


@right("scores_gradient")
def scores_gradient_in_torch(weights, d_output, v):
    d_weights = d_output.matmul(v.mT)
    return weights.mul(d_weights - weights.mul(d_weights).sum(-1, keepdim=True))


@right("query_and_key_gradients")
def query_and_key_gradients_in_torch(d_scores, q, k):
    d_scores = d_scores * q.size(-1) ** -0.5
    return torch.einsum("...ls,...sd->...ld", d_scores, k), d_scores.mT @ q


@right("softmax_row_sums")
def row_sums_in_torch(d_output, output):
    return d_output.mul(output).sum(dim=-1, keepdim=True)
