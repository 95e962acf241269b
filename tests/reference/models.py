"""Whole-model references: logits, losses, gradients and ten AdamW steps of three small models.

Writes tests/data/model_{gpt2,llama,llama_qwen}.safetensors and .json. The models are written here in
plain PyTorch and, when transformers is importable, checked against its GPT2LMHeadModel,
LlamaForCausalLM and Qwen3ForCausalLM. The files in the tree were made with PyTorch 2.5.1 and
transformers 4.57.1 on the CPU, float32, one thread.

  python tests/reference/models.py

Tensors of a .safetensors file:
  param.NAME        fp32, the weights; matrices as [out, in]
  tokens, targets   int32 [B, T]; a target of -1 is masked
  logits            fp32 [B, T, V]
  token_loss        fp32 [B, T], 0 where masked; the loss is their sum over the number of unmasked targets
  grad.NAME         fp32, gradient of the loss; a tied weight has one, the sum of both uses
  step.tokens, step.targets   int32 [10, B, T], the batch of each AdamW step
The .json holds the sizes, the loss, the losses and gradient norms (before clipping) of the steps, each
from the fp32 run and from the same computation in float64 ("_f64"), and for every gradient the largest
element and the largest difference between the fp32 and the float64 gradient, for tests to derive bounds from.
The gradient of gpt2's attn.k.bias is zero but for rounding: it shifts every score of a query alike.
"""

import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")

COMMON = dict(layers=2, heads=4, vocab=97, batch=3, rope_theta=10000.0, rope_scaling=None, qkv_bias=False, qk_norm=False)
SPECS = {
    "gpt2": dict(COMMON, arch="gpt2", hidden=32, kv_heads=4, head_dim=8, ffn_hidden=128, context=24, seq=16,
                 norm_eps=1e-5, tie_embeddings=True),
    "llama": dict(COMMON, arch="llama", hidden=32, kv_heads=2, head_dim=8, ffn_hidden=48, context=32, seq=16,
                  norm_eps=1e-5, tie_embeddings=False,
                  rope_scaling=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=16)),
    "llama_qwen": dict(COMMON, arch="llama", hidden=48, kv_heads=1, head_dim=16, ffn_hidden=80, context=32, seq=13,
                       norm_eps=1e-6, tie_embeddings=True, rope_theta=1e6, qkv_bias=True, qk_norm=True),
}
OPTIMIZER = dict(name="adamw", lr=1e-2, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1, grad_clip=1.0, steps=10)


def shapes(s):
    """name -> shape, in the order of the forward pass."""
    H, D, V, Fh = s["hidden"], s["head_dim"], s["vocab"], s["ffn_hidden"]
    q, kv = s["heads"] * D, s["kv_heads"] * D
    gpt2 = s["arch"] == "gpt2"
    out = {"embed.tokens": [V, H]}
    if gpt2:
        out["embed.positions"] = [s["context"], H]

    def norm(name):
        out[name + ".weight"] = [H]
        if gpt2:
            out[name + ".bias"] = [H]

    def linear(name, o, i, bias):
        out[name + ".weight"] = [o, i]
        if bias:
            out[name + ".bias"] = [o]

    for i in range(s["layers"]):
        p = f"layers.{i}."
        norm(p + "norm1")
        for n, width in (("q", q), ("k", kv), ("v", kv)):
            linear(p + "attn." + n, width, H, gpt2 or s["qkv_bias"])
        if s["qk_norm"]:
            out[p + "attn.q_norm.weight"] = [D]
            out[p + "attn.k_norm.weight"] = [D]
        linear(p + "attn.o", H, q, gpt2)
        norm(p + "norm2")
        if not gpt2:
            linear(p + "mlp.gate", Fh, H, False)
        linear(p + "mlp.up", Fh, H, gpt2)
        linear(p + "mlp.down", H, Fh, gpt2)
    norm("norm")
    if not s["tie_embeddings"]:
        out["head.weight"] = [V, H]
    return out


def make_parameters(s, generator):
    """Nothing is left at a value (0, 1) that would hide a missing term."""
    params = {}
    for name, shape in shapes(s).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            is_scale = name.endswith("norm.weight") or ".norm" in name and name.endswith(".weight")
            params[name] = (1.0 if is_scale else 0.0) + 0.2 * noise
        else:
            params[name] = (0.3 if name.startswith("embed") else 0.15) * noise
    return params


def make_batch(s, generator):
    """A noisy linear congruence, so that there is something to learn; some targets masked."""
    B, T, V = s["batch"], s["seq"], s["vocab"]
    seq = torch.empty(B, T + 1, dtype=torch.long)
    seq[:, 0] = torch.randint(V, (B,), generator=generator)
    for t in range(T):
        seq[:, t + 1] = (5 * seq[:, t] + 3 + torch.randint(2, (B,), generator=generator)) % V
    targets = seq[:, 1:].clone()
    targets[torch.rand(B, T, generator=generator) < 0.12] = -1
    targets[B - 1, T - 4:] = -1
    return seq[:, :-1].contiguous(), targets


def rope_tables(s, T, dtype):
    """Angles in float64; Llama-3's scaling as in Meta's reference code (llama-models, apply_scaling)."""
    D = s["head_dim"]
    freq = s["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    sc = s["rope_scaling"]
    if sc:
        wavelength = 2 * math.pi / freq
        low = sc["original_context"] / sc["low_freq_factor"]
        high = sc["original_context"] / sc["high_freq_factor"]
        smooth = (sc["original_context"] / wavelength - sc["low_freq_factor"]) / (
            sc["high_freq_factor"] - sc["low_freq_factor"])
        mixed = (1 - smooth) * freq / sc["factor"] + smooth * freq
        freq = torch.where(wavelength > low, freq / sc["factor"], torch.where(wavelength < high, freq, mixed))
    angle = torch.arange(T, dtype=torch.float64)[:, None] * freq[None, :]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x, cos, sin):  # x: B, T, heads, D
    a, b = x.chunk(2, dim=-1)
    c, s = cos[None, :, None, :], sin[None, :, None, :]
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def rms_norm(x, w, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def forward(s, p, tokens):
    B, T = tokens.shape
    D, heads, kv_heads, eps = s["head_dim"], s["heads"], s["kv_heads"], s["norm_eps"]
    gpt2 = s["arch"] == "gpt2"
    x = p["embed.tokens"][tokens]
    if gpt2:
        x = x + p["embed.positions"][:T]
    else:
        cos, sin = rope_tables(s, T, x.dtype)

    def norm(name, x):
        if gpt2:
            return F.layer_norm(x, (s["hidden"],), p[name + ".weight"], p[name + ".bias"], eps)
        return rms_norm(x, p[name + ".weight"], eps)

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    causal = torch.full((T, T), float("-inf"), dtype=x.dtype).triu(1)
    for i in range(s["layers"]):
        l = f"layers.{i}."
        h = norm(l + "norm1", x)
        q = linear(l + "attn.q", h).view(B, T, heads, D)
        k = linear(l + "attn.k", h).view(B, T, kv_heads, D)
        v = linear(l + "attn.v", h).view(B, T, kv_heads, D)
        if s["qk_norm"]:
            q = rms_norm(q, p[l + "attn.q_norm.weight"], eps)
            k = rms_norm(k, p[l + "attn.k_norm.weight"], eps)
        if not gpt2:
            q, k = rope(q, cos, sin), rope(k, cos, sin)
        k = k.repeat_interleave(heads // kv_heads, dim=2)
        v = v.repeat_interleave(heads // kv_heads, dim=2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(D) + causal
        h = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).reshape(B, T, heads * D)
        x = x + linear(l + "attn.o", h)
        h = norm(l + "norm2", x)
        if gpt2:
            h = F.gelu(linear(l + "mlp.up", h), approximate="tanh")
        else:
            h = F.silu(linear(l + "mlp.gate", h)) * linear(l + "mlp.up", h)
        x = x + linear(l + "mlp.down", h)
    x = norm("norm", x)
    return F.linear(x, p["embed.tokens" if s["tie_embeddings"] else "head.weight"])


def token_losses(logits, targets):
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    return flat.view(targets.shape)


def mean_loss(s, p, tokens, targets):
    logits = forward(s, p, tokens)
    per_token = token_losses(logits, targets)
    return per_token.sum() / (targets >= 0).sum(), logits, per_token


def leaves(params, dtype):
    return {n: t.to(dtype).clone().requires_grad_(True) for n, t in params.items()}


def train(s, params, batches, dtype):
    p = leaves(params, dtype)
    decayed = [t for t in p.values() if t.dim() >= 2]
    others = [t for t in p.values() if t.dim() < 2]
    opt = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=OPTIMIZER["weight_decay"]), dict(params=others, weight_decay=0.0)],
        lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]), eps=OPTIMIZER["eps"], foreach=False)
    losses, norms = [], []
    for tokens, targets in batches:
        opt.zero_grad()
        loss, _, _ = mean_loss(s, p, tokens, targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), OPTIMIZER["grad_clip"], foreach=False).item())
        opt.step()
        losses.append(loss.item())
    return losses, norms


def reference_module(s, params):
    """The same weights in transformers' module, or None without transformers."""
    try:
        import transformers as tf
    except ImportError:
        return None
    p = params
    common = dict(vocab_size=s["vocab"], attn_implementation="eager", tie_word_embeddings=s["tie_embeddings"])
    state = {}
    if s["arch"] == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(
            n_positions=s["context"], n_embd=s["hidden"], n_layer=s["layers"], n_head=s["heads"],
            n_inner=s["ffn_hidden"], layer_norm_epsilon=s["norm_eps"], activation_function="gelu_new",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **common))
        state["transformer.wte.weight"] = state["lm_head.weight"] = p["embed.tokens"]
        state["transformer.wpe.weight"] = p["embed.positions"]
        for k in ("weight", "bias"):
            state["transformer.ln_f." + k] = p["norm." + k]
            for i in range(s["layers"]):
                a, b = f"transformer.h.{i}.", f"layers.{i}."
                turn = (lambda t: t.t().contiguous()) if k == "weight" else (lambda t: t)
                state[a + "ln_1." + k] = p[b + "norm1." + k]
                state[a + "ln_2." + k] = p[b + "norm2." + k]
                state[a + "attn.c_attn." + k] = turn(torch.cat([p[b + f"attn.{n}." + k] for n in "qkv"]))
                state[a + "attn.c_proj." + k] = turn(p[b + "attn.o." + k])
                state[a + "mlp.c_fc." + k] = turn(p[b + "mlp.up." + k])
                state[a + "mlp.c_proj." + k] = turn(p[b + "mlp.down." + k])
    else:
        qwen = s["qk_norm"]
        scaling = None
        if s["rope_scaling"]:
            sc = dict(s["rope_scaling"])
            scaling = dict(rope_type="llama3", original_max_position_embeddings=sc.pop("original_context"), **sc)
        config = (tf.Qwen3Config if qwen else tf.LlamaConfig)(
            hidden_size=s["hidden"], intermediate_size=s["ffn_hidden"], num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], head_dim=s["head_dim"],
            max_position_embeddings=s["context"], rms_norm_eps=s["norm_eps"], rope_theta=s["rope_theta"],
            rope_scaling=scaling, attention_bias=s["qkv_bias"], **common)
        model = (tf.Qwen3ForCausalLM if qwen else tf.LlamaForCausalLM)(config)
        state["model.embed_tokens.weight"] = p["embed.tokens"]
        state["model.norm.weight"] = p["norm.weight"]
        state["lm_head.weight"] = p["embed.tokens" if s["tie_embeddings"] else "head.weight"]
        for i in range(s["layers"]):
            a, b = f"model.layers.{i}.", f"layers.{i}."
            state[a + "input_layernorm.weight"] = p[b + "norm1.weight"]
            state[a + "post_attention_layernorm.weight"] = p[b + "norm2.weight"]
            for n in "qkvo":
                state[a + f"self_attn.{n}_proj.weight"] = p[b + f"attn.{n}.weight"]
                if s["qkv_bias"]:  # transformers gives o one too
                    state[a + f"self_attn.{n}_proj.bias"] = p.get(b + f"attn.{n}.bias", torch.zeros(s["hidden"]))
            if qwen:
                for n in "qk":
                    state[a + f"self_attn.{n}_norm.weight"] = p[b + f"attn.{n}_norm.weight"]
            for n in ("gate", "up", "down"):
                state[a + f"mlp.{n}_proj.weight"] = p[b + f"mlp.{n}.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not [m for m in missing if not m.endswith((".attn.bias", ".masked_bias"))], (
        missing, unexpected)
    return model.eval()


def main():
    torch.set_num_threads(1)
    for seed, (name, s) in enumerate(SPECS.items(), start=1):
        generator = torch.Generator().manual_seed(seed)
        params = make_parameters(s, generator)
        tokens, targets = make_batch(s, generator)
        batches = [make_batch(s, generator) for _ in range(OPTIMIZER["steps"])]

        p32, p64 = leaves(params, torch.float32), leaves(params, torch.float64)
        loss, logits, per_token = mean_loss(s, p32, tokens, targets)
        loss.backward()
        loss64, logits64, _ = mean_loss(s, p64, tokens, targets)
        loss64.backward()
        logit_error = (logits.double() - logits64).abs().max().item()

        module = reference_module(s, params)
        if module is None:
            print("transformers is not importable: not cross-checked", file=sys.stderr)
        else:
            theirs = module(input_ids=tokens).logits
            worst = (theirs.double() - logits64).abs().max().item()
            assert worst < 2e-5, (name, worst)
            print(f"{name}: differs from transformers {type(module).__name__} by {worst:.2e}")

        losses, norms = train(s, params, batches, torch.float32)
        losses64, norms64 = train(s, params, batches, torch.float64)

        tensors = {f"param.{n}": t for n, t in params.items()}
        tensors.update({f"grad.{n}": t.grad for n, t in p32.items()})
        tensors.update({
            "tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(),
            "token_loss": per_token.detach(),
            "step.tokens": torch.stack([b[0] for b in batches]).int(),
            "step.targets": torch.stack([b[1] for b in batches]).int(),
        })
        path = os.path.join(DATA, f"model_{name}.safetensors")
        save_file({n: t.contiguous() for n, t in tensors.items()}, path)
        os.chmod(path, 0o644)
        scalars = {
            "made_by": f"tests/reference/models.py, PyTorch {torch.__version__.split('+')[0]}, CPU",
            "spec": s,
            "parameters": sum(t.numel() for t in params.values()),
            "unmasked": int((targets >= 0).sum()),
            "loss": loss.item(), "loss_f64": loss64.item(), "logit_error": logit_error,
            "gradients": {n: dict(largest=p64[n].grad.abs().max().item(),
                                  error=(p32[n].grad.double() - p64[n].grad).abs().max().item()) for n in params},
            "optimizer": OPTIMIZER,
            "losses": losses, "losses_f64": losses64, "grad_norms": norms, "grad_norms_f64": norms64,
        }
        with open(os.path.join(DATA, f"model_{name}.json"), "w") as f:
            json.dump(scalars, f, indent=1)
            f.write("\n")
        print(name, scalars["parameters"], loss.item(), loss64.item())
        print("  losses", [round(x, 4) for x in losses])
        print("  norms ", [round(x, 4) for x in norms])
        print("  largest relative loss difference fp32/f64", max(abs(a / b - 1) for a, b in zip(losses, losses64)))


if __name__ == "__main__":
    main()
