#include "base/system_failure.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <system_error>

#include "base/error.h"

namespace meshtrain {
namespace {

TEST(SystemFailure, SaysWhatTheSystemRefused) {
  try {
    std::filesystem::create_directory("/proc/version/folder");
    FAIL() << "created";
  } catch (const std::exception& error) {
    EXPECT_EQ(system_failure(error), "/proc/version/folder: Not a directory");
  }
  EXPECT_NE(system_failure(std::bad_alloc()).find("no more memory"), std::string::npos);
  EXPECT_NE(system_failure(std::system_error(EAGAIN, std::generic_category(), "thread")).find("thread"),
            std::string::npos);
  EXPECT_EQ(system_failure(std::logic_error("index 7")), "");
  EXPECT_EQ(system_failure(RunError("a fault")), "");
}

}  // namespace
}  // namespace meshtrain
