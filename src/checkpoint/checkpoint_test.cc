#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "checkpoint/checkpoint_testing.h"

namespace meshtrain {
namespace {

void overwrite_byte(const std::string& file, std::int64_t position) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(position);
  const char old = static_cast<char>(stream.get());
  stream.seekp(position);
  stream.put(static_cast<char>(old ^ 0x10));
}

TEST_F(CheckpointTest, WritesAndReadsBack) {
  EXPECT_EQ(newest_checkpoint(dir_), std::nullopt);  // not even a directory
  write_checkpoint(dir_, TinyRun(100).contents);
  EXPECT_EQ(load_newest(), 100);
  EXPECT_EQ(path(100), dir_ + "/step-00000100");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path(100))) files.push_back(entry.path().filename().string());
  std::sort(files.begin(), files.end());
  EXPECT_EQ(files, (std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"}));
}

TEST_F(CheckpointTest, NamesOfSteps) {
  EXPECT_EQ(checkpoint_name(0), "step-00000000");
  EXPECT_EQ(checkpoint_name(123456789012), "step-123456789012");
  for (const char* stray :
       {"step-1", "step-00000005x", "step--0000005", "step-", "other", "step-00000009.superseded"}) {
    fs::create_directories(dir_ + "/" + stray);
    std::ofstream(dir_ + "/" + stray + "/manifest.json") << "{}";
  }
  EXPECT_EQ(newest_checkpoint(dir_), std::nullopt);
  write_checkpoint(dir_, TinyRun(123456789012).contents);
  write_checkpoint(dir_, TinyRun(7).contents);
  EXPECT_EQ(load_newest(), 123456789012);  // by number, not by name
}

TEST_F(CheckpointTest, ADirectoryWithoutManifestIsInvisible) {
  write_checkpoint(dir_, TinyRun(1).contents);
  write_checkpoint(dir_, TinyRun(2).contents);
  fs::remove(path(2) + "/manifest.json");
  EXPECT_EQ(load_newest(), 1);
  expect_contains(message_of<UserError>([&] { Checkpoint{path(2)}; }), {path(2), "manifest.json"});
  // What is left of it is cleared when its step comes again.
  std::ofstream(path(2) + "/model.safetensors.old") << "stray";
  write_checkpoint(dir_, TinyRun(2).contents);
  EXPECT_EQ(load_newest(), 2);
  EXPECT_FALSE(fs::exists(path(2) + "/model.safetensors.old"));
}

TEST_F(CheckpointTest, ReplacesACommittedOneOfTheSameStep) {
  write_checkpoint(dir_, TinyRun(1, 8).contents);
  write_checkpoint(dir_, TinyRun(1, 64).contents);
  EXPECT_EQ(load_newest(64), 1);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (std::int64_t step = 1; step <= 5; ++step) write_checkpoint(dir_, TinyRun(step).contents);
  fs::create_directories(path(3) + "9");   // a later attempt: left alone
  fs::remove(path(2) + "/manifest.json");  // an earlier one that was never committed
  prune_checkpoints(dir_, 0);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{1, 3, 4, 5}));
  EXPECT_FALSE(fs::exists(path(2)));
  prune_checkpoints(dir_, 2);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{4, 5}));
  prune_checkpoints(dir_, 1);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{5}));
  EXPECT_TRUE(fs::exists(path(3) + "9"));
}

TEST_F(CheckpointTest, SetsAsideWhatIsLaterThanTheResumedStep) {
  for (const std::int64_t step : {10, 20, 30}) write_checkpoint(dir_, TinyRun(step).contents);
  EXPECT_EQ(set_aside_checkpoints_after(dir_, 10).size(), 2U);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{10}));
  write_checkpoint(dir_, TinyRun(20).contents);
  EXPECT_EQ(set_aside_checkpoints_after(dir_, 10), (std::vector<std::string>{path(20) + ".superseded-2"}));
  EXPECT_EQ(Checkpoint(path(20) + ".superseded").step(), 20);  // still there to be named
}

TEST_F(CheckpointTest, ResolvesWhatTheUserMeans) {
  const std::string checkpoints = dir_ + "/checkpoints";
  write_checkpoint(checkpoints, TinyRun(1).contents);
  write_checkpoint(checkpoints, TinyRun(2).contents);
  const std::string second = checkpoints + "/" + checkpoint_name(2);
  EXPECT_EQ(resolve_checkpoint(dir_), second);
  EXPECT_EQ(resolve_checkpoint(checkpoints), second);
  EXPECT_EQ(resolve_checkpoint(second), second);
  fs::remove(second + "/manifest.json");
  expect_contains(message_of<UserError>([&] { resolve_checkpoint(second); }), {second, "manifest.json"});
  expect_contains(message_of<UserError>([&] { resolve_checkpoint(dir_ + "/x"); }), {dir_ + "/x", "no such"});
}

TEST_F(CheckpointTest, DamageNamesTheFileAndTheNewestWholeOne) {
  for (const std::int64_t step : {1, 2, 3}) write_checkpoint(dir_, TinyRun(step).contents);
  const auto message = [&] { return message_of<UserError>([&] { Checkpoint{path(3)}; }); };
  const auto again = [&] { write_checkpoint(dir_, TinyRun(3).contents); };

  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string file = path(3) + "/" + name;
    overwrite_byte(file, static_cast<std::int64_t>(fs::file_size(file)) - 5);
    expect_contains(message(), {file, "damaged", "hash", path(2)});
    EXPECT_NO_THROW(Checkpoint(path(3), Verify::kSizes));
    again();
    fs::resize_file(file, fs::file_size(file) - 4);
    expect_contains(message(), {file, "damaged", "bytes", path(2)});
    EXPECT_THROW(Checkpoint(path(3), Verify::kSizes), UserError);
    again();
    fs::remove(file);
    expect_contains(message(), {file, "No such file", path(2)});
    again();
  }
  // Every byte of the manifest counts.
  const std::string manifest = path(3) + "/manifest.json";
  const auto size = static_cast<std::int64_t>(fs::file_size(manifest));
  for (std::int64_t i = 0; i < size; i += 3) {
    const auto space = [&] {
      std::ifstream stream(manifest);
      stream.seekg(i);
      return std::isspace(stream.get()) != 0;
    };
    if (space()) continue;  // a blank may become a character that JSON skips as well
    overwrite_byte(manifest, i);
    expect_contains(message(), {manifest, path(2)});
    overwrite_byte(manifest, i);
  }
  std::ofstream(manifest, std::ios::trunc).close();
  expect_contains(message(), {manifest, "damaged", path(2)});
  // Nothing falls back by itself.
  EXPECT_EQ(newest_checkpoint(dir_)->step, 3);

  fs::resize_file(path(2) + "/model.safetensors", 10);
  expect_contains(message(), {path(1)});
  fs::remove_all(path(1));
  expect_contains(message(), {"No earlier checkpoint"});
}

TEST_F(CheckpointTest, AnotherModelIsRefused) {
  write_checkpoint(dir_, TinyRun(1).contents);
  const Checkpoint checkpoint(path(1));
  std::vector<float> memory(1000, 5.0F);
  const auto message = [&](const std::vector<TensorDestination>& tensors) {
    return message_of<UserError>([&] { read_tensors(checkpoint.model(), tensors); });
  };
  const auto whole = [&](const char* name, const Shape& shape, DType dtype = DType::kF32) {
    return TensorDestination{name, dtype, shape, {{0, shape.numel(), memory.data()}}};
  };
  const TensorDestination weight = whole("weight", {64, 3});
  const TensorDestination bias = whole("bias", {3});
  expect_contains(message({weight, whole("bias", {4})}),
                  {"model.safetensors", "\"bias\" as [3]", "should be [4]", "another model"});
  expect_contains(message({weight, whole("bias", {3, 1})}), {"[3]", "[3, 1]"});
  expect_contains(message({weight, whole("bias", {3}, DType::kBF16)}), {"\"bias\" in F32", "BF16"});
  expect_contains(message({weight, bias, whole("gain", {3})}), {"no tensor \"gain\" [3]"});
  expect_contains(message({weight}), {"\"bias\" [3] that has no place"});
  EXPECT_EQ(memory, std::vector<float>(1000, 5.0F));  // nothing was copied
}

TEST_F(CheckpointTest, PiecesOfATensorGoToTheirPlaces) {
  const TinyRun run(1);
  write_checkpoint(dir_, run.contents);
  const Checkpoint checkpoint(path(1));
  // Columns 1 and 2 of rows 0, 1 and 63; nothing of the bias.
  std::vector<float> columns(7, -1.0F);
  TensorDestination weight = {"weight", DType::kF32, {64, 3}, {}};
  for (const std::int64_t row : {0, 1, 63}) {
    const auto place = static_cast<std::ptrdiff_t>(2 * weight.pieces.size());
    weight.pieces.push_back({.first = 3 * row + 1, .count = 2, .data = columns.data() + place});
  }
  const TensorDestination bias = {"bias", DType::kF32, {3}, {}};
  read_tensors(checkpoint.model(), std::vector<TensorDestination>{weight, bias});
  std::vector<float> expected;
  for (const std::size_t element : {1, 2, 4, 5, 190, 191}) expected.push_back(run.weight[element]);
  expected.push_back(-1.0F);  // nothing is written beyond the pieces
  EXPECT_EQ(columns, expected);
  weight.pieces.back().count = 3;
  EXPECT_THROW(read_tensors(checkpoint.model(), std::vector<TensorDestination>{weight, bias}),
               std::logic_error);
}

TEST_F(CheckpointTest, AManifestCannotLeadElsewhere) {
  write_checkpoint(dir_, TinyRun(1).contents);
  Manifest manifest = read_manifest(path(1) + "/manifest.json");
  manifest.files["../x"] = manifest.files["model.safetensors"];
  std::ofstream(path(1) + "/manifest.json") << to_text(manifest);
  expect_contains(message_of<UserError>([&] { Checkpoint{path(1)}; }), {"../x"});
}

}  // namespace
}  // namespace meshtrain
