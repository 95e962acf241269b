#include "base/philox.h"

#include <gtest/gtest.h>

#include "base/box_muller.h"

namespace meshtrain {
namespace {

// The known answers that Random123 1.14 publishes for philox4x32 with 10 rounds.
TEST(Philox, GivesTheKnownAnswers) {
  constexpr std::uint32_t kOnes = 0xFFFFFFFFU;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  EXPECT_EQ(philox4x32_10({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxBlock{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox4x32_10({0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}, {0xA4093822, 0x299F31D0}),
            (PhiloxBlock{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
}

TEST(Philox, AStreamCountsIndexAndPurposeUnderTheSeed) {
  const RandomStream random(0x123456789ABCDEF0U, "init/a");
  EXPECT_EQ(random.key(), (PhiloxKey{0x9ABCDEF0U, 0x12345678U}));
  const std::uint64_t index = 0xA0000000BU;
  const auto purpose = random.purpose();
  const PhiloxBlock block = philox4x32_10(
      {0xBU, 0xAU, static_cast<std::uint32_t>(purpose), static_cast<std::uint32_t>(purpose >> 32U)},
      random.key());
  EXPECT_EQ(random.bits(index), block[0] | std::uint64_t{block[1]} << 32U);
  EXPECT_EQ(random.uniform(index), static_cast<float>(block[0] >> 8U) * 0x1p-24F);
  EXPECT_EQ(random.normal(index), box_muller(block[0], block[1]));
}

}  // namespace
}  // namespace meshtrain
