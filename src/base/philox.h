// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3", section 3.3). A value depends on (seed, purpose, index) alone, so any rank can
// compute any element of any stream without the others.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace meshtrain {

using PhiloxBlock = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key);

// One named stream of random numbers. Immutable, so it can be shared by threads.
class RandomStream {
 public:
  // `purpose` names what the numbers are for, e.g. "init/layers.0.attn.q.weight".
  RandomStream(std::uint64_t seed, std::string_view purpose);

  std::uint64_t bits(std::uint64_t index) const;
  // In [0, 1), 24 bits.
  float uniform(std::uint64_t index) const;
  // Standard normal: box_muller() of the first two words of one block, so element i never depends on its
  // neighbours. ops::fill_normal draws many at once, the same bits.
  float normal(std::uint64_t index) const;

  const PhiloxKey& key() const { return key_; }
  // The hash of the purpose, which is the upper half of the counter; the index is the lower one.
  std::uint64_t purpose() const { return purpose_; }

 private:
  PhiloxBlock block(std::uint64_t index) const;

  PhiloxKey key_;
  std::uint64_t purpose_;
};

}  // namespace meshtrain
