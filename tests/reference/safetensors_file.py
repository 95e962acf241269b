"""Writes tests/data/reference.safetensors with the safetensors package (0.4 or later) and PyTorch.

Run from the repository root: python tests/reference/safetensors_file.py
"""

import torch
from safetensors.torch import save_file

save_file(
    {
        "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 4,
        "half": torch.tensor([1.0, -2.0, 0.5], dtype=torch.bfloat16),
        "fp16": torch.tensor([1.0, 65504.0], dtype=torch.float16),
        "scalar": torch.tensor(-7, dtype=torch.int64),
        "empty": torch.zeros(0, 4),
        "mask": torch.tensor([True, False, True]),
        "deep": torch.zeros(1, 1, 1, 1, 2, dtype=torch.uint8),
    },
    "tests/data/reference.safetensors",
    metadata={"format": "pt", "note": "a \"quoted\" ünï"},
)
