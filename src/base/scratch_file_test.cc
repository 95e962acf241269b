#include "base/scratch_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

TEST(ScratchFile, ReadsBackWhatWasAppended) {
  ScratchFile file;
  std::vector<int> numbers = {1, 2, 3, 4, 5};
  file.append(std::as_bytes(std::span(numbers)));
  file.append(std::as_bytes(std::span(numbers).first(2)));
  std::vector<int> back(3);
  file.read(4 * sizeof(int), std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, (std::vector<int>{5, 1, 2}));
  EXPECT_THROW(file.read(6 * sizeof(int), std::as_writable_bytes(std::span(back))), RunError);
}

TEST(ScratchFile, LeavesNoNameBehind) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "meshtrain_scratch_test";
  std::filesystem::create_directory(folder);
  const char* before = std::getenv("TMPDIR");
  const std::string saved = before != nullptr ? before : "";
  setenv("TMPDIR", folder.c_str(), 1);
  {
    const ScratchFile file;
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  std::filesystem::remove(folder);
  EXPECT_THROW(ScratchFile(), std::exception);  // the folder is gone
  before != nullptr ? setenv("TMPDIR", saved.c_str(), 1) : unsetenv("TMPDIR");
}

TEST(ScratchFile, AFullDiskIsAnError) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit limited = before;
  limited.rlim_cur = 1000;
  setrlimit(RLIMIT_FSIZE, &limited);
  ScratchFile file;
  const std::vector<std::byte> bytes(2000);
  EXPECT_THROW(file.append(bytes), RunError);
  setrlimit(RLIMIT_FSIZE, &before);
}

}  // namespace
}  // namespace meshtrain
