#include "data/token_source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <thread>

#include "base/error.h"
#include "data/indexed_dataset_writer.h"
#include "data/test_files.h"

namespace meshtrain {
namespace {

using Ids = std::vector<std::int32_t>;

Ids read_all(const TokenSource& source) {
  Ids ids(static_cast<std::size_t>(source.size()));
  source.read(0, ids);
  return ids;
}

void write_indexed(const std::string& prefix, const Ids& ids, std::int64_t vocab) {
  IndexedDatasetWriter writer(prefix, vocab);
  writer.add(ids);
  writer.end_document();
  writer.commit();
}

class OpenTokenSource : public testing::Test {
 protected:
  std::unique_ptr<TokenSource> open(std::string_view name) {
    return open_token_source(folder_ / name, tokenizer_.get());
  }
  std::string refusal(std::string_view name) {
    return message_of<UserError>([&] { (void)open(name); });
  }

  TempFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("bytes");
};

TEST_F(OpenTokenSource, MegatronByPrefixOrEitherFile) {
  write_indexed(folder_ / "p", {1, 2, 70000}, 70001);
  for (const char* name : {"p", "p.bin", "p.idx"}) EXPECT_EQ(read_all(*open(name)), (Ids{1, 2, 70000})) << name;
  // Needs no tokenizer.
  EXPECT_EQ(open_token_source(folder_ / "p", nullptr)->size(), 3);
}

TEST_F(OpenTokenSource, Llmc) {
  std::string bytes(1024 + 4, '\0');
  const std::int32_t header[] = {20240520, 1, 2};
  std::memcpy(bytes.data(), header, sizeof header);
  bytes[1024] = 9;
  folder_.write("t.bin", bytes);
  folder_.write("other.name", bytes);
  for (const char* name : {"t.bin", "t", "other.name"}) EXPECT_EQ(read_all(*open(name)), (Ids{9, 0})) << name;
}

TEST_F(OpenTokenSource, AFileThatBecomesShorterIsNamed) {
  std::string bytes(1024 + 20'000, '\0');
  const std::int32_t header[] = {20240520, 1, 10'000};
  std::memcpy(bytes.data(), header, sizeof header);
  folder_.write("t.bin", bytes);
  write_indexed(folder_ / "p", Ids(10'000), 100);
  for (const auto& [name, size] : {std::pair{"t.bin", 21'024}, std::pair{"p.bin", 20'000}}) {
    const auto source = open(name);
    // A new file in its place is another file.
    std::filesystem::rename(folder_ / name, folder_ / "opened");
    folder_.write(name, "new");
    EXPECT_EQ(read_all(*source), Ids(10'000));
    std::filesystem::resize_file(folder_ / "opened", 5);
    const std::string message = message_of<RunError>([&] { read_all(*source); });
    expect_contains(message, std::string(name) + "\" had " + std::to_string(size) + " bytes");
    expect_contains(message, "has 5 now");
  }
}

TEST_F(OpenTokenSource, TextAndJsonLines) {
  folder_.write("a.txt", "hi");
  folder_.write("noext", "x\n");
  folder_.write("b.jsonl", "{\"text\": \"a\"}\nbroken\n{\"text\": \"bc\"}\n");
  EXPECT_EQ(read_all(*open("a.txt")), (Ids{'h', 'i', 256}));
  EXPECT_EQ(read_all(*open("noext")), (Ids{'x', '\n', 256}));
  EXPECT_EQ(read_all(*open("b.jsonl")), (Ids{'a', 256, 'b', 'c', 256}));
  // An existing file wins over a prefix of the same name.
  write_indexed(folder_ / "a.txt", {1, 2, 3}, 100);
  EXPECT_EQ(open("a.txt")->size(), 3);
}

TEST_F(OpenTokenSource, APipe) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << "abc"; });
  EXPECT_EQ(read_all(*open("pipe")), (Ids{'a', 'b', 'c', 256}));
  writer.join();
}

TEST_F(OpenTokenSource, SaysWhatItLookedFor) {
  folder_.write("lonely.bin", "123");
  folder_.write("half.idx", "123");
  folder_.write("empty.txt", "");
  folder_.write("empty.jsonl", "\n");
  folder_.write("packed.txt", "\x1F\x8B 123");
  expect_contains(refusal("none"), "none.bin");
  expect_contains(refusal("none"), "none.idx");
  expect_contains(refusal("none"), "meshtrain tokenize");
  expect_contains(refusal(""), "are a folder");
  expect_contains(refusal("lonely.bin"), "no \"" + folder_ / "lonely.idx");
  expect_contains(refusal("lonely"), "but no \"" + folder_ / "lonely.idx");
  expect_contains(refusal("half"), "but no \"" + folder_ / "half.bin");
  expect_contains(refusal("half.idx"), "half.bin");
  expect_contains(refusal("empty.txt"), "no text");
  expect_contains(refusal("empty.jsonl"), "no text");
  expect_contains(refusal("packed.txt"), "gzip");
  folder_.write("a.txt", "hi");
  expect_contains(message_of<UserError>([&] { (void)open_token_source(folder_ / "a.txt", nullptr); }),
                  "no tokenizer");
}

TEST(CheckVocabulary, NamesIdPlaceAndVocabulary) {
  Ids ids(200'000, 7);
  ids[150'000] = 50257;
  const MemoryTokens source("S", ids);
  check_vocabulary(source, 50258);
  const std::string message = message_of<UserError>([&] { check_vocabulary(source, 50257); });
  expect_contains(message, "\"S\" hold the id 50257 at position 150000");
  expect_contains(message, "50257 ids");
  const MemoryTokens negative("N", {3, -1});
  expect_contains(message_of<UserError>([&] { check_vocabulary(negative, 10); }), "the id -1 at position 1");
  check_vocabulary(MemoryTokens("empty", {}), 10);
  check_vocabulary(MemoryTokens("large", {INT32_MAX}), std::int64_t{1} << 31U);
}

// Beyond 2^29 tokens only the ends are looked at; a sparse file of 2^29 + 2^28 zeros.
TEST(CheckVocabulary, LargeFiles) {
  const TempFolder folder;
  write_indexed(folder / "p", Ids(1), 100);
  std::string index = read_file(folder / "p.idx");
  constexpr std::int32_t kTokens = (1 << 29) + (1 << 28);
  std::memcpy(index.data() + 34, &kTokens, 4);
  folder.write("p.idx", index);
  const auto set = [&](std::int64_t position, std::uint16_t id) {
    const int fd = ::open((folder / "p.bin").c_str(), O_WRONLY);
    ASSERT_EQ(::ftruncate(fd, 2 * std::int64_t{kTokens}), 0);
    ASSERT_EQ(::pwrite(fd, &id, 2, 2 * position), 2);
    ::close(fd);
  };
  set(kTokens / 2, 500);
  check_vocabulary(*open_token_source(folder / "p", nullptr), 100);
  set(kTokens - 1, 300);
  expect_contains(
      message_of<UserError>([&] { check_vocabulary(*open_token_source(folder / "p", nullptr), 100); }),
      "the id 300 at position 805306367");
}

}  // namespace
}  // namespace meshtrain
