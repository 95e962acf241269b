#include "telemetry/peak_cache.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class PeakCacheTest : public testing::Test {
 protected:
  PeakCacheTest() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_peaks_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
  }
  ~PeakCacheTest() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name) << text;
    return (dir_ / name).string();
  }
  std::string in_new_folder() const { return (dir_ / "a" / "b" / "peaks.json").string(); }

  fs::path dir_;
};

const PeakKey kKey = {.processor = "X 1", .dtype = DType::kBF16, .threads = 8};

TEST_F(PeakCacheTest, KeepsTheFastestOfEachKey) {
  const PeakCache cache(in_new_folder());
  EXPECT_FALSE(cache.find(kKey));
  ASSERT_TRUE(cache.keep(kKey, {.tflops = 1.5, .undisturbed = true}));
  ASSERT_TRUE(cache.keep(kKey, {.tflops = 1.0, .undisturbed = false}));
  PeakKey fp32 = kKey;
  fp32.dtype = DType::kF32;
  PeakKey fewer = kKey;
  fewer.threads = 4;
  PeakKey other = kKey;
  other.processor = "X 2";
  EXPECT_FALSE(cache.find(fp32));
  EXPECT_FALSE(cache.find(fewer));
  EXPECT_FALSE(cache.find(other));
  ASSERT_TRUE(cache.keep(fp32, {.tflops = 0.7, .undisturbed = false}));
  // As another process finds it.
  const PeakCache again(in_new_folder());
  ASSERT_TRUE(again.find(kKey));
  EXPECT_EQ(again.find(kKey)->tflops, 1.5);
  EXPECT_TRUE(again.find(kKey)->undisturbed);
  EXPECT_EQ(again.find(fp32)->tflops, 0.7);
  EXPECT_FALSE(again.find(fp32)->undisturbed);
  // Nothing else stays in the folder.
  EXPECT_EQ(
      std::distance(fs::directory_iterator(fs::path(in_new_folder()).parent_path()), fs::directory_iterator()),
      1);
}

TEST_F(PeakCacheTest, AnotherVersionsPeaksDoNotCount) {
  const PeakCache cache(in_new_folder());
  ASSERT_TRUE(cache.keep(kKey, {.tflops = 1.5, .undisturbed = true}));
  std::ifstream file(cache.path());
  nlohmann::json json = nlohmann::json::parse(file);
  json["peaks"][0]["version"] = "0.0.0";
  std::ofstream(cache.path()) << json;
  EXPECT_FALSE(cache.find(kKey));
}

TEST_F(PeakCacheTest, WhatIsNotOursHoldsNothingAndIsReplaced) {
  for (const char* text :
       {"", "{", "[]", "{\"peaks\": 3}", "{\"peaks\": [3, null, {}, {\"processor\": 1}]}", "null"}) {
    const PeakCache cache(write("peaks.json", text));
    EXPECT_FALSE(cache.find(kKey)) << text;
    ASSERT_TRUE(cache.keep(kKey, {.tflops = 2.0, .undisturbed = true})) << text;
    EXPECT_EQ(cache.find(kKey)->tflops, 2.0) << text;
  }
  for (const char* value : {"0", "-1", "1e999", "\"fast\"", "null"}) {
    const PeakCache cache(in_new_folder());
    ASSERT_TRUE(cache.keep(kKey, {.tflops = 2.0, .undisturbed = true}));
    std::ifstream file(cache.path());
    std::string text(std::istreambuf_iterator<char>(file), {});
    text.replace(text.find("2.0"), 3, value);
    std::ofstream(cache.path()) << text;
    EXPECT_FALSE(cache.find(kKey)) << value;
  }
}

TEST_F(PeakCacheTest, WhereNothingCanBeWrittenNothingIsKept) {
  EXPECT_FALSE(PeakCache("").keep(kKey, {.tflops = 1.0, .undisturbed = true}));
  EXPECT_FALSE(PeakCache("").find(kKey));
  const PeakCache below_a_file(write("file", "x") + "/peaks.json");
  EXPECT_FALSE(below_a_file.keep(kKey, {.tflops = 1.0, .undisturbed = true}));
  EXPECT_FALSE(below_a_file.find(kKey));
  const PeakCache folder(dir_.string());
  EXPECT_FALSE(folder.keep(kKey, {.tflops = 1.0, .undisturbed = true}));
  EXPECT_FALSE(folder.find(kKey));
}

TEST_F(PeakCacheTest, LiesInTheUsersCacheFolder) {
  const auto path_with = [](const char* cache, const char* home) {
    cache == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", cache, 1);
    home == nullptr ? unsetenv("HOME") : setenv("HOME", home, 1);
    return PeakCache::default_path();
  };
  EXPECT_EQ(path_with("/c", "/h"), "/c/meshtrain/peaks.json");
  EXPECT_EQ(path_with(nullptr, "/h"), "/h/.cache/meshtrain/peaks.json");
  EXPECT_EQ(path_with("", "/h"), "/h/.cache/meshtrain/peaks.json");
  EXPECT_EQ(path_with("relative", "/h"), "/h/.cache/meshtrain/peaks.json");
  EXPECT_EQ(path_with(nullptr, nullptr), "");
}

TEST_F(PeakCacheTest, AProcessorIsNamedWithItsInstructionSets) {
  const std::string text =
      "processor\t: 0\nvendor_id\t: V\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon: 8480\nstepping\t: "
      "8\n"
      "flags\t\t: fpu avx512f amx_bf16\n\nprocessor\t: 1\nmodel name\t: other\n";
  const std::string name = processor_name(write("with", text));
  EXPECT_TRUE(name.starts_with("Xeon: 8480, family 6 model 143 stepping 8, flags ")) << name;
  std::string without = text;
  without.erase(without.find(" amx_bf16"), 9);
  EXPECT_NE(processor_name(write("without", without)), name);
  EXPECT_EQ(processor_name((dir_ / "missing").string()), "unknown");
  EXPECT_EQ(processor_name(write("empty", "")), "unknown");
}

}  // namespace
}  // namespace meshtrain
