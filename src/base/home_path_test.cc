#include "base/home_path.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/error.h"

namespace meshtrain {
namespace {

// HOME as given for a test; nullopt: not set.
class Home {
 public:
  explicit Home(const std::optional<std::string>& value) {
    if (const char* before = std::getenv("HOME")) before_ = before;
    set(value);
  }
  ~Home() { set(before_); }
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;

 private:
  static void set(const std::optional<std::string>& value) {
    value ? setenv("HOME", value->c_str(), 1) : unsetenv("HOME");
  }
  std::optional<std::string> before_;
};

TEST(HomePath, IsThatOfTheVariable) {
  const Home home("/some/home");
  EXPECT_EQ(expand_home("~"), "/some/home");
  EXPECT_EQ(expand_home("~/"), "/some/home/");
  EXPECT_EQ(expand_home("~/a b/c.txt"), "/some/home/a b/c.txt");
  for (const char* path : {"", "a", "/a", "./~", "./~/a", "a/~/b", "a~", "data/~x"}) {
    EXPECT_EQ(expand_home(path), path);
  }
}

TEST(HomePath, SlashesDoNotDouble) {
  {
    const Home home("/h/");
    EXPECT_EQ(expand_home("~/x"), "/h/x");
  }
  const Home root("/");
  EXPECT_EQ(expand_home("~/x"), "/x");
  EXPECT_EQ(expand_home("~"), "/");
}

TEST(HomePath, WithoutTheVariableTheSystemKnows) {
  const passwd* const entry = getpwuid(getuid());
  if (entry == nullptr) GTEST_SKIP() << "this user has no entry";
  const std::string expected = entry->pw_dir;
  for (const std::optional<std::string>& value :
       {std::optional<std::string>(), std::optional<std::string>("")}) {
    const Home home(value);
    EXPECT_EQ(expand_home("~"), expected);
  }
}

TEST(HomePath, OfAnotherUser) {
  const passwd* const root = getpwnam("root");
  if (root == nullptr) GTEST_SKIP() << "no user root";
  const std::string home = root->pw_dir;
  const Home other("/some/home");
  EXPECT_EQ(expand_home("~root"), home);
  EXPECT_EQ(expand_home("~root/x"), home + "/x");
}

TEST(HomePath, AUserThatIsNotThere) {
  try {
    expand_home("~no-such-user-here/x");
    ADD_FAILURE() << "a home for nobody";
  } catch (const UserError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("\"no-such-user-here\""), std::string::npos) << what;
    EXPECT_NE(what.find("./~no-such-user-here/x"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace meshtrain
