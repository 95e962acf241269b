#!/usr/bin/env python3
"""Makes src/data/unicode_data.cc: the properties of characters by which the Hugging Face tokenizers library cuts text.

Its regular expressions (Oniguruma) and its \\w for single-word tokens are those of Unicode 16, its Digits
pre-tokenizer (Rust's char::is_numeric) of Unicode 17, its normalizers older than both. Everything here is asked of the
library itself, general categories are compared with unicodedata2's, and what is generated is complete: no library that
is installed where meshtrain runs is asked. Needs `pip install tokenizers==0.23.3 unicodedata2==16.0.0 fonttools`
(names of scripts alone).

    python tests/reference/unicode_data.py
"""

import pathlib

import tokenizers
import unicodedata2
from fontTools.unicodedata import Scripts
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = pathlib.Path(__file__).resolve().parents[2] / "src" / "data" / "unicode_data.cc"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi",
              "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"]
ALTERNATING = len(CATEGORIES)  # Lu, Ll, Lu, …


def matched(pattern, code_points=CODE_POINTS, between=""):
    """The code points that the pattern, which takes one, matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(code_points), 4096):
        for piece, _ in split.pre_tokenize_str(between.join(map(chr, code_points[i:i + 4096]))):
            found.update(map(ord, piece))
    return found - set(map(ord, between))


def category_runs():
    category = [0] * 0x110000
    for index, name in enumerate(CATEGORIES):
        expected = {c for c in CODE_POINTS if unicodedata2.category(chr(c)) == name}
        assert matched(rf"\p{{{name}}}") == expected, name
        for c in expected:
            category[c] = index
    runs = []
    c = 0
    while c < 0x110000:
        end = c
        while end < 0x110000 and category[end] == (1 if (end - c) % 2 == 0 else 2):
            end += 1
        if end - c >= 6:
            runs.append((c, ALTERNATING))
        else:
            end = c + 1
            while end < 0x110000 and category[end] == category[c] and category[end:end + 6] != [1, 2, 1, 2, 1, 2]:
                end += 1
            runs.append((c, category[c]))
        c = end
    return runs


def ranges_of(code_points):
    """[first, last] pairs; the surrogates in a gap do not end a range."""
    ranges = []
    for c in sorted(code_points):
        if ranges and (ranges[-1][1] == c - 1 or (ranges[-1][1], c) == (0xD7FF, 0xE000)):
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def script_ranges():
    scripts = {}
    for code, name in sorted(Scripts.NAMES.items(), key=lambda item: item[1]):
        try:
            found = matched(rf"\p{{{name}}}")
        except Exception:  # newer than the library
            continue
        if found:
            scripts[name] = ranges_of(found)
    return scripts


def case_runs():
    """(first, last, step, d): each of these characters differs in case alone from the one d before it."""
    candidates = [c for c in CODE_POINTS
                  if unicodedata2.category(chr(c)) in ("Lu", "Ll", "Lt", "Lm", "Nl", "So", "Mn", "Lo")
                  and c not in range(0x3400, 0x4E00 + 0x5200) and c not in range(0xAC00, 0xD7A4) and c < 0x20000]
    cased = [c for c in candidates if chr(c).lower() != chr(c) or chr(c).upper() != chr(c)
             or unicodedata2.category(chr(c)) in ("Lu", "Ll", "Lt") or chr(c).casefold() != chr(c)]
    pairs = {}
    same = {c: matched(rf"(?i:\x{{{c:x}}})", cased, "\u4e00") for c in cased}
    for c in cased:
        if c != min(same[c]):
            pairs[c] = min(same[c])
        assert all(same[d] == same[c] for d in same[c]), hex(c)  # it is an equivalence
    runs = []
    for c, least in sorted(pairs.items()):
        if runs and c - least == runs[-1][3]:
            first, last, step, _ = runs[-1]
            if c - last == step or (first == last and c - last <= 2):
                runs[-1][1:3] = c, c - last
                continue
        runs.append([c, c, 1, c - least])
    return runs


def long_foldings():
    """The first two characters of what one character is equal to without case, where that is several."""
    foldings = {chr(c).casefold() for c in CODE_POINTS if len(chr(c).casefold()) > 1}
    return sorted({(ord(f[0]), ord(f[1])) for f in foldings}), sorted(
        c for c in CODE_POINTS if len(chr(c).casefold()) > 1)


def unnormalized():
    """Assigned characters that the library's normalizers take for unassigned."""
    unknown = set()
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        normalize = getattr(normalizers, form)().normalize_str
        for c in CODE_POINTS:
            for text in (chr(c), f"a{chr(c)}\u0323\u0301", f"{chr(c)}\u0301\u0323", f"\u0301{chr(c)}"):
                if normalize(text) != unicodedata2.normalize(form, text):
                    unknown.add(c)
    normalize = normalizers.NFC().normalize_str
    for c in CODE_POINTS:
        parts = unicodedata2.decomposition(chr(c)).split()
        if len(parts) != 2 or parts[0].startswith("<"):
            continue
        pair = "".join(chr(int(part, 16)) for part in parts)
        if normalize(pair) != unicodedata2.normalize("NFC", pair):
            assert ord(pair[0]) > 0xFFFF  # of a later script as a whole
            unknown.add(ord(pair[0]))
    # As if they were unassigned: nothing is done to them.
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        for c in unknown:
            assert getattr(normalizers, form)().normalize_str(f"a{chr(c)}\u0301") == f"a{chr(c)}\u0301", hex(c)
    return ranges_of(unknown)


def numbers():
    """Of Rust: those that are not of category N."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    found = {c for c in CODE_POINTS if len(digits.pre_tokenize_str(f"a{chr(c)}a")) == 3}
    known = {c for c in CODE_POINTS if unicodedata2.category(chr(c))[0] == "N"}
    assert known <= found
    return ranges_of(found - known)


def words():
    """Of Oniguruma's \\w: what is not of a category that is a whole part of it; the other part is outside of classes."""
    whole = {c for c in CODE_POINTS if unicodedata2.category(chr(c)) in
             ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "Pc")}
    in_class = matched(r"[\w]+")
    outside = matched(r"\w")
    assert whole <= in_class <= outside
    return ranges_of(in_class - whole), ranges_of(outside - in_class)


def table(kind, name, items):
    items = list(items)
    lines = [f"constexpr {kind} {name}[] = {{"]
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 112:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line, "};"])


def pair(values):
    return "{" + ", ".join(f"0x{v:X}" for v in values) + "}"


def main():
    assert tokenizers.__version__ == "0.23.3" and unicodedata2.unidata_version == "16.0.0"
    scripts = script_ranges()
    pairs, foldings = long_foldings()
    names, script_items, at = [], [], 0
    for name, ranges in scripts.items():
        names.append(f'{{"{name}", {at}, {len(ranges)}}}')
        script_items += map(pair, ranges)
        at += len(ranges)
    parts = [
        "// Made by tests/reference/unicode_data.py; do not edit.",
        "// clang-format off",
        '#include "data/unicode_data.h"',
        "",
        "namespace meshtrain::unicode {",
        "namespace {",
        "",
        table("CategoryRun", "kCategoryRuns", (f"{{0x{c:X}, {k}}}" for c, k in category_runs())),
        table("CodePointRange", "kScriptRanges", script_items),
        table("ScriptRanges", "kScripts", names),
        table("CaseRun", "kCaseRuns", (f"{{0x{a:X}, 0x{b:X}, {c}, {d}}}" for a, b, c, d in case_runs())),
        table("CharacterPair", "kLongFoldings", map(pair, pairs)),
        table("CodePointRange", "kFoldsToSeveral", map(pair, ranges_of(foldings))),
        table("CodePointRange", "kLaterNumbers", map(pair, numbers())),
        table("CodePointRange", "kOtherWord", map(pair, words()[0])),
        table("CodePointRange", "kBareWord", map(pair, words()[1])),
        table("CodePointRange", "kUnnormalized", map(pair, unnormalized())),
        "",
        "}  // namespace",
        "",
    ]
    for kind, function, name in [("CategoryRun", "category_runs", "kCategoryRuns"),
                                 ("CodePointRange", "script_ranges", "kScriptRanges"),
                                 ("ScriptRanges", "scripts", "kScripts"), ("CaseRun", "case_runs", "kCaseRuns"),
                                 ("CharacterPair", "long_foldings", "kLongFoldings"),
                                 ("CodePointRange", "folds_to_several", "kFoldsToSeveral"),
                                 ("CodePointRange", "later_numbers", "kLaterNumbers"),
                                 ("CodePointRange", "other_word", "kOtherWord"),
                                 ("CodePointRange", "bare_word", "kBareWord"),
                                 ("CodePointRange", "unnormalized", "kUnnormalized")]:
        parts += [f"std::span<const {kind}> {function}() {{", f"  return {name};", "}"]
    parts += ["", "}  // namespace meshtrain::unicode", ""]
    OUT.write_text("\n".join(parts))
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
