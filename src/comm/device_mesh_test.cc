#include "comm/device_mesh.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "comm/engines.h"

namespace meshtrain {
namespace {

using Ranks = std::vector<int>;

TEST(DeviceMesh, InnermostAxisHasNeighbouringRanks) {
  // As Megatron-LM orders its groups: tp, cp, dp, pp.
  const DeviceMesh mesh({{"tp", 2}, {"dp", 3}, {"pp", 2}}, 9, 12);
  EXPECT_EQ(mesh.coordinate("tp"), 1);
  EXPECT_EQ(mesh.coordinate("dp"), 1);
  EXPECT_EQ(mesh.coordinate("pp"), 1);
  EXPECT_EQ(mesh.size("dp"), 3);
  EXPECT_EQ(mesh.ranks_along({"tp"}), (Ranks{8, 9}));
  EXPECT_EQ(mesh.ranks_along({"dp"}), (Ranks{7, 9, 11}));
  EXPECT_EQ(mesh.ranks_along({"pp"}), (Ranks{3, 9}));
  EXPECT_EQ(mesh.ranks_along({"pp", "tp"}), (Ranks{2, 3, 8, 9}));
  EXPECT_EQ(mesh.ranks_along({"tp", "dp", "pp"}), (Ranks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(mesh.ranks_along({}), (Ranks{9}));
}

TEST(DeviceMesh, SlicesAlongAnAxisCoverTheWorldOnce) {
  Ranks seen(24, 0);
  for (int rank = 0; rank < 24; ++rank) {
    const DeviceMesh mesh({{"a", 2}, {"b", 3}, {"c", 4}}, rank, 24);
    const Ranks along = mesh.ranks_along({"a", "c"});
    EXPECT_EQ(along.size(), 8U);
    if (along.front() != rank) continue;
    for (const int member : along) ++seen[member];
  }
  EXPECT_EQ(seen, Ranks(24, 1));
}

TEST(DeviceMesh, GroupsAreNamedAfterTheirAxes) {
  const DeviceMesh mesh({{"tp", 2}, {"dp", 2}}, 2, 4);
  const auto world = make_sim_world(2, 4);
  const auto group = mesh.group(*world, {"tp", "dp"});
  EXPECT_EQ(group->name(), "tp+dp");
  EXPECT_EQ(group->rank(), 2);
  EXPECT_EQ(mesh.group(*world, {"dp"})->ranks(), (Ranks{0, 2}));
}

TEST(DeviceMesh, RefusesWhatDoesNotFit) {
  EXPECT_THROW(DeviceMesh({{"dp", 3}}, 0, 4), std::logic_error);
  EXPECT_THROW(DeviceMesh({{"dp", 4}}, 4, 4), std::logic_error);
  EXPECT_THROW(DeviceMesh({{"dp", 0}}, 0, 0), std::logic_error);
  const DeviceMesh mesh({{"dp", 4}}, 0, 4);
  EXPECT_THROW(mesh.size("tp"), std::logic_error);
  EXPECT_THROW(mesh.ranks_along({"tp"}), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
