"""Writes tests/data/samples_and_weights.json: orders of samples, and the initial weights of two models as hashes of
their float32 bytes, by samples_and_weights.py.

Made with Python 3.11, numpy 2.4 and xxhash 4.1:  python3 tests/reference/samples_and_weights_data.py
"""

import json
import pathlib

import numpy as np
import xxhash

from samples_and_weights import block, normal, permuted, weight


def parameters(m):
    """(name, shape, deviation or None for ones, 0 for zeros) of every parameter."""
    h, q, kv, f = m["hidden"], m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"], m["ffn_hidden"]
    std, residual, gpt2 = m["init_std"], m["init_std"] / (2 * m["layers"]) ** 0.5, m["arch"] == "gpt2"
    yield "embed.tokens", (m["vocab"], h), std
    if gpt2:
        yield "embed.positions", (m["context"], h), std
    for i in range(m["layers"]):
        p = f"layers.{i}."
        matrices = {"attn.q": (q, h, std), "attn.k": (kv, h, std), "attn.v": (kv, h, std), "attn.o": (h, q, residual),
                    "mlp.up": (f, h, std), "mlp.down": (h, f, residual)}
        if not gpt2:
            matrices["mlp.gate"] = (f, h, std)
        for name, (rows, columns, deviation) in matrices.items():
            yield p + name + ".weight", (rows, columns), deviation
            if gpt2 or (m["qkv_bias"] and name in ("attn.q", "attn.k", "attn.v")):
                yield p + name + ".bias", (rows,), 0
        for name in ("norm1", "norm2"):
            yield p + name + ".weight", (h,), None
            if gpt2:
                yield p + name + ".bias", (h,), 0
        if m["qk_norm"]:
            yield p + "attn.q_norm.weight", (m["head_dim"],), None
            yield p + "attn.k_norm.weight", (m["head_dim"],), None
    yield "norm.weight", (h,), None
    if gpt2:
        yield "norm.bias", (h,), 0
    if not m["tie_embeddings"]:
        yield "head.weight", (m["vocab"], h), std


MODELS = [
    dict(seed=1, arch="gpt2", layers=3, hidden=40, heads=5, kv_heads=5, head_dim=8, ffn_hidden=160, vocab=259,
         context=24, tie_embeddings=True, qkv_bias=False, qk_norm=False, init_std=0.02),
    dict(seed=2**40 + 5, arch="llama", layers=2, hidden=48, heads=6, kv_heads=2, head_dim=10, ffn_hidden=100, vocab=131,
         context=64, tie_embeddings=False, qkv_bias=True, qk_norm=True, init_std=0.035),
]
CASES = [(1, 7, 0), (2, 1, 0), (5, 1, 3), (17, 2**32 + 9, 1), (64, 3, 2), (1000, 2**64 - 1, 12), (65537, 42, 0),
         (10**9 + 7, 5, 1), (2**40 + 1, 11, 4)]
orders = [dict(size=s, seed=k, epoch=e, samples=[permuted(s, k, e, i) for i in range(min(s, 40))]) for s, k, e in CASES]
runs = []
for tokens, seq_len, seed in [(1000, 16, 1), (1025, 16, 2**33 + 1), (90, 7, 9)]:
    n = (tokens - 1) // seq_len
    runs.append(dict(tokens=tokens, seq_len=seq_len, seed=seed, per_epoch=n,
                     samples=[permuted(n, seed, i // n, i % n) for i in range(2 * n + 3)]))
weights = []
for m in MODELS:
    tensors = {}
    for name, shape, deviation in parameters(m):
        values = weight(m["seed"], name, shape, deviation)
        tensors[name] = dict(shape=shape, xxh3=f"{xxhash.xxh3_64_intdigest(values.tobytes()):016x}",
                             first=[int(v) for v in values[:3].view(np.uint32)])
    weights.append(dict(model=m, tensors=tensors))
# Numbers that double cannot decide, found in one long stream.
hard = []
for begin in range(0, 2**25, 2**22):
    index = np.arange(begin, begin + 2**22, dtype=np.uint64)
    a, b = block(2**40, "test/hard", index)[:2]
    z = np.sqrt(-2 * np.log((a + 0.5) / 2**32)) * np.cos(2 * np.pi * (b / 2**32))
    near = (z * (1 - 2.0**-45)).astype(np.float32) != (z * (1 + 2.0**-45)).astype(np.float32)
    hard += [(int(i), int(normal(2**40, "test/hard", index[i - begin : i - begin + 1]).view(np.uint32)[0]))
             for i in begin + np.nonzero(near)[0]]
out = pathlib.Path(__file__).parent.parent / "data" / "samples_and_weights.json"
out.write_text(json.dumps(dict(orders=orders, runs=runs, weights=weights, hard=hard), indent=0) + "\n")
print(len(hard), "hard numbers;", out.stat().st_size, "bytes")
