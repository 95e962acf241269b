#include "train/processors.h"

#include <gtest/gtest.h>

#include <vector>

#include "comm_ranks.h"

namespace meshtrain {
namespace {

const ops::Processor kZen5 = {.vectors = "AVX-512", .bf16_kernels = true, .amx = false, .amd = true};
const ops::Processor kCooperLake = {.vectors = "AVX-512", .bf16_kernels = true, .amx = false, .amd = false};
const ops::Processor kZen2 = {.vectors = "AVX2", .bf16_kernels = false, .amx = false, .amd = true};

struct Agreement {
  std::vector<Bf16Products> products;
  std::string said;
};

Agreement agree(const std::vector<ops::Processor>& processors) {
  const auto ranks = static_cast<int>(processors.size());
  Agreement result{.products = std::vector<Bf16Products>(processors.size()), .said = {}};
  ::testing::internal::CaptureStderr();
  const auto failures = testing::run_threads(ranks, {}, [&](World& world) -> std::vector<std::string> {
    std::vector<int> all(processors.size());
    for (int i = 0; i < ranks; ++i) all[static_cast<std::size_t>(i)] = i;
    const auto group = world.group("all", all);
    const auto own = static_cast<std::size_t>(world.rank());
    result.products[own] = agree_on_bf16_products(*group, processors[own]);
    return {};
  });
  result.said = ::testing::internal::GetCapturedStderr();
  for (const auto& lines : failures) EXPECT_TRUE(lines.empty());
  return result;
}

TEST(Processors, LikeOnesKeepTheirWayInSilence) {
  const Agreement fast = agree({kZen5, kZen5, kZen5});
  EXPECT_EQ(fast.products, std::vector<Bf16Products>(3, Bf16Products::kFastest));
  EXPECT_EQ(fast.said, "");
  const Agreement slow = agree({kCooperLake, kCooperLake});
  EXPECT_EQ(slow.products, std::vector<Bf16Products>(2, Bf16Products::kFp32));
  EXPECT_EQ(slow.said, "");
}

TEST(Processors, OneInFp32MakesAllComputeInFp32) {
  for (const auto& processors : {std::vector{kZen5, kCooperLake}, std::vector{kCooperLake, kZen5, kZen5}}) {
    const Agreement mixed = agree(processors);
    EXPECT_EQ(mixed.products, std::vector<Bf16Products>(processors.size(), Bf16Products::kFp32));
    EXPECT_NE(mixed.said.find("All ranks compute products of bf16 numbers in fp32"), std::string::npos);
    EXPECT_EQ(mixed.said.find("rounds"), std::string::npos);
  }
}

TEST(Processors, VectorsOfOtherWidthsAreNamed) {
  const Agreement mixed = agree({kCooperLake, kCooperLake, kZen2});
  EXPECT_EQ(mixed.products, std::vector<Bf16Products>(3, Bf16Products::kFp32));
  EXPECT_NE(mixed.said.find("rank 0 has AVX-512, rank 2 AVX2"), std::string::npos) << mixed.said;
  EXPECT_EQ(mixed.said.find("compute products of bf16"), std::string::npos);
}

}  // namespace
}  // namespace meshtrain
