"""Writes tests/data/ops_attention.json: small float64 results of PyTorch for causal attention.

Made with torch 2.5.1 by autograd through the full matrix of scores. Run from the repository root:
    python tests/reference/ops_attention.py
"""

import json

import torch

torch.manual_seed(11)
torch.set_default_dtype(torch.float64)


def rounded(*shape):
    """Random values that fp32, bf16 and fp16 all hold exactly: multiples of 1/16 within (-8, 8)."""
    return (torch.randn(*shape) * 24).round().clamp(-127, 127) / 16


def flat(t):
    return [float(v) for v in t.detach().reshape(-1)]


def case(batch, queries, keys, heads, kv_heads, size, scale):
    q = rounded(batch, queries, heads, size).requires_grad_()
    k = rounded(batch, keys, kv_heads, size).requires_grad_()
    v = rounded(batch, keys, kv_heads, size).requires_grad_()
    group = heads // kv_heads
    all_k = k.repeat_interleave(group, dim=2)
    all_v = v.repeat_interleave(group, dim=2)
    scores = torch.einsum("bihd,bjhd->bhij", q, all_k) * scale
    hidden = torch.ones(queries, keys).triu(1 + keys - queries).bool()
    scores = scores.masked_fill(hidden, float("-inf"))
    o = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), all_v)
    d_o = rounded(*o.shape)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), d_o)
    return {
        "batch": batch, "queries": queries, "keys": keys, "heads": heads, "kv_heads": kv_heads, "size": size,
        "scale": scale, "q": flat(q), "k": flat(k), "v": flat(v), "o": flat(o), "lse": flat(scores.logsumexp(-1)),
        "d_o": flat(d_o), "dq": flat(dq), "dk": flat(dk), "dv": flat(dv),
    }


cases = [case(2, 5, 5, 4, 2, 3, 0.25), case(1, 3, 7, 2, 1, 4, 0.125)]
with open("tests/data/ops_attention.json", "w") as file:
    json.dump(cases, file)
    file.write("\n")
