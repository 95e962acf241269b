"""References for the optimizers: 16 steps of torch.optim's float32 CPU code on recorded gradients.

Writes tests/data/optimizers.safetensors and .json. The files in the tree were made with PyTorch 2.5.1 on
an AVX-512 machine; 2.15.0 gives the same bytes.

  python tests/reference/optimizers.py          # writes the files
  python tests/reference/optimizers.py --stock  # also counts what the stock square root would change

The optimizers are PyTorch's own, stepped with foreach=False (the CPU default). One operation is replaced:
Tensor.sqrt by numpy's, which is the processor's and correctly rounded. PyTorch's packages on PyPI take MKL's
vector square root, whose bits depend on the processor (on AMD's, 17 % of all values are one ulp off); builds
without MKL, such as Debian's, use the processor's. meshtrain promises the bits that are the same everywhere.
All else (add, addcmul, addcdiv, lerp, mul, div) has the same bits on every x86-64 processor with AVX2 or AVX-512.
See docs/numerics.md.

Tensors: start [N]; gradients [16, N]; CASE.params [16, N] after each step; CASE.NAME [N] the final state.
The .json holds the hyperparameters of each case and the learning rate of each step.
"""

import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data")
STEPS, N = 16, 115  # 115: whole vectors of 4, 8 and 16 elements and a rest for each

BASE = {
    "sgd": dict(lr=0.05),
    "momentum": dict(lr=0.02, momentum=0.9),
    "nesterov": dict(lr=0.02, momentum=0.9),
    "adagrad": dict(lr=0.05, eps=1e-10),
    "rmsprop": dict(lr=0.01, alpha=0.99, eps=1e-8),
    "adam": dict(lr=0.01, betas=[0.9, 0.95], eps=1e-8),
    "adamw": dict(lr=0.01, betas=[0.9, 0.95], eps=1e-8),
}
CASES = {}
for _name, _settings in BASE.items():
    CASES[_name] = dict(name=_name, weight_decay=0.0, **_settings)
    CASES[_name + "_decay"] = dict(name=_name, weight_decay=0.1, **_settings)
# Corners: the other branch of lerp, RMSProp's own momentum, PyTorch's default betas, a large epsilon.
CASES["adamw_low_beta1"] = dict(name="adamw", weight_decay=0.01, lr=0.003, betas=[0.4, 0.999], eps=1e-6)
CASES["adam_half_beta1"] = dict(name="adam", weight_decay=0.01, lr=0.003, betas=[0.5, 0.999], eps=1e-8)
CASES["rmsprop_momentum"] = dict(name="rmsprop", weight_decay=0.01, lr=0.003, alpha=0.9, eps=1e-3, momentum=0.8)

STATES = {  # ours -> PyTorch's
    "momentum": {"velocity": "momentum_buffer"}, "nesterov": {"velocity": "momentum_buffer"},
    "adagrad": {"sum": "sum"}, "rmsprop": {"square_average": "square_avg", "velocity": "momentum_buffer"},
    "adam": {"m": "exp_avg", "v": "exp_avg_sq"}, "adamw": {"m": "exp_avg", "v": "exp_avg_sq"},
}
STOCK_SQRT = torch.Tensor.sqrt


def exact_sqrt(tensor):
    return torch.from_numpy(np.sqrt(tensor.detach().numpy()))


def learning_rates(lr):
    """Changes at each step, as under a schedule."""
    return [lr * (1.0 - 0.04 * t) for t in range(STEPS)]


def make_optimizer(case, param):
    name, o = case["name"], torch.optim
    common = dict(lr=case["lr"], weight_decay=case["weight_decay"], foreach=False)
    if name == "sgd":
        return o.SGD([param], **common)
    if name in ("momentum", "nesterov"):
        return o.SGD([param], momentum=case["momentum"], nesterov=name == "nesterov", **common)
    if name == "adagrad":
        return o.Adagrad([param], eps=case["eps"], **common)
    if name == "rmsprop":
        return o.RMSprop([param], alpha=case["alpha"], eps=case["eps"], momentum=case.get("momentum", 0.0), **common)
    return {"adam": o.Adam, "adamw": o.AdamW}[name](
        [param], betas=tuple(case["betas"]), eps=case["eps"], **common)


def run(case, start, gradients):
    param = start.clone().requires_grad_(True)
    optimizer = make_optimizer(case, param)
    params = []
    for gradient, lr in zip(gradients, learning_rates(case["lr"])):
        optimizer.param_groups[0]["lr"] = lr
        param.grad = gradient.clone()
        optimizer.step()
        params.append(param.detach().clone())
    state = {ours: optimizer.state[param][theirs] for ours, theirs in STATES.get(case["name"], {}).items()
             if theirs in optimizer.state[param]}
    return torch.stack(params), state


def make_inputs():
    """Gradients over many magnitudes, some zero, some so small that their squares are subnormal or vanish."""
    g = torch.Generator().manual_seed(16)
    start = torch.randn(N, generator=g)
    scale = 10.0 ** torch.empty(N).uniform_(-4.0, 2.0, generator=g)
    gradients = torch.randn(STEPS, N, generator=g) * scale
    gradients[:, 3] = 0.0
    gradients[:, 4] *= 1e-18
    gradients[:, 5] *= 1e-21
    gradients[:, 6] = gradients[0, 6]
    gradients[::3, 7] = 0.0
    gradients[5:, 8] *= 1e6
    gradients[0, 9] = 0.0
    start[10] = 0.0
    start[11] *= 1e-6
    start[12] *= 1e4
    gradients[:, N - 1] *= 1e-18
    return start, gradients


def main():
    assert torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"), "needs a processor with FMA"
    start, gradients = make_inputs()
    tensors = {"start": start, "gradients": gradients}
    for name, case in CASES.items():
        torch.Tensor.sqrt = exact_sqrt
        params, state = run(case, start, gradients)
        torch.Tensor.sqrt = STOCK_SQRT
        assert torch.isfinite(params).all()
        tensors[name + ".params"] = params
        for key, value in state.items():
            tensors[f"{name}.{key}"] = value
        if "--stock" in sys.argv:
            stock = run(case, start, gradients)[0]
            ulps = (stock.view(torch.int32) - params.view(torch.int32)).abs()
            print(f"{name}: stock square root changes {int((ulps[-1] != 0).sum())} of {N} parameters after "
                  f"{STEPS} steps, by at most {int(ulps.max())} ulp at any step")
    path = os.path.join(DATA, "optimizers.safetensors")
    save_file({n: t.contiguous() for n, t in tensors.items()}, path)
    os.chmod(path, 0o644)
    cases = {n: dict(c, lr=learning_rates(c["lr"])) for n, c in CASES.items()}
    made_by = f"tests/reference/optimizers.py, PyTorch {torch.__version__.split('+')[0]}, CPU"
    with open(os.path.join(DATA, "optimizers.json"), "w") as f:
        json.dump(dict(made_by=made_by, cases=cases), f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
