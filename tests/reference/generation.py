#!/usr/bin/env python3
"""Makes tests/data/huggingface/chat and chat.json: where the Hugging Face library ends a text.

`chat` is a small random llama with a byte-level BPE tokenizer that has special tokens. chat.json is a list of cases:
`config` are the token ids of config.json, `generation_config` is generation_config.json (absent: no such file),
`prompt` a text, `ids` what model.generate(do_sample=False) continues it with, in at most TOKENS tokens, and `text`
these decoded with skip_special_tokens=True. The files in the tree were made with PyTorch 2.5.1 and transformers 4.57.1.

    python tests/reference/generation.py
"""

import json
import pathlib
import shutil
import tempfile

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "huggingface"
TOKENS = 40
SPECIAL = ["<|turn|>", "<|stop|>", "<|pad|>"]
PROMPTS = ["the ship", "a wide sea and", "wind"]


def make_tokenizer(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=275, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the ship sails on the wide sea and the wind is in the sails"], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|turn|>", pad_token="<|pad|>",
                                   clean_up_tokenization_spaces=False)
    fast.save_pretrained(folder)
    return tokenizer.get_vocab_size()


def make_model(folder, vocab):
    config = LlamaConfig(vocab_size=vocab, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=96,
                         tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, attn_implementation="eager")
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = 0.1 if "norm" in name else 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + ("norm" in name))
        # Special tokens, <tool> and bytes beyond ASCII are likely enough to be seen.
        model.lm_head.weight[:3] *= 1.6
        model.lm_head.weight[vocab - 1] *= 1.6
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()


def generate(folder, case):
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name) / "model"
        shutil.copytree(folder, copy)
        config = {k: v for k, v in json.loads((copy / "config.json").read_text()).items() if not k.endswith("_token_id")}
        (copy / "config.json").write_text(json.dumps(config | case["config"]))
        if "generation_config" in case:
            (copy / "generation_config.json").write_text(json.dumps(case["generation_config"]))
        model = AutoModelForCausalLM.from_pretrained(copy, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(copy)
        prompt = tokenizer(case["prompt"], add_special_tokens=False, return_tensors="pt")["input_ids"]
        out = model.generate(prompt, do_sample=False, max_new_tokens=TOKENS, output_logits=True,
                             return_dict_in_generate=True)
        ids = out.sequences[0, prompt.shape[1]:].tolist()
        margin = min((x.topk(2).values[0, 0] - x.topk(2).values[0, 1]).item() for x in out.logits)
        return ids, tokenizer.decode(ids, skip_special_tokens=True), margin


def main():
    folder = OUT / "chat"
    shutil.rmtree(folder, ignore_errors=True)
    make_model(folder, make_tokenizer(folder))
    cases = []
    for prompt in PROMPTS:
        whole, _, _ = generate(folder, {"config": {"eos_token_id": None}, "prompt": prompt})
        first = {}
        for place, id in enumerate(whole):
            first.setdefault(id, place)
        order = sorted(first, key=first.get)
        early, late, last = order[len(order) // 4], order[len(order) // 2], order[-1]
        for config, generation_config in [
            ({"eos_token_id": None}, None),
            ({"eos_token_id": late, "bos_token_id": early, "pad_token_id": early}, None),
            ({"eos_token_id": [last, early]}, None),
            ({"eos_token_id": early}, {"eos_token_id": late}),
            ({"eos_token_id": early}, {"eos_token_id": [late, last], "bos_token_id": early}),
            ({"eos_token_id": late}, {"eos_token_id": [early, 2**40, 999]}),
            ({"eos_token_id": early}, {"do_sample": True, "temperature": 0.7}),
            ({"eos_token_id": early}, {"eos_token_id": None}),
        ]:
            case = {"config": config}
            if generation_config is not None:
                case["generation_config"] = generation_config
            case["prompt"] = prompt
            case["ids"], case["text"], margin = generate(folder, case)
            print(prompt, config, generation_config, len(case["ids"]), case["ids"], repr(case["text"]), f"{margin:.3f}")
            assert margin > 1e-3, "a nearly equal second token"
            cases.append(case)
    for special in range(3):
        assert any(special in case["ids"] for case in cases), special
    (OUT / "chat.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    for path in [*folder.iterdir(), OUT / "chat.json"]:
        path.chmod(0o644)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
