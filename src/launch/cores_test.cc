#include "launch/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

std::vector<int> range(int count) {
  std::vector<int> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), 0);
  return result;
}

TEST(Cores, SharesAreContiguousDisjointAndDifferByOne) {
  for (int count = 1; count <= 33; ++count) {
    const std::vector<int> cores = range(count);
    for (int shares = 1; shares <= count; ++shares) {
      std::vector<int> together;
      std::size_t last = cores.size();
      for (int share = 0; share < shares; ++share) {
        const std::span<const int> mine = share_of_cores(cores, share, shares);
        EXPECT_LE(mine.size(), last);  // the first ones are longer
        EXPECT_GE(mine.size(), cores.size() / static_cast<std::size_t>(shares));
        EXPECT_LE(mine.size(), cores.size() / static_cast<std::size_t>(shares) + 1);
        last = mine.size();
        together.insert(together.end(), mine.begin(), mine.end());
      }
      EXPECT_EQ(together, cores);
    }
    EXPECT_TRUE(share_of_cores(cores, 0, count + 1).empty());
  }
}

class Topology : public testing::Test {
 protected:
  Topology() : sysfs_(fs::path(testing::TempDir()) / ("meshtrain_cores_" + std::to_string(getpid()))) {
    fs::remove_all(sysfs_);
  }
  ~Topology() override { fs::remove_all(sysfs_); }

  void add(int core, int package, int node, const std::string& siblings) {
    const fs::path folder = sysfs_ / ("cpu" + std::to_string(core));
    fs::create_directories(folder / "topology");
    std::ofstream(folder / "topology/physical_package_id") << package << '\n';
    std::ofstream(folder / "topology/thread_siblings_list") << siblings << '\n';
    fs::create_directory(folder / ("node" + std::to_string(node)));
    fs::create_directory(folder / "node_of_another_kind");
  }
  fs::path sysfs_;
};

TEST_F(Topology, ThreadsOfACoreStayTogether) {
  // As Intel numbers them: first one thread of each core, then the others.
  for (int core = 0; core < 8; ++core) {
    const int first = core % 4;
    add(core, 0, 0, std::to_string(first) + (core < 4 ? "," : "-") + std::to_string(first + 4));
  }
  EXPECT_EQ(in_order_of_topology(range(8), sysfs_), (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
  // Of the cores that may be used only.
  EXPECT_EQ(in_order_of_topology({1, 2, 5, 6}, sysfs_), (std::vector<int>{1, 5, 2, 6}));
}

TEST_F(Topology, MemoryNodesStayTogether) {
  // Two packages with two nodes each, numbered in turn.
  for (int core = 0; core < 8; ++core) add(core, core % 2, core % 4, std::to_string(core));
  EXPECT_EQ(in_order_of_topology(range(8), sysfs_), (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
}

TEST_F(Topology, WithoutAWordFromTheSystemTheNumbersCount) {
  EXPECT_EQ(in_order_of_topology({3, 5, 8}, sysfs_), (std::vector<int>{3, 5, 8}));
}

}  // namespace
}  // namespace meshtrain
