#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
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
  write(TinyRun(100));
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
  write(TinyRun(123456789012));
  write(TinyRun(7));
  EXPECT_EQ(load_newest(), 123456789012);  // by number, not by name
}

TEST_F(CheckpointTest, ADirectoryWithoutManifestIsInvisible) {
  write(TinyRun(1));
  write(TinyRun(2));
  fs::remove(path(2) + "/manifest.json");
  EXPECT_EQ(load_newest(), 1);
  expect_contains(message_of<UserError>([&] { Checkpoint{path(2)}; }), {path(2), "manifest.json"});
  // What is left of it is cleared when its step comes again.
  std::ofstream(path(2) + "/model.safetensors.old") << "stray";
  write(TinyRun(2));
  EXPECT_EQ(load_newest(), 2);
  EXPECT_FALSE(fs::exists(path(2) + "/model.safetensors.old"));
}

TEST_F(CheckpointTest, ReplacesACommittedOneOfTheSameStep) {
  write(TinyRun(1, 8));
  write(TinyRun(1, 64));
  EXPECT_EQ(load_newest(64), 1);
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  for (std::int64_t step = 1; step <= 5; ++step) write(TinyRun(step));
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

// A file that nobody may remove, not even root; removable again at the end.
class Immutable {
 public:
  explicit Immutable(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    works_ = set(true);
  }
  ~Immutable() {
    if (works_) set(false);
    close(descriptor_);
  }
  Immutable(const Immutable&) = delete;
  Immutable& operator=(const Immutable&) = delete;
  bool works() const { return works_; }

 private:
  bool set(bool on) const {
    int flags = 0;
    if (ioctl(descriptor_, FS_IOC_GETFLAGS, &flags) != 0) return false;
    flags = on ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
    return ioctl(descriptor_, FS_IOC_SETFLAGS, &flags) == 0;
  }

  int descriptor_;
  bool works_ = false;
};

TEST_F(CheckpointTest, WhatCannotBeRemovedIsReportedAndInNobodysWay) {
  for (const std::string file : {"/model.safetensors", "/manifest.json"}) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    CheckpointWriter writer(writer_options(2), nullptr);
    writer.write(TinyRun(1).contents);
    writer.write(TinyRun(2).contents);
    const Immutable immutable(path(1) + file);
    if (!immutable.works()) GTEST_SKIP() << "no immutable files here";
    writer.write(TinyRun(3).contents);
    const std::vector<std::string> unremoved = writer.take_unremoved();
    ASSERT_EQ(unremoved.size(), 1U) << file;
    EXPECT_TRUE(unremoved[0].starts_with(path(1) + ": ")) << unremoved[0];
    // It is said once, and what is left is whole or does not count.
    writer.write(TinyRun(4).contents);
    EXPECT_TRUE(writer.take_unremoved().empty());
    EXPECT_EQ(load_newest(), 4);
    EXPECT_FALSE(fs::exists(path(2)));
    if (fs::exists(path(1) + "/manifest.json")) Checkpoint(path(1)).verify_files();
    EXPECT_EQ(prune_checkpoints(dir_, 2).size(), 1U);
    // Its place is free for another.
    write(TinyRun(1));
    EXPECT_EQ(Checkpoint(path(1)).step(), 1);
    EXPECT_TRUE(fs::exists(path(1) + ".superseded"));
  }
}

TEST_F(CheckpointTest, WhatIsKeptElsewhereBehindALinkStaysThere) {
  for (std::int64_t step = 1; step <= 3; ++step) write(TinyRun(step));
  for (const std::int64_t step : {1, 3}) {
    const std::string elsewhere = dir_ + "/kept-" + std::to_string(step);
    fs::rename(path(step), elsewhere);
    fs::create_directory_symlink(elsewhere, path(step));
  }
  EXPECT_EQ(load_newest(), 3);
  prune_checkpoints(dir_, 2);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{2, 3}));
  write(TinyRun(3));  // takes the place of the link
  EXPECT_FALSE(fs::is_symlink(path(3)));
  EXPECT_EQ(Checkpoint(dir_ + "/kept-1").step(), 1);
  EXPECT_EQ(Checkpoint(dir_ + "/kept-3").step(), 3);
}

TEST_F(CheckpointTest, SetsAsideWhatIsLaterThanTheResumedStep) {
  for (const std::int64_t step : {10, 20, 30}) write(TinyRun(step));
  EXPECT_EQ(set_aside_checkpoints_after(dir_, 10).size(), 2U);
  EXPECT_EQ(committed(), (std::vector<std::int64_t>{10}));
  write(TinyRun(20));
  EXPECT_EQ(set_aside_checkpoints_after(dir_, 10), (std::vector<std::string>{path(20) + ".superseded-2"}));
  EXPECT_EQ(Checkpoint(path(20) + ".superseded").step(), 20);  // still there to be named
}

TEST_F(CheckpointTest, ResolvesWhatTheUserMeans) {
  const std::string checkpoints = dir_ + "/checkpoints";
  for (const std::int64_t step : {1, 2}) {
    write_checkpoint(checkpoints + "/" + checkpoint_name(step), TinyRun(step).contents);
  }
  const std::string second = checkpoints + "/" + checkpoint_name(2);
  EXPECT_EQ(resolve_checkpoint(dir_), second);
  EXPECT_EQ(resolve_checkpoint(checkpoints), second);
  EXPECT_EQ(resolve_checkpoint(second), second);
  fs::remove(second + "/manifest.json");
  expect_contains(message_of<UserError>([&] { resolve_checkpoint(second); }), {second, "manifest.json"});
  expect_contains(message_of<UserError>([&] { resolve_checkpoint(dir_ + "/x"); }), {dir_ + "/x", "no such"});
}

TEST_F(CheckpointTest, DamageNamesTheFileAndTheNewestWholeOne) {
  for (const std::int64_t step : {1, 2, 3}) write(TinyRun(step));
  const auto message = [&] { return message_of<UserError>([&] { Checkpoint{path(3)}; }); };
  const auto again = [&] { write(TinyRun(3)); };

  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string file = path(3) + "/" + name;
    overwrite_byte(file, static_cast<std::int64_t>(fs::file_size(file)) - 5);
    expect_contains(message(), {file, "damaged", "hash",
                                std::string(name).starts_with("model") ? "\"bias\"" : "\"weight.m\"", path(2)});
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
  write(TinyRun(1));
  const Checkpoint checkpoint(path(1));
  std::vector<float> memory(192, 5.0F);
  const auto message = [&](const char* name, const Shape& shape) {
    return message_of<UserError>([&] { checkpoint.read(name, shape, 0, memory); });
  };
  expect_contains(message("bias", {4}), {path(1), "\"bias\" as [3]", "should be [4]", "another model"});
  expect_contains(message("bias", {3, 1}), {"[3]", "[3, 1]"});
  expect_contains(message("gain", {3}), {"no tensor \"gain\" [3]"});
  expect_contains(message_of<UserError>([&] {
                    checkpoint.check_has_no_others_than({"weight", "weight.m"});
                  }),
                  {"\"bias\" [3] that has no place"});
  EXPECT_EQ(memory, std::vector<float>(192, 5.0F));                               // nothing was copied
  EXPECT_THROW(checkpoint.read("weight", {64, 3}, 1, memory), std::logic_error);  // beyond its end
}

TEST_F(CheckpointTest, AnyRangeOfATensorCanBeRead) {
  const TinyRun run(1);
  write(run);
  const Checkpoint checkpoint(path(1));
  for (const std::int64_t first : {0, 1, 100, 191}) {
    for (const std::int64_t count : {0, 1, 92, 192}) {
      if (first + count > 192) continue;
      std::vector<float> found(static_cast<std::size_t>(count));
      checkpoint.read("weight", {64, 3}, first, found);
      EXPECT_TRUE(std::equal(found.begin(), found.end(), run.weight.begin() + first)) << first << ' ' << count;
    }
  }
}

TEST_F(CheckpointTest, VerifiesInParts) {
  write(TinyRun(1));
  const std::string file = path(1) + "/optimizer.safetensors";
  overwrite_byte(file, static_cast<std::int64_t>(fs::file_size(file)) - 5);
  const Checkpoint checkpoint(path(1), Verify::kSizes);
  for (const int parts : {1, 2, 3, 7}) {
    int found = 0;
    for (int part = 0; part < parts; ++part) {
      try {
        checkpoint.verify(part, parts);
      } catch (const UserError& error) {
        expect_contains(error.what(), {file, "weight.m", "hash"});
        ++found;
      }
    }
    EXPECT_EQ(found, 1) << parts;
  }
  EXPECT_EQ(checkpoint.damages().size(), 1U);
}

TEST_F(CheckpointTest, WhatIsReadCanBeVerifiedOnTheWay) {
  write(TinyRun(1));
  const std::string file = path(1) + "/optimizer.safetensors";
  overwrite_byte(file, static_cast<std::int64_t>(fs::file_size(file)) - 5);
  std::vector<float> to(3);
  Checkpoint(path(1), Verify::kSizes).read("weight.m", {64, 3}, 0, to);
  const Checkpoint checkpoint(path(1), Verify::kReads);
  checkpoint.read("bias", {3}, 0, to);
  expect_contains(message_of<UserError>([&] {
                    checkpoint.read("weight.m", {64, 3}, 0, to);
                  }),
                  {file, "weight.m", "hash"});
}

TEST_F(CheckpointTest, AManifestHasOneTextAlone) {
  write(TinyRun(1));
  const std::string file = path(1) + "/manifest.json";
  std::ifstream stream(file);
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  const auto message = [&](const std::string& changed) {
    std::ofstream(file) << changed;
    return message_of<UserError>([&] { Checkpoint{path(1)}; });
  };
  for (const std::string& changed :
       {text + "\n", text.substr(0, text.size() - 1), " " + text, nlohmann::json::parse(text).dump()}) {
    expect_contains(message(changed), {file, "damaged", "not laid out"});
  }
  expect_contains(message(text + std::string(1, '\0')), {file, "damaged", "NUL byte"});
  expect_contains(message("\xEF\xBB\xBF" + text), {file, "damaged", "byte order mark"});
  expect_contains(message("{\"step\": 7," + text.substr(1)), {file, "damaged", "\"step\" twice"});
  expect_contains(
      message("{\"a\": " + std::string(1000000, '[') + std::string(1000000, ']') + "," + text.substr(1)),
      {file, "damaged", "nested deeper"});
  std::ofstream(file) << text;
  EXPECT_EQ(Checkpoint(path(1)).step(), 1);
}

TEST_F(CheckpointTest, AllThatIsDamagedIsTold) {
  std::ofstream(dir_ + ".extra") << "text";
  TinyRun run(1);
  run.contents.files = {{.path = "tokenizer/a", .from = dir_ + ".extra"},
                        {.path = "b", .from = dir_ + ".extra"}};
  write(run);
  fs::remove(dir_ + ".extra");
  EXPECT_TRUE(Checkpoint(path(1), Verify::kManifest).damages().empty());
  overwrite_byte(path(1) + "/model.safetensors",
                 static_cast<std::int64_t>(fs::file_size(path(1) + "/model.safetensors")) - 5);
  overwrite_byte(path(1) + "/tokenizer/a", 1);
  fs::remove(path(1) + "/b");
  fs::resize_file(path(1) + "/optimizer.safetensors", 50);
  const std::vector<std::string> damages = Checkpoint(path(1), Verify::kManifest).damages();
  ASSERT_EQ(damages.size(), 4U);
  expect_contains(damages[0], {path(1) + "/model.safetensors", "\"bias\"", "hash"});
  expect_contains(damages[1], {path(1) + "/b", "No such file"});
  expect_contains(damages[2], {path(1) + "/optimizer.safetensors", "50 bytes", "weight.m"});
  expect_contains(damages[3], {path(1) + "/tokenizer/a", "hash"});
  // A shard whose header is damaged takes all its tensors with it.
  write(TinyRun(2));
  overwrite_byte(path(2) + "/model.safetensors", 8 + 27);  // in a value that is no tensor's
  const std::vector<std::string> header = Checkpoint(path(2), Verify::kManifest).damages();
  ASSERT_EQ(header.size(), 1U);
  expect_contains(header[0], {path(2) + "/model.safetensors", "header", "bias, weight"});
}

TEST_F(CheckpointTest, APipeInPlaceOfAFileIsNotWaitedFor) {
  for (const char* name : {"manifest.json", "model.safetensors"}) {
    write(TinyRun(1));
    const std::string file = path(1) + "/" + name;
    const auto refused = [&] {
      EXPECT_THROW(Checkpoint(path(1), Verify::kSizes), UserError);
      const std::string damage = name == kManifestName
                                     ? message_of<UserError>([&] { Checkpoint(path(1), Verify::kManifest); })
                                     : Checkpoint(path(1), Verify::kManifest).damages().at(0);
      expect_contains(damage, {file});
    };
    fs::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
    refused();
    fs::remove(file);
    fs::create_symlink("/dev/zero", file);
    refused();
  }
}

TEST_F(CheckpointTest, NumbersMustBePossible) {
  write(TinyRun(1));
  const std::string file = path(1) + "/manifest.json";
  const Manifest whole = read_manifest(file);
  Manifest manifest = whole;
  manifest.step = -1;
  EXPECT_THROW(parse_manifest(to_text(manifest), file), UserError);
  manifest = whole;
  manifest.contents.shards.begin()->second.bytes = std::uint64_t{1} << 63U;
  EXPECT_THROW(parse_manifest(to_text(manifest), file), UserError);
}

TEST_F(CheckpointTest, AManifestCannotLeadElsewhere) {
  write(TinyRun(1));
  const std::string file = path(1) + "/manifest.json";
  const Manifest whole = read_manifest(file);
  for (const char* name : {"../x", "/etc/passwd", "a/../../x", "", "./x"}) {
    Manifest manifest = whole;
    manifest.files[name] = {};
    std::ofstream(file) << to_text(manifest);
    expect_contains(message_of<UserError>([&] { Checkpoint{path(1)}; }),
                    {name, "not a file of the checkpoint"});
  }
}

TEST_F(CheckpointTest, PiecesMustBePossibleAndCoverTheirTensor) {
  write(TinyRun(1));
  const std::string file = path(1) + "/manifest.json";
  const Manifest whole = read_manifest(file);
  const auto message = [&](const std::function<void(ManifestTensor&)>& change) {
    Manifest manifest = whole;
    change(manifest.contents.tensors.at("weight"));
    std::ofstream(file) << to_text(manifest);
    return message_of<UserError>([&] { Checkpoint{path(1)}; });
  };
  const auto with_range = [&](const PieceRange& range) {
    return message([&](ManifestTensor& tensor) { tensor.pieces[0].range = range; });
  };
  expect_contains(with_range({.dim = 0, .begin = 0, .end = 64, .first = 0, .count = 191}),
                  {"191 elements of 192"});
  expect_contains(with_range({.dim = 0, .begin = 0, .end = 65, .first = 0, .count = 192}), {"beyond it"});
  expect_contains(with_range({.dim = 2, .begin = 0, .end = 64, .first = 0, .count = 192}), {"damaged"});
  expect_contains(with_range({.dim = 0, .begin = -1, .end = 63, .first = 0, .count = 192}), {"beyond it"});
  expect_contains(with_range({.dim = 0, .begin = 0, .end = 64, .first = 1, .count = 192}), {"beyond it"});
  expect_contains(with_range({.dim = 0, .begin = 0, .end = 64, .first = -1, .count = 192}), {"beyond it"});
  expect_contains(message([](ManifestTensor& t) { t.pieces[0].file = "other"; }), {"does not list other"});
  expect_contains(message([](ManifestTensor& t) { t.pieces.push_back(t.pieces[0]); }), {"384 elements of 192"});
  // The right number of elements, but some of them twice.
  const std::string twice = message([](ManifestTensor& t) {
    t.pieces[0].range.count = 96;
    t.pieces.push_back(t.pieces[0]);
  });
  expect_contains(twice, {"weight"});
}

}  // namespace
}  // namespace meshtrain
