#!/usr/bin/env python3
"""Makes tests/data/tokenizers/unicode_cuts.json: how the Hugging Face library cuts and normalizes every character.

All code points but the surrogates, in blocks of 4096; each character stands in several contexts. A block is the CRC-32
of the byte lengths of the pieces (32 bits each, least byte first), of the normalized text, or of a byte per character
that says whether it is in a class. `patterns` has regular expressions of published tokenizers and others that use each
kind of class; `texts` are random ones. Needs `pip install tokenizers`; made with 0.23.3.

    python tests/reference/unicode_cuts.py
"""

import json
import pathlib
import random
import struct
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "tokenizers" / "unicode_cuts.json"
BLOCK = 4096
CONTEXTS = ["{}", "a{}", "{}'s", "1{}", "{} ", "\n{}", "A{}a", "一{}"]
FORM_CONTEXTS = ["{}", "a{}\u0323\u0301", "\u0301{}\u0323b"]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
REST = r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "o200k": rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{TAIL}|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{TAIL}" + REST,
    "kimi": (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{TAIL}"
             rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{TAIL}" + REST),
    "deepseek": (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                 r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
    "deepseek-cjk": "[一-龥\u3040-ゟ゠-ヿ]+",
    "bloom": " ?[^(\\s|[.,!?…。，、।۔،])]+",
    "words": r"\w+|[^\w\s]+|\W",
    "hexadecimal": r"\h+|[\H&&\S]\d?|\D",
    "case": r"(?i:[a-zα-ωа-я]+)|(?i:ж|é|k'|ǆ)|(?<=\p{Lu})\p{Ll}++|\P{Lu}+?",
    "scripts": r"\p{Latin}+|\p{greek}+|\p{Hiragana}|[\p{Katakana}\p{^Thai}]+",
    "categories": "|".join(rf"\p{{{name}}}+" for name in
                           ["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
                            "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"]) + "|.",
}
SEEN = [ord(c) for c in "aAsSzZ'’ \t\n\r0123½Ⅷ²ſKßﬁǅⅷ_-.,!\"#一龥あア漢カ्َ́अ٣𝟘😀👍🏽‍\u200c\u200b\ufeff\u180e\u00a0\u3000\u2028\u0085éÉǰ"]
LATER = [0x1C89, 0x1C8A, 0xA7CB, 0xA7DA, 0x10D40, 0x10D50, 0x105C0, 0x11380, 0x16D40, 0x1CCD6, 0x1E5D0, 0x16130, 0x11DE0,
         0x16FF4, 0xA7CE, 0x2EBF0, 0x323B0, 0x88F]


def blocks():
    for begin in range(0, 0x110000, BLOCK):
        yield [c for c in range(begin, begin + BLOCK) if not 0xD800 <= c < 0xE000]


def crc_of_pieces(split, texts):
    crc = 0
    for text in texts:
        lengths = [len(piece.encode()) for piece, _ in split.pre_tokenize_str(text)]
        crc = zlib.crc32(struct.pack(f"<{len(lengths)}I", *lengths), crc)
    return crc


def in_contexts(code_points, contexts):
    return ["".join(context.format(chr(c)) for c in code_points) for context in contexts]


def with_token(**options):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_tokens([AddedToken("[X]", normalized=False, **options)])
    return tokenizer


def main():
    generator = random.Random(1)

    def character():
        kind = generator.random()
        if kind < 0.7:
            return chr(generator.choice(SEEN))
        if kind < 0.8:
            return chr(generator.choice(LATER))
        c = generator.randrange(0x3000 if kind < 0.9 else 0x110000)
        return "x" if 0xD800 <= c < 0xE000 else chr(c)

    texts = ["".join(character() for _ in range(generator.randrange(1, 30))) for _ in range(250)]
    texts.append("\u1C89's")
    patterns = {}
    for name, regex in PATTERNS.items():
        split = pre_tokenizers.Split(Regex(regex), "isolated")
        patterns[name] = {"regex": regex,
                          "blocks": [crc_of_pieces(split, in_contexts(b, CONTEXTS)) for b in blocks()],
                          "texts": crc_of_pieces(split, texts)}
        print(name)
    forms = {}
    for name in ("NFC", "NFD", "NFKC", "NFKD"):
        normalize = getattr(normalizers, name)().normalize_str
        forms[name] = [zlib.crc32("".join(map(normalize, in_contexts(b, FORM_CONTEXTS))).encode()) for b in blocks()]
    digits = pre_tokenizers.Digits(individual_digits=True)
    word = with_token(single_word=True)
    space = with_token(rstrip=True)
    classes = {
        "number": lambda c: len(digits.pre_tokenize_str(f"a{chr(c)}a")) == 3,
        "word": lambda c: word.encode("[X]" + chr(c)).tokens[:1] != ["[X]"],
        "space": lambda c: space.encode(f"[X]{chr(c)}a").offsets[0][1] > 3,
    }
    classes = {name: [zlib.crc32(bytes(map(holds, b))) for b in blocks()] for name, holds in classes.items()}
    rows = [f'"contexts": {json.dumps(CONTEXTS)}', f'"form_contexts": {json.dumps(FORM_CONTEXTS)}',
            f'"texts": {json.dumps(texts)}']
    rows += [f'"{key}": {{\n' + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in part.items()) + "}"
             for key, part in [("patterns", patterns), ("forms", forms), ("classes", classes)]]
    OUT.write_text("{" + ",\n".join(rows) + "}\n")
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
