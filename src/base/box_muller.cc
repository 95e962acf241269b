#include "base/box_muller.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>

namespace meshtrain {
namespace {

using namespace box_muller_parts;

// --- In double. ---

double polynomial(std::span<const double> coefficients, double x) {
  double sum = coefficients.back();
  for (std::size_t i = coefficients.size() - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// -2 ln u.
double minus_two_log(std::uint32_t a) {
  // u = x / 2^33, x = m 2^e with m in [sqrt(1/2), sqrt(2)).
  const double x = 2.0 * static_cast<double>(a) + 1.0;
  int e = 0;
  double m = std::frexp(x, &e);
  if (m < std::numbers::sqrt2 / 2) {
    m *= 2.0;
    --e;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double log_m = 2.0 * s * polynomial(kAtanh, s * s);
  return 2.0 * (static_cast<double>(33 - e) * std::numbers::ln2 - log_m);
}

// v in turns is quarter / 4 + offset / 2^32.
struct Angle {
  std::uint32_t quarter = 0;
  std::int32_t offset = 0;  // in [-2^29, 2^29)
};

Angle angle_of(std::uint32_t b) {
  const std::uint32_t nearest = (b + (1U << 29U)) >> 30U;  // of b + 2^29 modulo 2^32: quarter 4 is 0
  return {nearest, static_cast<std::int32_t>(b - (nearest << 30U))};
}

// cos(2 pi v).
double cosine(std::uint32_t b) {
  const Angle angle = angle_of(b);
  const double x = static_cast<double>(angle.offset) * (std::numbers::pi * 0x1p-31);
  const double value = angle.quarter % 2 == 0 ? polynomial(kCos, x * x) : x * polynomial(kSin, x * x);
  return angle.quarter == 1 || angle.quarter == 2 ? -value : value;
}

// --- In integers, where double leaves two floats possible. ---

// A number in [0, 2^32) in steps of 2^-256. Operations cut off what lies below a step; a value takes some 300
// of them, so that its error is below 2^-240. The values compared are above 2^-92, and the nearest that one
// of 2^64 random values comes to the middle of two floats is about 2^-88 of itself.
class Fixed {
 public:
  Fixed() = default;
  explicit Fixed(std::uint32_t whole) { limbs_[kWhole] = whole; }

  // x = whole * 2^exponent, which must be representable.
  static Fixed of(std::uint64_t whole, int exponent) {
    Fixed result;
    for (int bit = 0; bit < 64; ++bit) {
      if ((whole >> static_cast<unsigned>(bit) & 1U) == 0) continue;
      const auto at = static_cast<std::size_t>(bit + exponent + 32 * static_cast<int>(kWhole));
      result.limbs_[at / 32] |= 1U << at % 32;
    }
    return result;
  }

  Fixed operator+(const Fixed& other) const {
    Fixed result;
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < kLimbs; ++i) {
      carry += std::uint64_t{limbs_[i]} + other.limbs_[i];
      result.limbs_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32U;
    }
    return result;
  }
  // other <= *this.
  Fixed operator-(const Fixed& other) const {
    Fixed result;
    std::uint64_t borrow = 0;
    for (std::size_t i = 0; i < kLimbs; ++i) {
      const std::uint64_t difference = std::uint64_t{limbs_[i]} - other.limbs_[i] - borrow;
      result.limbs_[i] = static_cast<std::uint32_t>(difference);
      borrow = difference >> 63U;
    }
    return result;
  }
  Fixed operator*(const Fixed& other) const {
    std::array<std::uint32_t, 2 * kLimbs> product{};
    for (std::size_t i = 0; i < kLimbs; ++i) {
      std::uint64_t carry = 0;
      for (std::size_t j = 0; j < kLimbs; ++j) {
        carry += std::uint64_t{limbs_[i]} * other.limbs_[j] + product[i + j];
        product[i + j] = static_cast<std::uint32_t>(carry);
        carry >>= 32U;
      }
      product[i + kLimbs] = static_cast<std::uint32_t>(carry);
    }
    Fixed result;
    for (std::size_t i = 0; i < kLimbs; ++i) result.limbs_[i] = product[i + kWhole];
    return result;
  }
  Fixed operator*(std::uint32_t factor) const { return *this * Fixed(factor); }
  Fixed operator/(std::uint32_t divisor) const {
    Fixed result;
    std::uint64_t rest = 0;
    for (std::size_t i = kLimbs; i-- > 0;) {
      rest = rest << 32U | limbs_[i];
      result.limbs_[i] = static_cast<std::uint32_t>(rest / divisor);
      rest %= divisor;
    }
    return result;
  }
  bool operator>(const Fixed& other) const {
    for (std::size_t i = kLimbs; i-- > 0;) {
      if (limbs_[i] != other.limbs_[i]) return limbs_[i] > other.limbs_[i];
    }
    return false;
  }
  bool is_zero() const { return *this == Fixed(); }
  bool operator==(const Fixed&) const = default;

 private:
  static constexpr std::size_t kWhole = 8;  // the limb before the point
  static constexpr std::size_t kLimbs = kWhole + 1;
  std::array<std::uint32_t, kLimbs> limbs_{};  // lowest first
};

// numerator / denominator < 1, both below 2^35.
Fixed ratio(std::uint64_t numerator, std::uint64_t denominator) {
  Fixed result;
  for (int bit = 1; bit <= 256; ++bit) {
    numerator *= 2;
    if (numerator < denominator) continue;
    numerator -= denominator;
    result = result + Fixed::of(1, -bit);
  }
  return result;
}

// s + s^3/3 + s^5/5 …, with alternating signs the arc tangent. s < 1.
Fixed arc(const Fixed& s, bool alternating) {
  const Fixed square = s * s;
  Fixed power = s;
  Fixed plus;
  Fixed minus;
  for (std::uint32_t n = 1; !power.is_zero(); n += 2, power = power * square) {
    Fixed& sum = alternating && n % 4 == 3 ? minus : plus;
    sum = sum + power / n;
  }
  return plus - minus;
}

// Machin 1706: pi/4 = 4 arctan(1/5) - arctan(1/239).
Fixed pi() {
  return arc(Fixed(1) / 5, true) * 16 - arc(Fixed(1) / 239, true) * 4;
}

// x^k/k! - x^(k+2)/(k+2)! …: the cosine for k = 0, the sine for k = 1.
Fixed circular(const Fixed& x, std::uint32_t k) {
  const Fixed square = x * x;
  Fixed term = k == 0 ? Fixed(1) : x;
  Fixed sums[2];
  for (unsigned i = 0; !term.is_zero(); ++i, k += 2) {
    sums[i % 2] = sums[i % 2] + term;
    term = term * square / ((k + 1) * (k + 2));
  }
  return sums[0] - sums[1];
}

// (-2 ln u) cos^2(2 pi v).
Fixed exact_square(std::uint32_t a, std::uint32_t b) {
  // -ln u = j ln 2 + ln(2^w / x), u = x / 2^33, 2^w the power of two above x.
  const std::uint64_t x = 2 * std::uint64_t{a} + 1;
  const int w = static_cast<int>(std::bit_width(x));
  const std::uint64_t power = std::uint64_t{1} << static_cast<unsigned>(w);
  const Fixed log2 = arc(ratio(1, 3), false) * 2;
  const Fixed log = log2 * static_cast<std::uint32_t>(33 - w) + arc(ratio(power - x, power + x), false) * 2;
  const Angle angle = angle_of(b);
  const auto offset = static_cast<std::uint32_t>(std::abs(angle.offset));
  const Fixed c = circular(pi() * Fixed::of(offset, -31), angle.quarter % 2);
  return log * 2 * (c * c);
}

// Of two neighbouring floats, 0 < low < high, the one that is nearer to the exact magnitude.
float nearer(std::uint32_t a, std::uint32_t b, float low, float high) {
  const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2.0;
  int exponent = 0;
  const auto digits = static_cast<std::uint64_t>(std::frexp(middle, &exponent) * 0x1p25);
  return exact_square(a, b) > Fixed::of(digits * digits, 2 * (exponent - 25)) ? high : low;
}

}  // namespace

float box_muller(std::uint32_t a, std::uint32_t b) {
  const double z = std::sqrt(minus_two_log(a)) * cosine(b) + 0.0;
  const double error = z * kErrorBound;
  const auto low = static_cast<float>(z - error);
  const auto high = static_cast<float>(z + error);
  if (low == high) return low;
  return std::copysign(nearer(a, b, std::abs(low), std::abs(high)), low);
}

}  // namespace meshtrain
