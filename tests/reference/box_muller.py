"""Writes tests/data/box_muller.json: standard normal numbers from pairs of words, correctly rounded.

Made with Python 3.11, numpy 2.4 and mpmath 1.3:  python3 tests/reference/box_muller.py

Each value is sqrt(-2 ln u) cos(2 pi v), u = (a + 0.5) / 2^32, v = b / 2^32, in 400 bits, then rounded to the
nearest float. The pairs: corners of both words, random ones, and the hardest of 2^28 random ones, whose values
lie within 2^-45 (relative) of the middle between two floats, so that double precision cannot tell them apart.
"""

import json
import pathlib
import struct

import mpmath
import numpy

mpmath.mp.prec = 400


def exact(a, b):
    if b % 2**31 == 2**30:
        return mpmath.mpf(0)
    u = (mpmath.mpf(a) + 0.5) / 2**32
    return mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.cos(2 * mpmath.pi * mpmath.mpf(b) / 2**32)


def nearest_float_bits(x):
    near = numpy.float32(float(x))  # perhaps rounded twice: look at its neighbours
    candidates = [near, numpy.nextafter(near, numpy.float32(9)), numpy.nextafter(near, numpy.float32(-9))]
    best = min(candidates, key=lambda f: abs(mpmath.mpf(float(f)) - x))
    return struct.unpack("<I", struct.pack("<f", best))[0]


def hard_pairs(random):
    pairs = []
    for _ in range(256):
        words = random.integers(0, 2**32, (2, 2**20), dtype=numpy.uint64)
        u = (words[0].astype(numpy.float64) + 0.5) / 2**32
        z = numpy.sqrt(-2 * numpy.log(u)) * numpy.cos(2 * numpy.pi * (words[1].astype(numpy.float64) / 2**32))
        near = z.astype(numpy.float32)
        ulp = numpy.spacing(numpy.abs(near)).astype(numpy.float64)
        distance = numpy.abs(numpy.abs(z - near.astype(numpy.float64)) - ulp / 2)
        for i in numpy.nonzero(distance < 2.0**-45 * numpy.abs(z))[0]:
            pairs.append((int(words[0][i]), int(words[1][i])))
    return pairs


random = numpy.random.default_rng(20260101)
corners_a = [0, 1, 2, 2**31 - 1, 2**31, 3037000499, 3037000500, 2**32 - 2, 2**32 - 1]
corners_b = [k * 2**29 + d for k in range(8) for d in (-1, 0, 1)]
pairs = [(a, b % 2**32) for a in corners_a for b in corners_b]
pairs += [(int(a), int(b)) for a, b in random.integers(0, 2**32, (300, 2), dtype=numpy.uint64)]
pairs += hard_pairs(random)
rows = [[a, b, nearest_float_bits(exact(a, b))] for a, b in pairs]
out = pathlib.Path(__file__).parent.parent / "data" / "box_muller.json"
out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
print(len(rows), "pairs")
