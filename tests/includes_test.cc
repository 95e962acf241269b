// Includes point one way: a folder may include itself and the folders below it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

// Every folder under src/ with the layer that it lies on; folders of one layer do not include each other,
// unless listed in kBeside.
const std::map<std::string, int> kLayers = {
    {"base", 0},      {"device", 1},   {"ops", 2},      {"comm", 2},   {"params", 3}, {"shard", 3},
    {"model", 4},     {"gradsync", 5}, {"pipeline", 5}, {"optim", 5},  {"data", 5},   {"checkpoint", 5},
    {"telemetry", 5}, {"train", 6},    {"plan", 7},     {"launch", 7}, {"cli", 8},
};
const std::set<std::pair<std::string, std::string>> kBeside = {};

TEST(Includes, PointOneWay) {
  const fs::path source = fs::path(MESHTRAIN_SOURCE_DIR) / "src";
  const std::regex include(R"(^\s*#include\s+"(\w+)/[^"]+\")");
  int seen = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(source)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cc") continue;
    const std::string from = fs::relative(entry.path(), source).begin()->string();
    ASSERT_TRUE(kLayers.contains(from)) << from << " is a folder without a layer";
    std::ifstream file(entry.path());
    std::string line;
    while (std::getline(file, line)) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      const std::string to = match[1];
      ++seen;
      ASSERT_TRUE(kLayers.contains(to)) << entry.path() << " includes an unknown folder: " << line;
      EXPECT_TRUE(from == to || kLayers.at(to) < kLayers.at(from) || kBeside.contains({from, to}))
          << entry.path() << " includes upwards: " << line;
    }
  }
  EXPECT_GT(seen, 100);
}

TEST(Includes, FilesStayReadable) {
  // Mostly under 300 lines; none far above but tables that a script makes.
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(fs::path(MESHTRAIN_SOURCE_DIR) / "src")) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cc") continue;
    std::ifstream file(entry.path());
    std::string first;
    std::getline(file, first);
    if (first.starts_with("// Made by tests/reference/")) continue;
    const auto lines = 1 + std::count(std::istreambuf_iterator<char>(file), {}, '\n');
    EXPECT_LE(lines, 450) << entry.path();
  }
}

}  // namespace
