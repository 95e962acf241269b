// Standard normal numbers from two random words (Box and Muller 1958), correctly rounded: a function of
// its arguments alone, whatever the C library, the instruction set or the width of vectors.
#pragma once

#include <cstdint>

namespace meshtrain {

// The float nearest to sqrt(-2 ln u) * cos(2 pi v) with u = (a + 0.5) / 2^32 and v = b / 2^32; +0 where
// the cosine is 0. There are no ties: all other values are transcendental.
float box_muller(std::uint32_t a, std::uint32_t b);

namespace box_muller_parts {

// Ziv's test (Ziv 1991, "Fast evaluation of elementary mathematical functions with correctly rounded last
// bit"): the value computed in double errs by less than this, relative, so the result is certain when both
// ends of the interval round to one float. Each of the 40 roundings of an evaluation adds less than 2^-52,
// most of them scaled down, and each series stops where its rest is below 2^-53.
inline constexpr double kErrorBound = 0x1p-46;

// Coefficients of atanh(s)/s in s^2, sin(x)/x and cos(x) in x^2, lowest first: Taylor. |s| < 0.172 and
// |x| <= pi/4 leave rests below 2^-54, 2^-53 and 2^-58.
inline constexpr double kAtanh[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,  1.0 / 9.0,
                                    1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0, 1.0 / 17.0, 1.0 / 19.0};
inline constexpr double kSin[] = {1.0,
                                  -1.0 / 6.0,
                                  1.0 / 120.0,
                                  -1.0 / 5040.0,
                                  1.0 / 362880.0,
                                  -1.0 / 39916800.0,
                                  1.0 / 6227020800.0,
                                  -1.0 / 1307674368000.0};
inline constexpr double kCos[] = {1.0,
                                  -1.0 / 2.0,
                                  1.0 / 24.0,
                                  -1.0 / 720.0,
                                  1.0 / 40320.0,
                                  -1.0 / 3628800.0,
                                  1.0 / 479001600.0,
                                  -1.0 / 87178291200.0,
                                  1.0 / 20922789888000.0};

}  // namespace box_muller_parts
}  // namespace meshtrain
