#include "train/mesh.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

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
  const std::string five = complaint(config_with(4), 5);
  for (const char* part : {"makes 4 ranks", "there are 5", "leave mesh.dp out and start 4 or 6"}) {
    EXPECT_NE(five.find(part), std::string::npos) << five;
  }
  const std::string uneven = complaint(config_with(0), 5);
  for (const char* part : {"mesh.dp = 5", "mesh.dp = 4 or 6", "20 or 30"}) {
    EXPECT_NE(uneven.find(part), std::string::npos) << uneven;
  }
}

Config with_tp_and_pp(Config config) {
  config.mesh.tp = 2;
  config.mesh.pp = 2;
  return config;
}

TEST(Mesh, DataParallelRanksAreCopiesOfTheModel) {
  const Config open = with_tp_and_pp(config_with(0));
  EXPECT_EQ(ranks_of(open.mesh), 0);
  EXPECT_EQ(least_ranks_of(open.mesh), 4);
  for (const std::int64_t dp : {1, 2, 3, 12}) {
    const Config config = for_ranks(open, 4 * dp);
    EXPECT_EQ(config.mesh.dp, dp);
    EXPECT_EQ(ranks_of(config.mesh), 4 * dp);
    EXPECT_EQ(least_ranks_of(config.mesh), 4 * dp);
  }
}

// 12 micro-batches: dp is one of 1, 2, 3, 4, 6, 12.
TEST(Mesh, FewerRanksGetTheLargestMeshThatWorks) {
  const auto dp_of = [](const Config& config, std::int64_t most) {
    const std::optional<Config> result = for_ranks_at_most(config, most);
    return result ? result->mesh.dp : 0;
  };
  const std::pair<std::int64_t, std::int64_t> single[] = {{9, 6}, {6, 6}, {5, 4}, {4, 4},
                                                          {2, 2}, {1, 1}, {0, 0}};
  for (const auto& [most, dp] : single) EXPECT_EQ(dp_of(config_with(6), most), dp) << most;
  const std::pair<std::int64_t, std::int64_t> fours[] = {{24, 6}, {23, 4}, {15, 3}, {4, 1}, {3, 0}, {0, 0}};
  for (const auto& [most, dp] : fours) EXPECT_EQ(dp_of(with_tp_and_pp(config_with(6)), most), dp) << most;
  Config only_dp = config_with(6);
  only_dp.mesh.dp = 4;
  EXPECT_EQ(for_ranks_at_most(config_with(6), 5), only_dp);
}

TEST(Mesh, RanksThatAreNoWholeCopiesAreRefusedWithWhatWouldWork) {
  const std::pair<std::int64_t, const char*> open[] = {
      {1, "Start 4 ranks"}, {6, "Start 4 or 8 ranks"}, {18, "Start 16 or 24 ranks"}, {99, "Start 48 ranks"}};
  for (const auto& [ranks, advice] : open) {
    const std::string text = complaint(with_tp_and_pp(config_with(0)), ranks);
    for (const char* part : {"mesh.tp = 2 x cp = 1 x pp = 2: a copy of the model takes 4 ranks", advice}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  // A whole number of copies, but 12 micro-batches do not go to 5 of them.
  const std::string uneven = complaint(with_tp_and_pp(config_with(0)), 20);
  EXPECT_NE(uneven.find("mesh.dp = 4 or 6"), std::string::npos) << uneven;

  const std::pair<std::int64_t, const char*> fixed[] = {{8, "Start 4 ranks (--ranks 4), or set mesh.dp = 2"},
                                                        {2, "Start 4 ranks (--ranks 4)."},
                                                        {20, "leave mesh.dp out and start 16 or 24."}};
  for (const auto& [ranks, advice] : fixed) {
    const std::string text = complaint(with_tp_and_pp(config_with(1)), ranks);
    for (const char* part : {"mesh.dp = 1 x tp = 2 x cp = 1 x pp = 2 makes 4 ranks", advice}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

TEST(Mesh, OfTheConfigsOfTheRepository) {
  const std::string folder = MESHTRAIN_SOURCE_DIR "/configs/";
  EXPECT_EQ(ranks_of(load_config(folder + "llama-3.1-405b-16k.toml", {}).mesh), 16384);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_NO_THROW(load_config(entry.path().string(), {})) << entry.path();
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
