#include "checkpoint/disk_speed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class DiskSpeedTest : public ::testing::Test {
 protected:
  DiskSpeedTest() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_test_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
  }
  ~DiskSpeedTest() override { fs::remove_all(dir_); }

  std::string dir_;
};

TEST_F(DiskSpeedTest, WritesAllAndLeavesNothing) {
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{3 << 20}, std::int64_t{(8 << 20) + 5}}) {
    const DiskSpeed speed = write_plain_file(dir_, bytes);
    EXPECT_EQ(speed.bytes, bytes);
    EXPECT_GT(speed.seconds, 0.0);
    EXPECT_EQ(speed.bytes_per_second(), static_cast<double>(bytes) / speed.seconds);
    EXPECT_TRUE(fs::is_empty(dir_));
  }
}

TEST_F(DiskSpeedTest, MeasuresTheNearestFolderThatExists) {
  const DiskSpeed speed = measure_disk(dir_ + "/runs/../runs/a/checkpoints");
  EXPECT_EQ(fs::path(speed.folder).lexically_normal(), fs::path(dir_));
  EXPECT_GE(speed.bytes, 1 << 20);
  EXPECT_LE(speed.bytes, 1 << 30);
  EXPECT_TRUE(fs::is_empty(dir_));
}

TEST_F(DiskSpeedTest, WhatCannotBeWrittenIsNamed) {
  try {
    write_plain_file("/proc", 10);
    FAIL();
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("/proc"), std::string::npos) << error.what();
  }
}

TEST(Incompressible, RepeatsNothing) {
  const std::vector<std::byte> bytes = incompressible(80'003);
  ASSERT_EQ(bytes.size(), 80'003U);
  std::set<std::uint64_t> words;
  for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    words.insert(word);
  }
  EXPECT_EQ(words.size(), 10'000U);
}

TEST(MemoryCopy, HasASpeed) {
  EXPECT_GT(measure_memory_copy(), 1e6);
}

}  // namespace
}  // namespace meshtrain
