#!/usr/bin/env python3
"""Makes tests/data/tokenizers/: what the Hugging Face library does with byte-level BPE.

Trains a small tokenizer in each of the configurations that GPT-2, Llama-3, Qwen2 and SmolLM publish (the
same normalizer, pre-tokenizer, flags and kind of special tokens; only the vocabulary is small), and records
the ids of a multilingual text and of texts about each rule. Needs `pip install tokenizers`; made with 0.23.3.

    python tests/reference/make_tokenizers.py
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parents[1] / "data" / "tokenizers"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

PROSE = """\
The ship's cook didn't say when they'd be back, and I'm sure we'll hear that he's late; you've seen it, they're
there. IT'S LOUD: WE'LL, I'M, YOU'VE, DON'T, THEY'RE, HE'D. 'Tis the season, rock 'n' roll.
Die Größe der Übungsräume überraschte Jürgen: „Straßenbahn“, sagte er, sei schöner als Fußweg – ganz ähnlich.
L'été dernier, à l'hôtel, nous avons goûté des crêpes à l'œuf ; c'était délicieux, n'est-ce pas ?
Быстрая лиса перепрыгнула через ленивую собаку, а ёж ушёл в подъезд. Сколько это стоит: 1 234,50 ₽?
Η γρήγορη αλεπού πήδηξε πάνω από το τεμπέλικο σκυλί. Ὁ βίος βραχύς, ἡ δὲ τέχνη μακρή.
敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园散步吧！北京大学有三万多名学生。
素早い茶色の狐がのろまな犬を飛び越えた。カタカナとひらがな、漢字が混ざった文章です。ﾊﾝｶｸ
빠른 갈색 여우가 게으른 개를 뛰어넘었다. 오늘은 날씨가 참 좋네요. 한국어 문장입니다.
الثعلب البني السريع يقفز فوق الكلب الكسول. السَّلامُ عَلَيْكُمْ، كَيْفَ حَالُكَ؟ ١٢٣٤٥
तेज भूरी लोमड़ी आलसी कुत्ते के ऊपर कूद गई। नमस्ते दुनिया, आप कैसे हैं? १२३४५
ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓ และ tiếng Việt có nhiều dấu: ắ ằ ẳ ẵ ặ.
Emoji: 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 ❤️ 🇩🇪🇫🇷 1️⃣ 🤷🏼‍♀️ ☺︎
Numbers: 0 12 345 6789 1234567 3.14159 1e-9 0x1F ½ ² Ⅻ ٣٤ ४५ ๗ 𝟘𝟙 ㊿ 10,000,000
"""

CODE = """\
#include <vector>
int main(int argc, char** argv) {
\tstd::vector<int> v{1, 2, 3};
\tfor (auto& x : v) { x *= 2; }   // twice
\treturn v[0] == 2 ? 0 : 1;
}

def f(x):
    if x >= 10 and x != 12:
        return {"a": [x ** 2, None], 'b': f"{x!r:>8}"}
    raise ValueError("x = %d" % x)


SELECT name, COUNT(*) FROM users WHERE id <> 7 GROUP BY name HAVING COUNT(*) > 1;
"""

# One rule of the pre-tokenizers each.
CASES = [
    "",
    " ",
    "  ",
    "   a   b   ",
    "\n",
    "\n\n\n",
    " \n \n\n a\n",
    "a\nb\n\nc\n \nd",
    "tab\tand\t\ttabs\t\n\t x",
    "line\r\nline\r\n\r\nline\rline",
    "x \r\n y",
    "no\u00a0break\u00a0\u00a0space",
    "en\u2002em\u2003thin\u2009zero\u200bwidth ideographic\u3000space",
    "line\u2028separator paragraph\u2029separator next\u0085line",
    "ogham\u1680space mongolian\u180evowel separator \u180e x",
    "vertical\u000btab form\u000cfeed",
    "I'm you're he's she'll we'd they've can't",
    "I'M YOU'RE HE'S SHE'LL WE'D THEY'VE CAN'T",
    "'s't're've'm'll'd 'S'T 'x 's's",
    "long s: it'\u017f wa\u017f, kelvin \u212a",
    "typographic: it\u2019s don\u2019t",
    "123 1234 12345678 1,234.5 12a34 a1b2",
    "½¾ ²³ ⅷ ١٢٣٤ १२३४ 一二三 ①②③ 𝟏𝟐𝟑𝟒",
    "!!! ... ?!?! --- *** $$$ ((())) ;;\n;;\r\n;; !\n\n!",
    "a!b ?c -d (e) f_g __init__",
    "e\u0301 vs \u00e9; A\u030a vs \u00c5 vs \u212b; \ufb01 ligature; \u1e9b\u0323",
    "q\u0307\u0323 q\u0323\u0307 (order), \u0344 \u0958 \u2126 \u00b5",
    "\u1112\u1161\u11ab \ud55c \u1100\u1161 \uac00\u11a8",
    "\u3099 \u304b\u3099 \u30ab\u3099 \uff76\uff9e",
    "combining at start \u0301x",
    "👩‍💻👩🏿‍🚀 flag 🇯🇵 keycap #️⃣ skin 👋🏻 zwj\u200dend vs16 \ufe0f",
    "\ufeffbom and \ufffd replacement",
    "control \u0000\u0001\u001f\u007f end",
    "private \ue000 \U000f0000 unassigned \u0378 noncharacter \uffff",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c\n<|endoftext|>\n",
    "<|endoftext|><|endoftext|>",
    "<|endoftext <|endoftext|",
    "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<tool> inner </tool>  <tool>\n",
    "cafe\u0301<|im_end|>e\u0301",
    "\u1c89's \ua7cb \ua7da\u10d50 it\u1c8a's \U00010d40\U00010d41 \U0001ccd6",
    "\u0897\u0301 e\u1715\u0301 \U000105d2\u0307 \U00011382\U000113c9 \u32ff \U0001ccd6",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethethe",
    "    " * 40 + "x",
    "supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft",
    "the theThe THE tHe",
]


def special(*names):
    return [AddedToken(n, special=True, normalized=False) for n in names]


def gpt2():
    t = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    # GPT-2's own file has normalized = true here.
    return t, [], [AddedToken("<|endoftext|>", special=True, normalized=True)]


def llama3():
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    t.decoder = decoders.ByteLevel()
    tokens = special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    return t, [], tokens


def qwen2():
    t = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    # As in Qwen2.5 and Qwen3: some added tokens are not special.
    tokens = special("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokens += [AddedToken(n, special=False, normalized=False) for n in ("<tool>", "</tool>")]
    return t, [], tokens


def smollm():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    t.decoder = decoders.ByteLevel()
    return t, special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), []


def flags():
    """Every flag of an added token, a prefix space, and the other split behaviors; no published model's."""
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex(r"\p{Lu}"), behavior="merged_with_next", invert=False),
            pre_tokenizers.Split(".", behavior="merged_with_previous", invert=False),
            pre_tokenizers.Split(Regex(r"-+"), behavior="removed", invert=False),
            pre_tokenizers.Split(Regex(r"[^;]"), behavior="contiguous", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True),
        ]
    )
    t.decoder = decoders.ByteLevel()
    tokens = [
        AddedToken("<mask>", special=True, normalized=False, lstrip=True),
        AddedToken("<after>", special=True, normalized=False, rstrip=True),
        AddedToken("word", special=False, normalized=False, single_word=True),
        AddedToken("\u00e9t\u00e9", special=False, normalized=True),
        AddedToken("<mask>er", special=False, normalized=True),
        AddedToken("  ", special=False, normalized=False),
    ]
    return t, [], tokens


FLAG_CASES = [
    "a <mask> b  <mask>c<mask>\n<mask>  ",
    "a <after> b <after>\n\n<after><mask> <mask><after> <after> <mask>",
    "word words sword word. _word \u0301word word\u0301 (word) word",
    "e\u0301te\u0301 \u00e9t\u00e9 \u00c9t\u00e9 <mask>er <masked>",
    "HelloWorld ABC a.b..c . .. a--b---c a;b;;c",
    "two  spaces   three    four",
    "\ufb01ne \u2460 x\u00b2 \uff21\uff22",
]


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    text = PROSE + CODE + "\n".join(c for c in CASES if "\x00" not in c) + "\n"
    (OUT / "text.txt").write_bytes(text.encode())
    for name, build in (("gpt2", gpt2), ("llama3", llama3), ("qwen2", qwen2), ("smollm", smollm), ("flags", flags)):
        tokenizer, in_vocabulary, added = build()
        trainer = trainers.BpeTrainer(
            vocab_size=1500 if name != "flags" else 400,
            special_tokens=in_vocabulary,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator((PROSE + CODE).splitlines(keepends=True), trainer)
        for token in added:
            (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if name == "llama3":
            bos = tokenizer.token_to_id("<|begin_of_text|>")
            tokenizer.post_processor = processors.TemplateProcessing(
                single="<|begin_of_text|> $A", pair="$A $B", special_tokens=[("<|begin_of_text|>", bos)]
            )
        file = json.loads(tokenizer.to_str())
        if name == "gpt2":  # as files from before 2024 write merges
            file["model"]["merges"] = [" ".join(m) for m in file["model"]["merges"]]
        (OUT / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")))
        tokenizer = Tokenizer.from_file(str(OUT / f"{name}.json"))
        cases = CASES + (FLAG_CASES if name == "flags" else [])
        record = {
            "vocab_size": tokenizer.get_vocab_size(with_added_tokens=True),
            "text": tokenizer.encode(text, add_special_tokens=False).ids,
            "cases": [[c, tokenizer.encode(c, add_special_tokens=False).ids] for c in cases],
        }
        (OUT / f"{name}_ids.json").write_text(json.dumps(record, separators=(",", ":")))


main()
