"""Writes tests/data/ops_kernels.json: small float64 results of PyTorch for the element and row operations.

Made with torch 2.5.1; rotary positions by complex multiplication. Run from the repository root:
    python tests/reference/ops_kernels.py
"""

import json

import torch
import torch.nn.functional as F

torch.manual_seed(7)
torch.set_default_dtype(torch.float64)
EPSILON = 1e-5


def rounded(*shape):
    """Random values that fp32, bf16 and fp16 all hold exactly: multiples of 1/16 within (-8, 8)."""
    return (torch.randn(*shape) * 24).round().clamp(-127, 127) / 16


def flat(t):
    return [float(v) for v in t.detach().reshape(-1)]


def gradients(function, inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = function(*inputs)
    dy = rounded(*y.shape)
    return y, dy, torch.autograd.grad(y, inputs, dy)


cases = {}

x = torch.cat([rounded(29), torch.tensor([-100.0, 100.0, 0.0])])
y, dy, (dx,) = gradients(lambda a: F.gelu(a, approximate="tanh"), [x])
cases["gelu"] = {"x": flat(x), "y": flat(y), "dy": flat(dy), "dx": flat(dx)}

x = rounded(3, 14)
y, dy, (dx,) = gradients(lambda a: F.silu(a[:, :7]) * a[:, 7:], [x])
cases["swiglu"] = {"x": flat(x), "y": flat(y), "dy": flat(dy), "dx": flat(dx), "width": 7}

x, gamma, beta = rounded(5, 7), rounded(7), rounded(7)
y, dy, (dx, dgamma, dbeta) = gradients(lambda a, g, b: F.layer_norm(a, (7,), g, b, EPSILON), [x, gamma, beta])
cases["layer_norm"] = {"x": flat(x), "gamma": flat(gamma), "beta": flat(beta), "y": flat(y), "dy": flat(dy),
                       "dx": flat(dx), "dgamma": flat(dgamma), "dbeta": flat(dbeta), "epsilon": EPSILON}
y, dy, (dx, dgamma) = gradients(lambda a, g: F.rms_norm(a, (7,), g, EPSILON), [x, gamma])
cases["rms_norm"] = {"x": flat(x), "gamma": flat(gamma), "y": flat(y), "dy": flat(dy), "dx": flat(dx),
                     "dgamma": flat(dgamma), "epsilon": EPSILON}

batch, seq, heads, dim = 2, 3, 2, 6
angles = torch.arange(seq)[:, None] * 100.0 ** (-torch.arange(dim // 2) / (dim // 2))[None, :]
cos, sin = angles.cos().float().double(), angles.sin().float().double()


def rotate(a):  # [B, T, heads, D]
    turned = torch.complex(*a.chunk(2, -1)) * torch.complex(cos, sin)[None, :, None, :]
    return torch.cat([turned.real, turned.imag], -1)


x = rounded(batch, seq, heads, dim)
y, dy, (dx,) = gradients(rotate, [x])
cases["rope"] = {"x": flat(x), "cos_sin": flat(torch.cat([cos, sin], -1)), "y": flat(y), "dy": flat(dy),
                 "dx": flat(dx), "shape": [batch, seq, heads, dim]}

tokens = torch.tensor([4, 0, 4, 2, 4, 1])
table, positions = rounded(5, 7), rounded(4, 7)
y, dy, (dtable, dpositions) = gradients(
    lambda t, p: F.embedding(tokens, t) + p[:3].repeat(2, 1), [table, positions])
cases["embedding"] = {"tokens": tokens.tolist(), "table": flat(table), "positions": flat(positions), "y": flat(y),
                      "dy": flat(dy), "dtable": flat(dtable), "dpositions": flat(dpositions)}

logits = rounded(5, 11).requires_grad_()
targets = torch.tensor([3, -1, 10, 0, -1])
losses = F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")
(dlogits,) = torch.autograd.grad(losses.sum() * 0.25, logits)
cases["cross_entropy"] = {"logits": flat(logits), "targets": targets.tolist(), "losses": flat(losses),
                          "dlogits": flat(dlogits), "scale": 0.25, "vocab": 11}

with open("tests/data/ops_kernels.json", "w") as file:
    file.write("{\n" + ",\n".join(f' "{name}": {json.dumps(case)}' for name, case in cases.items()) + "\n}\n")
