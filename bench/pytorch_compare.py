#!/usr/bin/env python3
"""Tokens per second of meshtrain and of PyTorch on the same machine, the same work, in one run.

Trains gpt2-124m at 4 x 64 and 4 x 1024 tokens, in fp32 and bf16: `meshtrain bench train` against a plain GPT-2 in
PyTorch (scaled_dot_product_attention, a tied head, loss over all tokens, clipping to norm 1, fused AdamW), eager and
compiled, in fp32 and under autocast to bf16. The programs take turns, round by round; a rate is the median of its
rounds. Both use the same threads. Needs Python 3.9 or later and PyTorch 2.x, for this script alone:

    python3 -m venv /tmp/torch && /tmp/torch/bin/pip install torch numpy
    /tmp/torch/bin/python bench/pytorch_compare.py --meshtrain build/release/meshtrain

It takes some ten minutes on two cores, most of them for torch.compile (which needs g++) and 4 x 1024 tokens.
Nothing else should run meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

LAYERS, HIDDEN, HEADS, VOCAB, CONTEXT = 12, 768, 12, 50257, 1024


def model_and_step(seq, batch, dtype, compiled):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(b, t, HIDDEN))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm = nn.LayerNorm(HIDDEN)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens.weight)
            return F.cross_entropy(logits.view(-1, VOCAB).float(), targets.view(-1))

    torch.manual_seed(1)
    model = Gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ids, targets = torch.randint(VOCAB, (2, batch, seq))
    run = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = run(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def serve(arguments):
    """A process of its own for each way of running PyTorch: times `steps` steps for each line that comes."""
    import torch

    torch.set_num_threads(arguments.threads)
    step = model_and_step(arguments.seq, arguments.batch, arguments.dtype, arguments.mode == "compiled")
    step(), step()  # compiles, allocates
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(arguments.steps):
            step()
        print(arguments.steps * arguments.batch * arguments.seq / (time.perf_counter() - begin), flush=True)


class Torch:
    def __init__(self, arguments, seq, dtype, mode):
        command = [sys.executable, __file__, "--serve", "--mode", mode, "--seq", str(seq), "--dtype", dtype]
        for name in ("batch", "threads", "steps"):
            command += [f"--{name}", str(getattr(arguments, name))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"PyTorch ({mode}, {dtype}, {seq} tokens) ended before its first step")

    def rate(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def meshtrain_rate(arguments, seq, dtype):
    command = [arguments.meshtrain, "bench", "train", "--preset", "gpt2-124m", "--compute", dtype, "--json"]
    command += ["--batch", str(arguments.batch), "--seq", str(seq), "--threads", str(arguments.threads)]
    command += ["--steps", str(arguments.steps), "--warmup", "1", "--peak-tflops", "1"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["tokens_per_second"]


def compare(arguments, seq, dtype):
    others = {mode: Torch(arguments, seq, dtype, mode) for mode in arguments.modes.split(",")}
    rates = {name: [] for name in ["meshtrain", *others]}
    for _ in range(arguments.rounds):
        rates["meshtrain"].append(meshtrain_rate(arguments, seq, dtype))
        for mode, torch in others.items():
            rates[mode].append(torch.rate())
    for torch in others.values():
        torch.end()
    median = {name: statistics.median(values) for name, values in rates.items()}
    best = max(median[mode] for mode in others)
    ratios = "  ".join(f"/ {mode} {median['meshtrain'] / median[mode]:.2f}" for mode in others)
    shown = "  ".join(f"{name} {rate:.1f}" for name, rate in median.items())
    ratios += f"  / best {median['meshtrain'] / best:.2f}"
    print(f"{dtype} T={seq:<5} tokens/s: {shown}   meshtrain {ratios}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshtrain", default="build/release/meshtrain")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="timed in each round")
    parser.add_argument("--lengths", default="64,1024")
    parser.add_argument("--dtypes", default="fp32,bf16")
    parser.add_argument("--modes", default="eager,compiled")
    for name in ("--mode", "--dtype"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--seq", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    for dtype in arguments.dtypes.split(","):
        for seq in arguments.lengths.split(","):
            compare(arguments, int(seq), dtype)


if __name__ == "__main__":
    main()
