#include "train/mesh.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/engines.h"

namespace meshtrain {
namespace {

Config config_with(std::int64_t dp) {
  Config config = parse_config("[model]\npreset = \"gpt2-tiny\"\n", "test", {"data.seq_len=16"});
  config.train.global_batch = 24;
  config.train.micro_batch = 2;
  config.mesh.dp = dp;
  return config;
}

std::string complaint(const Config& config, std::int64_t ranks) {
  try {
    for_ranks(config, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Mesh, DataParallelRanksFillItUp) {
  for (const std::int64_t ranks : {1, 2, 3, 4, 12}) EXPECT_EQ(for_ranks(config_with(0), ranks).mesh.dp, ranks);
  EXPECT_EQ(for_ranks(config_with(4), 4).mesh.dp, 4);
  EXPECT_EQ(ranks_of(config_with(0).mesh), 0);
}

TEST(Mesh, AnotherNumberOfRanksIsRefusedWithWhatWouldWork) {
  const std::string text = complaint(config_with(4), 3);
  for (const char* part : {"mesh.dp = 4", "makes 4 ranks", "there are 3", "--ranks 4", "mesh.dp = 3"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // 12 micro-batches do not go to 5 ranks.
  const std::string uneven = complaint(config_with(0), 5);
  for (const char* part : {"mesh.dp = 5", "mesh.dp = 4 or 6", "20 or 30"}) {
    EXPECT_NE(uneven.find(part), std::string::npos) << uneven;
  }
}

TEST(Mesh, GroupsAreSlicesOfTheGrid) {
  const std::unique_ptr<World> world = make_sim_world(2, 4);
  const RankGroups groups(for_ranks(config_with(4), 4), *world);
  EXPECT_EQ(groups.dp->ranks(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(groups.dp->rank(), 2);
  EXPECT_EQ(groups.dp->name(), "dp");
  EXPECT_EQ(groups.control->size(), 4);
}

}  // namespace
}  // namespace meshtrain
