#include "base/pause_point.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class PausePointTest : public testing::Test {
 protected:
  PausePointTest() { fs::remove(file_); }
  ~PausePointTest() override {
    fs::remove(file_);
    unsetenv("MESHTRAIN_PAUSE_AT");
  }

  static std::string refusal(const std::string& value) {
    try {
      PausePoint point(value);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  // A colon in it is part of the name.
  const std::string file_ = testing::TempDir() + "pause_point:" + std::to_string(getpid());
};

TEST_F(PausePointTest, WaitsThereOnceUntilTheFileIsGone) {
  PausePoint point("before sync:12:3:" + file_);
  point.reach("sync", 12, 3);
  point.reach("before sync", 11, 3);
  point.reach("before sync", 12, 2);
  EXPECT_FALSE(fs::exists(file_));

  std::future<void> waits = std::async(std::launch::async, [&] { point.reach("before sync", 12, 3); });
  std::string line;
  while (!std::getline(std::ifstream(file_), line) || line.empty())
    ASSERT_NE(waits.wait_for(milliseconds(1)), std::future_status::ready);
  EXPECT_EQ(line, std::to_string(getpid()));
  EXPECT_EQ(waits.wait_for(milliseconds(20)), std::future_status::timeout);
  fs::remove(file_);
  waits.get();

  point.reach("before sync", 12, 3);
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(PausePointTest, PassesByWhereTheFileExists) {
  PausePoint point("copy:1:0:" + file_);
  std::ofstream(file_) << "7\n";
  point.reach("copy", 1, 0);
  EXPECT_TRUE(fs::exists(file_));
}

TEST_F(PausePointTest, AFileThatCannotBeIsAFault) {
  PausePoint point("copy:1:0:/nowhere/at/all");
  EXPECT_THROW(point.reach("copy", 1, 0), RunError);
}

TEST_F(PausePointTest, ComesFromTheEnvironment) {
  EXPECT_EQ(PausePoint::from_environment(), nullptr);
  setenv("MESHTRAIN_PAUSE_AT", "", 1);
  EXPECT_EQ(PausePoint::from_environment(), nullptr);
  setenv("MESHTRAIN_PAUSE_AT", "micro-step:1:0:x", 1);
  EXPECT_NE(PausePoint::from_environment(), nullptr);
  setenv("MESHTRAIN_PAUSE_AT", "here", 1);
  EXPECT_THROW(PausePoint::from_environment(), UserError);
}

TEST_F(PausePointTest, RefusesWhatIsMalformed) {
  for (const std::string value :
       {"write", "write:3:0", "write:3:0:", "write:0:0:f", "write:-3:0:f", "write:3:-1:f", "write:3x:0:f",
        "write:3::f", "write:99999999999999999999:0:f", ":::"}) {
    const std::string message = refusal(value);
    EXPECT_NE(message.find("MESHTRAIN_PAUSE_AT is \"" + value + "\""), std::string::npos) << message;
    EXPECT_NE(message.find("PHASE:STEP:RANK:FILE"), std::string::npos) << message;
  }
  const std::string message = refusal("writing:3:0:f");
  EXPECT_NE(message.find("no phase \"writing\""), std::string::npos) << message;
  EXPECT_NE(message.find("before rename"), std::string::npos) << message;
}

}  // namespace
}  // namespace meshtrain
