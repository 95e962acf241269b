#include "data/indexed_dataset.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "base/error.h"
#include "data/indexed_dataset_writer.h"
#include "data/llmc_tokens.h"
#include "data/sampler.h"
#include "data/test_files.h"

namespace meshtrain {
namespace {

using Ids = std::vector<std::int32_t>;

Ids read(const TokenSource& source, std::int64_t begin, std::int64_t count) {
  Ids ids(static_cast<std::size_t>(count));
  source.read(begin, ids);
  return ids;
}
Ids read_all(const TokenSource& source) {
  return read(source, 0, source.size());
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An index written field by field, as reference/formats.md and Megatron have it.
struct Index {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::uint64_t sequences = 3;
  std::uint64_t indices = 3;
  std::vector<std::int32_t> lengths = {2, 3, 1};
  std::vector<std::int64_t> pointers = {0, 4, 10};
  std::vector<std::int64_t> documents = {0, 2, 3};
  std::string tail;

  std::string bytes() const {
    std::string out = magic;
    put(out, version);
    put(out, type);
    put(out, sequences);
    put(out, indices);
    for (const auto v : lengths) put(out, v);
    for (const auto v : pointers) put(out, v);
    for (const auto v : documents) put(out, v);
    return out + tail;
  }
};

std::string tokens_u16(std::initializer_list<std::uint16_t> ids) {
  std::string out;
  for (const auto id : ids) put(out, id);
  return out;
}
const std::string kTokens = tokens_u16({10, 11, 12, 13, 14, 65535});

IndexedDataset open_memory(const std::string& index, const std::string& tokens) {
  return IndexedDataset(std::as_bytes(std::span(index)), std::as_bytes(std::span(tokens)), "P");
}

TEST(IndexedDataset, ReadsWhatMegatronWrites) {
  const std::string index = Index{}.bytes();
  const IndexedDataset data = open_memory(index, kTokens);
  EXPECT_EQ(data.size(), 6);
  EXPECT_EQ(data.sequences(), 3);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.document_start(1), 2);
  EXPECT_EQ(data.sequence(1), (Ids{12, 13, 14}));
  EXPECT_EQ(read_all(data), (Ids{10, 11, 12, 13, 14, 65535}));
  EXPECT_EQ(read(data, 4, 2), (Ids{14, 65535}));
  EXPECT_EQ(read(data, 6, 0), Ids{});
  EXPECT_THROW(read(data, 5, 2), std::logic_error);
}

TEST(IndexedDataset, ModesMayFollow) {
  Index index;
  index.tail = std::string(3, '\0');
  const std::string bytes = index.bytes();
  EXPECT_EQ(open_memory(bytes, kTokens).size(), 6);
}

TEST(IndexedDataset, SequencesInAnyOrderAndEmptyOnes) {
  Index index;
  index.sequences = 5;
  index.lengths = {1, 0, 2, 2, 3};
  index.pointers = {10, 0, 0, 4, 2};  // overlapping ones too
  index.documents = {0, 2, 5};
  const std::string bytes = index.bytes();
  const IndexedDataset data = open_memory(bytes, kTokens);
  const Ids expected = {65535, 10, 11, 12, 13, 11, 12, 13};
  EXPECT_EQ(read_all(data), expected);
  for (std::int64_t begin = 0; begin < 8; ++begin) {
    for (std::int64_t count = 0; begin + count <= 8; ++count) {
      EXPECT_EQ(read(data, begin, count), Ids(expected.begin() + begin, expected.begin() + begin + count));
    }
  }
}

TEST(IndexedDataset, EveryIntegerType) {
  const auto with_type = [](std::uint8_t type, const std::string& tokens, std::int64_t width) {
    Index index;
    index.type = type;
    index.pointers = {0, 2 * width, 5 * width};
    const std::string bytes = index.bytes();
    return read_all(open_memory(bytes, tokens));
  };
  std::string i32;
  std::string i64;
  for (const std::int32_t v : {1, -2, 3, 1 << 30, 5, 6}) put(i32, v);
  for (const std::int64_t v : {std::int64_t{1}, std::int64_t{-2}, std::int64_t{1} << 31, std::int64_t{1} << 40,
                               std::int64_t{INT32_MAX}, std::int64_t{6}}) {
    put(i64, v);
  }
  const std::string bytes{"\x01\xFF\x03\x04\x05\x06\x01\xFF\x03\x04\x05\x06", 12};
  EXPECT_EQ(with_type(1, bytes, 1), (Ids{1, 255, 3, 4, 5, 6}));
  EXPECT_EQ(with_type(2, bytes, 1), (Ids{1, -1, 3, 4, 5, 6}));
  EXPECT_EQ(with_type(3, kTokens, 2), (Ids{10, 11, 12, 13, 14, -1}));
  EXPECT_EQ(with_type(4, i32, 4), (Ids{1, -2, 3, 1 << 30, 5, 6}));
  EXPECT_EQ(with_type(5, i64, 8), (Ids{1, -2, -1, -1, INT32_MAX, 6}));
}

// Narrowed, these ids would be -1, or in the vocabulary.
TEST(IndexedDataset, AnIdOf64BitsIsNamedAsItIs) {
  for (const std::int64_t id : {std::int64_t{1} << 40, (std::int64_t{1} << 32) + 3, std::int64_t{1} << 31,
                                INT64_MAX, INT64_MIN, std::int64_t{-7}}) {
    for (int place = 0; place < 6; ++place) {
      std::string tokens;
      for (int i = 0; i < 7; ++i) put(tokens, i == 6 ? std::int64_t{5} : i == place ? id : std::int64_t{i});
      Index index;
      index.type = 5;
      index.pointers = {8, 24,
                        0};  // the third sequence lies in front: its 1 token is followed by those of the first
      index.lengths = {2, 3, 1};
      const std::string bytes = index.bytes();
      const IndexedDataset data = open_memory(bytes, tokens);
      const std::int64_t position = place == 0 ? 5 : place - 1;
      EXPECT_EQ(data.id_at(position), id);
      const std::string named = fmt::format("the id {} at position {}", id, position);
      expect_contains(message_of<UserError>([&] { check_vocabulary(data, 100); }), named);
      expect_contains(message_of<RunError>([&] {
                        (void)BatchSampler(data, {.seq_len = 5, .shuffle = false, .vocab = 100}).batch(0, 1);
                      }),
                      named);
    }
  }
}

TEST(IndexedDataset, NoDocuments) {
  Index index;
  index.sequences = 0;
  index.indices = 1;
  index.lengths.clear();
  index.pointers.clear();
  index.documents = {0};
  const std::string bytes = index.bytes();
  const IndexedDataset data = open_memory(bytes, "");
  EXPECT_EQ(data.size(), 0);
  EXPECT_EQ(data.documents(), 0);
}

TEST(IndexedDataset, CutOffAnywhere) {
  const std::string whole = Index{}.bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(open_memory(whole.substr(0, length), kTokens), UserError) << length;
  }
  for (std::size_t length = 0; length < kTokens.size(); ++length) {
    expect_contains(message_of<UserError>([&] { open_memory(whole, kTokens.substr(0, length)); }), "too short");
  }
}

template <class Change>
void expect_refused(Change change, std::string_view part) {
  Index index;
  change(index);
  const std::string bytes = index.bytes();
  const std::string message = message_of<UserError>([&] { open_memory(bytes, kTokens); });
  expect_contains(message, part);
  expect_contains(message, "P.");
}

TEST(IndexedDataset, EveryFieldIsChecked) {
  expect_refused([](Index& i) { i.magic[3] = 'x'; }, "MMIDIDX");
  expect_refused([](Index& i) { i.version = 2; }, "version 2");
  expect_refused([](Index& i) { i.type = 0; }, "type code 0");
  expect_refused([](Index& i) { i.type = 9; }, "type code 9");
  expect_refused([](Index& i) { i.type = 7; }, "floating point");
  for (const std::uint64_t huge : {std::uint64_t{1} << 62U, std::uint64_t{1} << 63U, ~std::uint64_t{0},
                                   // times 12 and times 8 these are small numbers modulo 2^64
                                   std::uint64_t{0x1555555555555556U}, (std::uint64_t{1} << 61U) + 3}) {
    expect_refused([&](Index& i) { i.sequences = huge; }, "sequences");
    expect_refused([&](Index& i) { i.indices = huge; }, "documents");
  }
  expect_refused([](Index& i) { i.sequences = 2; }, "sequences");
  expect_refused([](Index& i) { i.sequences = 4; }, "sequences");
  expect_refused([](Index& i) { i.indices = 0; }, "empty");
  expect_refused([](Index& i) { i.indices = 4; }, "document indices");
  expect_refused([](Index& i) { i.tail = "x"; }, "bytes");
  expect_refused([](Index& i) { i.lengths[1] = -3; }, "sequence 1 has -3 tokens");
  expect_refused([](Index& i) { i.lengths[1] = 5; }, "too short");
  expect_refused([](Index& i) { i.lengths[1] = INT32_MAX; }, "too short");
  expect_refused([](Index& i) { i.pointers[2] = -2; }, "byte -2");
  expect_refused([](Index& i) { i.pointers[2] = 9; }, "byte 9");
  expect_refused([](Index& i) { i.pointers[2] = 12; }, "too short");
  expect_refused([](Index& i) { i.pointers[2] = INT64_MAX - 1; }, "too short");
  expect_refused([](Index& i) { i.pointers[0] = INT64_MIN; }, "sequence 0");
  expect_refused([](Index& i) { i.documents = {1, 2, 3}; }, "document 0");
  expect_refused([](Index& i) { i.documents = {0, 3, 2}; }, "document 2");
  expect_refused([](Index& i) { i.documents = {0, -1, 3}; }, "document 1");
  expect_refused([](Index& i) { i.documents = {0, 2, 4}; }, "document 2");
  expect_refused([](Index& i) { i.documents = {0, 1, 2}; }, "end at sequence 2 of 3");
}

TEST(IndexedDatasetWriter, WritesWhatMegatronReads) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "sub/p", 65499);
  writer.add(Ids{10, 11});
  writer.add(Ids{12});
  writer.end_document();
  writer.end_document();
  writer.add(Ids{65498});
  writer.end_document();
  EXPECT_FALSE(folder.has("sub/p.bin"));
  writer.commit();
  Index index;
  index.indices = 4;
  index.lengths = {3, 0, 1};
  index.pointers = {0, 6, 6};
  index.documents = {0, 1, 2, 3};
  EXPECT_EQ(read_file(folder / "sub/p.idx"), index.bytes());
  EXPECT_EQ(read_file(folder / "sub/p.bin"), tokens_u16({10, 11, 12, 65498}));
  EXPECT_FALSE(folder.has("sub/p.bin.partial"));
  EXPECT_FALSE(folder.has("sub/p.idx.partial"));
}

TEST(IndexedDatasetWriter, LargeVocabulariesTake32Bits) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "p", 65500);
  EXPECT_EQ(writer.type(), TokenType::kI32);
  EXPECT_THROW(writer.add(Ids{65500}), std::logic_error);
  writer.add(Ids{65499, 0});
  writer.end_document();
  writer.commit();
  EXPECT_EQ(read_all(IndexedDataset::open(folder / "p")), (Ids{65499, 0}));
}

TEST(IndexedDatasetWriter, ALongDocumentIsSeveralSequences) {
  const TempFolder folder;
  IndexedDatasetWriter writer(folder / "p", 100, 4);
  writer.add(Ids{1, 2, 3});
  writer.add(Ids{4, 5, 6, 7, 8, 9});
  writer.end_document();
  writer.add(Ids{1, 2, 3, 4});
  writer.end_document();
  writer.commit();
  const IndexedDataset data = IndexedDataset::open(folder / "p");
  EXPECT_EQ(data.sequences(), 4);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.document_start(1), 3);
  EXPECT_EQ(data.sequence(1), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(read_all(data), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4}));
}

TEST(IndexedDatasetWriter, NothingIsLeftWithoutCommit) {
  const TempFolder folder;
  folder.write("p.bin", "old");
  {
    IndexedDatasetWriter writer(folder / "p", 100);
    writer.add(Ids{1});
    EXPECT_TRUE(folder.has("p.bin.partial"));
    expect_contains(message_of<UserError>([&] { IndexedDatasetWriter(folder / "p", 100); }), "another process");
  }
  EXPECT_FALSE(folder.has("p.bin.partial"));
  EXPECT_FALSE(folder.has("p.idx.partial"));
  EXPECT_EQ(read_file(folder / "p.bin"), "old");
}

TEST(IndexedDatasetWriter, PlacesThatCannotBeWritten) {
  const TempFolder folder;
  folder.write("file", "x");
  expect_contains(message_of<UserError>([&] { IndexedDatasetWriter(folder / "file/p", 100); }), "file/p.bin");
  expect_contains(message_of<UserError>([&] { IndexedDatasetWriter("/proc/nowhere/p", 100); }),
                  "/proc/nowhere/p.bin");
}

// A limit on the size of files stands in for a full disk: writing fails in the same way.
TEST(IndexedDatasetWriter, AFullDiskIsNamedAndLeavesNothing) {
  const TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 1;
    try {
      IndexedDatasetWriter writer(folder / "p", 100);
      for (int i = 0; i < 100; ++i) writer.add(Ids(100'000, 1));
    } catch (const RunError& error) {
      const std::string message = error.what();
      status =
          message.find("p.bin") != std::string::npos && message.find("Free some space") != std::string::npos
              ? 0
              : 2;
    }
    ::_exit(status);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(folder.has("p.bin"));
  EXPECT_FALSE(folder.has("p.bin.partial"));
  EXPECT_FALSE(folder.has("p.idx.partial"));
}

// Six GiB of holes: offsets beyond 2^32 bytes and positions beyond 2^31 tokens.
TEST(IndexedDataset, BeyondFourGigabytes) {
  const TempFolder folder;
  constexpr std::int64_t kLength = std::int64_t{1} << 30;
  Index index;
  index.lengths = {kLength, kLength, kLength};
  index.pointers = {0, 2 * kLength, 4 * kLength};
  folder.write("p.idx", index.bytes());
  const int fd = ::open((folder / "p.bin").c_str(), O_CREAT | O_WRONLY, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::ftruncate(fd, 6 * kLength), 0);
  const std::int64_t positions[] = {0, 2'147'483'647, 2'147'483'648, 3 * kLength - 1};
  for (const std::int64_t position : positions) {
    const auto id = static_cast<std::uint16_t>(1 + position % 1000);
    ASSERT_EQ(::pwrite(fd, &id, 2, 2 * position), 2);
  }
  ::close(fd);
  const IndexedDataset data = IndexedDataset::open(folder / "p");
  EXPECT_EQ(data.size(), 3 * kLength);
  for (const std::int64_t position : positions) {
    EXPECT_EQ(read(data, position, 1), Ids{static_cast<std::int32_t>(1 + position % 1000)}) << position;
  }
  EXPECT_EQ(read(data, 2'147'483'646, 4), (Ids{0, 648, 649, 0}));
}

std::string llmc_file(std::vector<std::int32_t> header, std::initializer_list<std::uint16_t> ids) {
  header.resize(256);
  std::string out;
  for (const auto v : header) put(out, v);
  return out + tokens_u16(ids);
}

TEST(LlmcTokens, ReadsTokens) {
  const TempFolder folder;
  const std::string path = folder.write("t.bin", llmc_file({20240520, 1, 3}, {5, 65535, 7}));
  const LlmcTokens tokens = LlmcTokens::open(path);
  EXPECT_EQ(read_all(tokens), (Ids{5, 65535, 7}));
  EXPECT_EQ(read(tokens, 1, 2), (Ids{65535, 7}));
  EXPECT_THROW(read(tokens, 2, 2), std::logic_error);
}

TEST(LlmcTokens, EveryFieldIsChecked) {
  const auto message = [](const std::string& bytes) {
    return message_of<UserError>([&] { LlmcTokens(std::as_bytes(std::span(bytes)), "t.bin"); });
  };
  expect_contains(message(llmc_file({20240521, 1, 1}, {5})), "20240520");
  expect_contains(message(llmc_file({20240520, 7, 1}, {5})), "version 7");
  expect_contains(message(llmc_file({20240520, 1, 2}, {5})), "2 tokens");
  expect_contains(message(llmc_file({20240520, 1, 0}, {5})), "0 tokens");
  expect_contains(message(llmc_file({20240520, 1, -1}, {5})), "4294967295 tokens");
  const std::string whole = llmc_file({20240520, 1, 1}, {5});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(LlmcTokens(std::as_bytes(std::span(whole.data(), length)), "t"), UserError) << length;
  }
}

}  // namespace
}  // namespace meshtrain
