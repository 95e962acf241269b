#include "telemetry/trace_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_trace_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
  }
  ~TraceFileTest() override { fs::remove_all(dir_); }

  std::string path() const { return (dir_ / "trace.json").string(); }
  nlohmann::json read() const {
    std::ifstream file(path());
    return nlohmann::json::parse(file);
  }

  fs::path dir_;
};

TEST_F(TraceFileTest, HasTheFormOfTheFormat) {
  TraceFile file(path());
  TraceText text([&](std::string_view chunk) { file.write(chunk); });
  text.rank(3, "rank 3 (dp 1)", "clock within 2 µs");
  text.track(3, 1, "dp");
  text.event(3, 1, TraceKind::kCommunication, "all-reduce dp 6.3 MB", 1'234'567, 2'000'007);
  text.event(3, 1, TraceKind::kWait, "wait", 0, 0);
  text.flush();
  EXPECT_FALSE(fs::exists(path()));
  file.close();
  EXPECT_FALSE(fs::exists(path() + ".tmp"));
  EXPECT_EQ(read(), nlohmann::json::parse(R"json({
    "displayTimeUnit": "ms",
    "traceEvents": [
      {"ph": "M", "pid": 3, "tid": 400, "name": "process_name", "args": {"name": "rank 3 (dp 1)"
}
},
      {"ph": "M", "pid": 3, "tid": 400, "name": "process_sort_index", "args": {"sort_index": 3}},
      {"ph": "M", "pid": 3, "tid": 400, "name": "process_labels", "args": {"labels": "clock within 2 µs"}},
      {"ph": "M", "pid": 3, "tid": 401, "name": "thread_name", "args": {"name": "dp"}},
      {"ph": "M", "pid": 3, "tid": 401, "name": "thread_sort_index", "args": {"sort_index": 1}},
      {"ph": "X", "pid": 3, "tid": 401, "ts": 1234.567, "dur": 765.440, "cat": "communication",
       "name": "all-reduce dp 6.3 MB"},
      {"ph": "X", "pid": 3, "tid": 401, "ts": 0.0, "dur": 0.0, "cat": "wait", "name": "wait"}
    ]
})json"));
}

TEST_F(TraceFileTest, NamesMayHoldAnything) {
  const std::vector<std::string> names = {
      "\"quoted\" \\ back", "line\nbreak\ttab", std::string("nul\0in", 6), "grün 模型", "\x7f", ""};
  TraceFile file(path());
  TraceText text([&](std::string_view chunk) { file.write(chunk); });
  for (const std::string& name : names) text.event(0, 0, TraceKind::kCompute, name, 0, 1);
  text.event(0, 0, TraceKind::kCompute, "broken \xff UTF-8", 0, 1);
  text.rank(0, "\"", "\n");
  text.flush();
  file.close();
  const nlohmann::json events = read()["traceEvents"];
  ASSERT_EQ(events.size(), names.size() + 4);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(events[i]["name"], names[i]);
  EXPECT_EQ(events[names.size()]["name"], "broken \xef\xbf\xbd UTF-8");
  EXPECT_EQ(events.back()["args"]["labels"], "\n");
}

// Each chunk is whole events: ranks' chunks may follow each other in any order.
TEST_F(TraceFileTest, ChunksArePartsOfAFile) {
  std::vector<std::string> chunks;
  TraceText text([&](std::string_view chunk) { chunks.emplace_back(chunk); });
  constexpr int kEvents = 30'000;
  for (int i = 0; i < kEvents; ++i) text.event(1, 0, TraceKind::kCompute, std::to_string(i), i, i + 1);
  text.flush();
  text.flush();  // nothing is left
  ASSERT_GT(chunks.size(), 2U);
  for (const std::string& chunk : chunks) EXPECT_LT(chunk.size(), TraceText::kChunkBytes + 1000);
  TraceFile file(path());
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) file.write(*chunk);
  file.close();
  const nlohmann::json events = read()["traceEvents"];
  ASSERT_EQ(events.size(), kEvents);
  std::set<int> names;
  for (const nlohmann::json& event : events) names.insert(std::stoi(event["name"].get<std::string>()));
  EXPECT_EQ(names.size(), kEvents);
  EXPECT_EQ(*names.rbegin(), kEvents - 1);
  EXPECT_NE(events[0]["name"], "0");
}

TEST_F(TraceFileTest, MayBeEmpty) {
  TraceFile(path()).close();
  EXPECT_EQ(read()["traceEvents"], nlohmann::json::array());
}

TEST_F(TraceFileTest, RefusesTimesThatGoBack) {
  TraceText text([](std::string_view) {});
  EXPECT_THROW(text.event(0, 0, TraceKind::kCompute, "x", -1, 0), std::logic_error);
  EXPECT_THROW(text.event(0, 0, TraceKind::kCompute, "x", 2, 1), std::logic_error);
  EXPECT_THROW(text.track(0, 100, "x"), std::logic_error);
}

TEST_F(TraceFileTest, SaysWhichFileCannotBeWritten) {
  const std::string nowhere = (dir_ / "no" / "trace.json").string();
  try {
    TraceFile file(nowhere);
    FAIL();
  } catch (const RunError& error) {
    EXPECT_EQ(std::string(error.what()),
              "the trace " + nowhere + " cannot be written: No such file or directory.");
  }
  fs::create_symlink("/dev/full", path() + ".tmp");
  EXPECT_THROW(
      {
        TraceFile file(path());
        file.write(std::string(1 << 20, ' '));
        file.close();
      },
      RunError);
  EXPECT_FALSE(fs::exists(path()));
}

}  // namespace
}  // namespace meshtrain
