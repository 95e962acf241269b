#include "ops/processor.h"

#include <gtest/gtest.h>

namespace meshtrain::ops {
namespace {

struct Case {
  const char* name;
  Processor processor;
  const char* products;
};

TEST(Processor, Bf16IsMultipliedWhereThatIsFaster) {
  const Case cases[] = {
      {"AMD Zen 5, Zen 4", {"AVX-512", true, false, true}, "bf16 products by AVX512-BF16"},
      {"AMD Zen 3", {"AVX2", false, false, true}, "bf16 products in fp32"},
      {"AMD with AMX", {"AVX-512", true, true, true}, "bf16 products by AMX"},
      {"Intel Sapphire Rapids", {"AVX-512", true, true, false}, "bf16 products by AMX"},
      {"the same without AMX, or Cooper Lake", {"AVX-512", true, false, false}, "bf16 products in fp32"},
      {"Intel Cascade Lake", {"AVX-512", false, false, false}, "bf16 products in fp32"},
      {"AMX in hardware that oneDNN may not use", {"AVX2", false, true, false}, "bf16 products in fp32"},
      {"a processor without any of it", {"SSE2", false, false, false}, "bf16 products in fp32"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(describe_bf16_products(c.processor), c.products) << c.name;
    EXPECT_EQ(multiplies_bf16(c.processor), std::string(c.products) != "bf16 products in fp32") << c.name;
  }
}

TEST(Processor, ThisOneIsDescribedAlikeEachTime) {
  const Processor one = this_processor();
  const Processor other = this_processor();
  EXPECT_EQ(one.vectors, other.vectors);
  EXPECT_EQ(describe_bf16_products(one), describe_bf16_products(other));
  EXPECT_FALSE(one.amx && one.vectors != "AVX-512");
}

}  // namespace
}  // namespace meshtrain::ops
