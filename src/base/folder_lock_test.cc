#include "base/folder_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

namespace meshtrain {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class FolderLocks : public testing::Test {
 protected:
  FolderLocks() {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshtrain_lock_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~FolderLocks() override { std::filesystem::remove_all(folder_); }

  // A process that has the lock until it is killed.
  pid_t holder() const {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const FolderLock lock(folder_, seconds(0));
      if (write(ready[1], lock.is_taken() ? "n" : "y", 1) == 1) pause();
      _exit(1);
    }
    char answer = ' ';
    EXPECT_EQ(read(ready[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    close(ready[0]);
    close(ready[1]);
    return child;
  }

  std::string folder_;
};

TEST_F(FolderLocks, OneHasItAtATime) {
  for (int i = 0; i < 2; ++i) {
    const FolderLock first(folder_, seconds(0));
    EXPECT_FALSE(first.is_taken());
    EXPECT_TRUE(FolderLock(folder_, milliseconds(30)).is_taken());
  }
}

TEST_F(FolderLocks, ItGoesWithAProcessThatIsKilled) {
  const pid_t child = holder();
  EXPECT_TRUE(FolderLock(folder_, seconds(0)).is_taken());
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(50));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  });
  EXPECT_FALSE(FolderLock(folder_, seconds(60)).is_taken()) << "it is waited for";
  killer.join();
}

// A folder that is renamed keeps its lock; the one that takes its place has none.
TEST_F(FolderLocks, ItIsOfTheFolderAndNotOfTheName) {
  const FolderLock lock(folder_, seconds(0));
  const std::string aside = folder_ + ".1";
  std::filesystem::rename(folder_, aside);
  std::filesystem::create_directory(folder_);
  EXPECT_TRUE(lock.is_of(aside));
  EXPECT_FALSE(lock.is_of(folder_));
  EXPECT_TRUE(FolderLock(aside, seconds(0)).is_taken());
  EXPECT_FALSE(FolderLock(folder_, seconds(0)).is_taken());
  std::filesystem::remove_all(aside);
}

TEST_F(FolderLocks, WhereThereIsNoFolderNothingIsHeld) {
  const FolderLock first(folder_ + "/none", seconds(60));
  const FolderLock second(folder_ + "/none", seconds(60));
  EXPECT_FALSE(first.is_taken() || second.is_taken());
}

}  // namespace
}  // namespace meshtrain
