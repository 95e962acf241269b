#include "base/temporary_file.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class TemporaryFiles : public testing::Test {
 protected:
  TemporaryFiles() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_test_XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
  }
  ~TemporaryFiles() override { fs::remove_all(dir_); }

  std::string make(const std::string& name) const {
    std::ofstream(dir_ / name) << "x";
    return (dir_ / name).string();
  }
  bool exists(const std::string& name) const { return fs::exists(dir_ / name); }

  // How a forked process ends that does this and then gets the signal; 0: it did not end by one.
  static int end_by(int signal, const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      std::raise(signal);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  fs::path dir_;
};

TEST_F(TemporaryFiles, AreRemovedAndTheProcessEndsByTheSignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string gone = make("gone");
    const std::string stays = make("stays");
    EXPECT_EQ(end_by(signal,
                     [&] {
                       remove_temporary_files_at_signals();
                       TemporaryFile(stays).keep();
                       static const TemporaryFile file(gone);
                     }),
              signal);
    EXPECT_FALSE(exists("gone")) << signal;
    EXPECT_TRUE(exists("stays")) << signal;
  }
}

TEST_F(TemporaryFiles, AreThoseOfTheProcessThatMadeThem) {
  const TemporaryFile mine(make("mine"));
  EXPECT_EQ(end_by(SIGTERM, [] { remove_temporary_files_at_signals(); }), SIGTERM);
  EXPECT_TRUE(exists("mine"));
  remove_temporary_files();
  EXPECT_FALSE(exists("mine"));
}

TEST_F(TemporaryFiles, IgnoredSignalsStayIgnored) {
  make("file");
  EXPECT_EQ(end_by(SIGHUP,
                   [&] {
                     std::signal(SIGHUP, SIG_IGN);
                     remove_temporary_files_at_signals();
                     static const TemporaryFile file((dir_ / "file").string());
                   }),
            0);
  EXPECT_TRUE(exists("file"));
}

TEST_F(TemporaryFiles, EndWithTheirScopeUnlessTheyAreKept) {
  const std::string path = make("file");
  {
    TemporaryFile file(path);
    file.keep();
  }
  EXPECT_TRUE(exists("file"));
  { const TemporaryFile file(path); }
  EXPECT_FALSE(exists("file"));
}

// More than there is room for, and too long a path: no harm, and room is given back.
TEST_F(TemporaryFiles, ManyAtATime) {
  const std::string path = make("file");
  {
    std::list<TemporaryFile> names;
    for (int i = 0; i < 100; ++i) names.emplace_back((dir_ / std::to_string(i)).string());
    const TemporaryFile too_long(std::string(100000, 'x'));
  }
  const TemporaryFile file(path);
  remove_temporary_files();
  EXPECT_FALSE(exists("file"));
}

}  // namespace
}  // namespace meshtrain
