#!/usr/bin/env python3
"""Makes tests/data/huggingface/: small random models as the Hugging Face library saves them, and their logits.

A folder each, in every way that weights are stored:
  gpt2    fp32, one file, tied, a tokenizer.json and its siblings
  llama   fp32, four shards, untied, grouped queries, llama3 rope scaling
  qwen2   fp16, one file, tied, biases
  qwen3   bf16, two shards, untied, norms of queries and keys, head_dim other than hidden / heads
and NAME.safetensors beside it: `tokens` int32 [T] and `logits` fp32 [T, V], computed in fp32 (the stored weights
widened, which is exact) on the CPU. The files in the tree were made with PyTorch 2.5.1 and transformers 4.57.1.

    python tests/reference/huggingface.py
"""

import os
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "huggingface"
TOKENS = 20
LLAMA = dict(num_hidden_layers=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
MODELS = {
    "gpt2": (GPT2LMHeadModel,
             GPT2Config(vocab_size=270, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
                        attn_implementation="eager"), torch.float32, "1GB"),
    "llama": (LlamaForCausalLM,
              LlamaConfig(vocab_size=97, hidden_size=24, intermediate_size=40, num_attention_heads=4,
                          num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=500000.0,
                          rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                            original_max_position_embeddings=16),
                          **LLAMA), torch.float32, "20KB"),
    "qwen2": (Qwen2ForCausalLM,
              Qwen2Config(vocab_size=101, hidden_size=32, intermediate_size=36, num_attention_heads=4,
                          num_key_value_heads=1, tie_word_embeddings=True, rope_theta=1000000.0, **LLAMA),
              torch.float16, "1GB"),
    "qwen3": (Qwen3ForCausalLM,
              Qwen3Config(vocab_size=89, hidden_size=20, intermediate_size=44, num_attention_heads=3,
                          num_key_value_heads=3, head_dim=12, rope_theta=1000000.0, **LLAMA), torch.bfloat16, "15KB"),
}


def randomize(model, generator):
    """Weights with biases and gains that matter, and logits of the size of a trained model's."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if p.dim() == 1 and "bias" not in name:
            p.data = 1.0 + 0.2 * noise
        else:
            p.data = (0.3 if p.dim() == 1 else 0.2) * noise
    model.tie_weights()


def save_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<|endoftext|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the ship sails on the sea and the sea is wide and the wind is in the sails"], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    fast.save_pretrained(folder)


def main():
    for seed, (name, (cls, config, dtype, shard)) in enumerate(MODELS.items(), start=1):
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        generator = torch.Generator().manual_seed(seed)
        model = cls(config)
        randomize(model, generator)
        model.to(dtype).save_pretrained(folder, max_shard_size=shard)
        if name == "gpt2":
            save_tokenizer(folder)
        else:
            (folder / "generation_config.json").unlink(missing_ok=True)
        loaded = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager").eval()
        tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
        with torch.no_grad():
            logits = loaded(input_ids=tokens).logits[0]
            exact = loaded.double()(input_ids=tokens).logits[0]
        print(name, sorted(os.listdir(folder)), f"largest logit {logits.abs().max():.3f}",
              f"error {(logits.double() - exact).abs().max():.2e}")
        save_file({"tokens": tokens[0].int(), "logits": logits.contiguous()}, OUT / f"{name}.safetensors")
        for path in folder.iterdir():
            path.chmod(0o644)
        (OUT / f"{name}.safetensors").chmod(0o644)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
