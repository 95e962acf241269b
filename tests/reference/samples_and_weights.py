"""The order of samples and the initial weights from docs/numerics.md alone ("The same samples and weights from another
program"). samples_and_weights_data.py makes test data of it. Needs numpy and xxhash:

    python3 -c 'import samples_and_weights as s; print([s.permuted(1000, 1, 0, i) for i in range(5)])'
"""

import decimal

import numpy as np
import xxhash

decimal.getcontext().prec = 60
D = decimal.Decimal
PI = D("3.14159265358979323846264338327950288419716939937510582097494459")
LOW = np.uint64(0xFFFFFFFF)


def block(seed, purpose, index):
    """Philox4x32-10; index: an array of uint64. Four arrays of words."""
    hashed = xxhash.xxh3_64_intdigest(purpose.encode())
    c = [index & LOW, index >> np.uint64(32)] + [np.full_like(index, w) for w in (hashed & 0xFFFFFFFF, hashed >> 32)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high = [p >> np.uint64(32) for p in (p0, p1)]
        c = [high[1] ^ c[1] ^ np.uint64(k[0]), p1 & LOW, high[0] ^ c[3] ^ np.uint64(k[1]), p0 & LOW]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def exact_normal(a, b):
    x = 2 * PI * b / D(2**32)
    cosine, term, n = D(0), D(1), 0
    while abs(term) > D("1e-58"):
        cosine, term, n = cosine + term, -term * x * x / ((n + 1) * (n + 2)), n + 2
    z = (-2 * ((D(2 * a + 1)) / D(2**33)).ln()).sqrt() * cosine
    near = np.float32(z)
    return min((np.nextafter(near, np.float32(s)) for s in (-9, 9)), key=lambda f: abs(D(float(f)) - z)) if abs(
        D(float(near)) - z) > D(float(np.spacing(abs(near)))) / 2 else near


def normal(seed, purpose, index):
    a, b = block(seed, purpose, index)[:2]
    z = np.sqrt(-2 * np.log((a + 0.5) / 2**32)) * np.cos(2 * np.pi * (b / 2**32))
    out = z.astype(np.float32)
    doubtful = (z * (1 - 2.0**-44)).astype(np.float32) != (z * (1 + 2.0**-44)).astype(np.float32)
    for i in np.nonzero(doubtful)[0]:
        out[i] = exact_normal(int(a[i]), int(b[i]))
    out[b % np.uint64(2**31) == 2**30] = 0
    return out


def permuted(size, seed, epoch, index):
    half = max(1, (int(size - 1).bit_length() + 1) // 2)
    while True:
        left, right = index >> half, index & (2**half - 1)
        for r in range(8):
            words = block(seed, f"data/order/epoch {epoch}", np.array([r << 32 | right], np.uint64))
            left, right = right, left ^ ((int(words[0][0]) | int(words[1][0]) << 32) & (2**half - 1))
        index = left << half | right
        if index < size:
            return index


def weight(seed, name, shape, deviation):
    count = int(np.prod(shape))
    if not deviation:
        return np.full(count, 1.0 if deviation is None else 0.0, np.float32)
    return np.float32(deviation) * normal(seed, "init/" + name, np.arange(count, dtype=np.uint64))
