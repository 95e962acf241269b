#include "base/philox.h"

#include <xxhash.h>

#include "base/box_muller.h"

namespace meshtrain {

PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32U) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32U) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

RandomStream::RandomStream(std::uint64_t seed, std::string_view purpose)
    : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)},
      purpose_(XXH3_64bits(purpose.data(), purpose.size())) {}

PhiloxBlock RandomStream::block(std::uint64_t index) const {
  return philox4x32_10({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U),
                        static_cast<std::uint32_t>(purpose_), static_cast<std::uint32_t>(purpose_ >> 32U)},
                       key_);
}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  const PhiloxBlock b = block(index);
  return b[0] | (static_cast<std::uint64_t>(b[1]) << 32U);
}

float RandomStream::uniform(std::uint64_t index) const {
  return static_cast<float>(block(index)[0] >> 8U) * 0x1p-24F;
}

float RandomStream::normal(std::uint64_t index) const {
  const PhiloxBlock b = block(index);
  return box_muller(b[0], b[1]);
}

}  // namespace meshtrain
