#include "data/tokenize_corpus.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/corpus.h"
#include "data/ordered_parallel.h"
#include "data/test_files.h"
#include "data/token_source.h"

namespace meshtrain {
namespace {

using Ids = std::vector<std::int32_t>;

struct Result {
  CorpusStats stats;
  std::vector<Ids> documents;
};

Result tokenize(const std::vector<std::string>& inputs, const Tokenizer& tokenizer,
                CorpusOptions options = {}) {
  Result result;
  Ids open;
  result.stats = tokenize_corpus(inputs, tokenizer, options,
                                 [&](std::span<const std::int32_t> ids, std::span<const std::int64_t> ends) {
                                   std::int64_t done = 0;
                                   for (const std::int64_t end : ends) {
                                     open.insert(open.end(), ids.begin() + done, ids.begin() + end);
                                     result.documents.push_back(std::exchange(open, {}));
                                     done = end;
                                   }
                                   open.insert(open.end(), ids.begin() + done, ids.end());
                                 });
  EXPECT_TRUE(open.empty());
  return result;
}

std::string data_file(const std::string& name) {
  return std::string(MESHTRAIN_TEST_DATA) + "/tokenizers/" + name;
}

TEST(TokenizeCorpus, DocumentsOfTextAndJsonLines) {
  const TempFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const Result result = tokenize({folder.write("a.txt", "hi\n\xFF"), folder.write("empty.txt", ""),
                                  folder.write("b.jsonl",
                                               "{\"text\":\"x\",\"id\":1}\n\n \r\n{\"id\":2,\"text\":\"\"}\r\n"
                                               "{\"text\":\"\\u00e9\\n\"}"),
                                  folder.write("c", "z")},
                                 *bytes);
  EXPECT_EQ(result.documents,
            (std::vector<Ids>{{'h', 'i', '\n', 255, 256}, {'x', 256}, {0xC3, 0xA9, '\n', 256}, {'z', 256}}));
  EXPECT_EQ(result.stats.documents, 4);
  EXPECT_EQ(result.stats.empty_documents, 2);
  EXPECT_EQ(result.stats.tokens, 13);
  EXPECT_EQ(result.stats.text_bytes, 9);
  EXPECT_EQ(result.stats.json_lines, 3);
  EXPECT_EQ(result.stats.malformed_lines, 0);
}

TEST(TokenizeCorpus, MalformedLinesAreCountedAndNamed) {
  const TempFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string path = folder.write("a.jsonl",
                                        "{\"text\":\"good\"}\n"
                                        "{\"text\":\"cut\n"
                                        "\n"
                                        "[1]\n"
                                        "{\"txt\":\"x\"}\n"
                                        "{\"text\":7}\n"
                                        "{\"text\":\"bad \xFF byte\"}\n"
                                        "{\"text\":\"\\ud800\"}\n"
                                        "1e999\n"
                                        "{\"text\":null}\n"
                                        "{\"text\":\"good\"} trailing\n"
                                        "{\"text\":\"last\"}");
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{40}, std::size_t{1} << 20U}) {
    CorpusOptions options;
    options.chunk_bytes = chunk;
    const Result result = tokenize({path}, *bytes, options);
    EXPECT_EQ(result.stats.documents, 2);
    EXPECT_EQ(result.stats.malformed_lines, 9);
    EXPECT_EQ(result.stats.json_lines, 11);
    ASSERT_EQ(result.stats.malformed.size(), 5U);
    const std::string report = malformed_report(result.stats);
    expect_contains(report, "9 of 11 lines");
    expect_contains(report, path + ":2: not valid JSON");
    expect_contains(report, path + ":4: the line holds a JSON array");
    expect_contains(report, path + ":5: the object has no field \"text\"");
    expect_contains(report, path + ":6: the field \"text\" holds a JSON number");
    expect_contains(report, path + ":7: not valid JSON");
    expect_contains(report, "and 4 more");
  }
}

TEST(TokenizeCorpus, AnotherField) {
  const TempFolder folder;
  CorpusOptions options;
  options.text_field = "content";
  const Result result = tokenize({folder.write("a.jsonl", "{\"content\":\"x\",\"text\":\"y\"}\n")},
                                 *make_tokenizer("bytes"), options);
  EXPECT_EQ(result.documents, (std::vector<Ids>{{'x', 256}}));
}

// The ids are those of the whole text, however it is cut and on however many threads.
TEST(TokenizeCorpus, ThreadsAndChunksChangeNothing) {
  const TempFolder folder;
  std::string text = read_file(data_file("text.txt"));
  for (int i = 0; i < 3; ++i) text += "cut here\nPlain words follow, one after another. " + text;
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += nlohmann::json{{"text", fmt::format("document {} <|endoftext|>", i)}}.dump() + "\n";
  }
  const std::vector<std::string> inputs = {folder.write("a.txt", text), folder.write("b.jsonl", lines),
                                           folder.write("c.txt", "short")};
  for (const char* name : {"gpt2", "llama3", "qwen2", "smollm"}) {
    const auto tokenizer = make_tokenizer(data_file(name + std::string(".json")));
    CorpusOptions options;
    options.threads = 1;
    const Result one = tokenize(inputs, *tokenizer, options);
    ASSERT_EQ(one.documents.size(), 302U);
    Ids expected = tokenizer->encode(text);
    expected.push_back(*tokenizer->end_of_document());
    EXPECT_EQ(one.documents[0], expected);
    options.threads = 7;
    for (const std::size_t chunk : {std::size_t{16}, std::size_t{100}, std::size_t{5000}}) {
      options.chunk_bytes = chunk;
      EXPECT_EQ(tokenize(inputs, *tokenizer, options).documents, one.documents) << name << " " << chunk;
    }
  }
}

TEST(TokenizeCorpus, InputsThatAreNoText) {
  const TempFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const auto refusal = [&](const std::string& path) {
    return message_of<UserError>([&] { tokenize({path}, *bytes); });
  };
  expect_contains(refusal(folder / "none.txt"), "none.txt\" does not exist");
  expect_contains(refusal(folder / "."), "is a folder");
  expect_contains(refusal(folder.write("a.txt", "\x28\xB5\x2F\xFD....")), "zstd-compressed");
  expect_contains(refusal(folder.write("a.txt", "PAR1....")), "Parquet");
  expect_contains(refusal(folder.write("a.txt", "\xFF\xFEh")), "UTF-16");
}

TEST(TokenizeToFiles, WritesADataSet) {
  const TempFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string input = folder.write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n");
  const CorpusStats stats = tokenize_to_files({input}, *bytes, {}, folder / "out/p");
  EXPECT_EQ(stats.documents, 2);
  const IndexedDataset data = IndexedDataset::open(folder / "out/p");
  EXPECT_EQ(data.type(), TokenType::kU16);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.sequence(0), (Ids{'a', 'b', 256}));
  EXPECT_EQ(data.sequence(1), (Ids{'c', 256}));
}

TEST(TokenizeToFiles, NothingToWriteLeavesNothing) {
  const TempFolder folder;
  const auto bytes = make_tokenizer("bytes");
  const std::string broken = folder.write("a.jsonl", "x\ny\n");
  const std::string message =
      message_of<RunError>([&] { tokenize_to_files({broken}, *bytes, {}, folder / "p"); });
  expect_contains(message, "every one of the 2 lines was malformed");
  expect_contains(message, broken + ":1: ");
  const std::string empty = folder.write("b.txt", "");
  expect_contains(message_of<UserError>([&] { tokenize_to_files({empty}, *bytes, {}, folder / "p"); }),
                  "no text");
  for (const char* name : {"p.bin", "p.idx", "p.bin.partial", "p.idx.partial"})
    EXPECT_FALSE(folder.has(name)) << name;
}

TEST(TokenizeToFiles, NeedsAnEndOfDocument) {
  const TempFolder folder;
  const auto none = make_tokenizer(data_file("flags.json"));
  const std::string input = folder.write("a.txt", "x");
  expect_contains(message_of<UserError>([&] { tokenize_to_files({input}, *none, {}, folder / "p"); }), "--eod");
}

TEST(CorpusLines, OfTextAndDocuments) {
  const TempFolder folder;
  CorpusLines lines({folder.write("a.txt", "one\n\ntwo"), folder.write("e.txt", ""),
                     folder.write("b.jsonl", "{\"text\":\"x\\ny\"}\nbroken\n{\"text\":\"z\\n\"}\n")},
                    "text");
  std::vector<std::string> seen;
  for (std::string line; lines.next(line);) seen.push_back(line);
  EXPECT_EQ(seen, (std::vector<std::string>{"one\n", "\n", "two", "x\n", "y", "z\n"}));
}

TEST(OrderedParallel, KeepsOrderAndBoundsTheWindow) {
  int given = 0;
  std::atomic<int> taken = 0;
  std::vector<int> seen;
  ordered_parallel<int>(
      4,
      [&]() -> std::optional<int> {
        EXPECT_LE(given - taken, 2 * 4 + 2 + 4);
        return given < 500 ? std::optional<int>(given++) : std::nullopt;
      },
      [] { return [](int i) { return 3 * i; }; },
      [&](int i) {
        ++taken;
        seen.push_back(i);
      });
  ASSERT_EQ(seen.size(), 500U);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], 3 * i);
}

TEST(OrderedParallel, TheFirstErrorInOrderStopsIt) {
  for (int round = 0; round < 50; ++round) {
    int given = 0;
    std::vector<int> seen;
    const auto run = [&](int bad_job, int bad_next, int bad_consume) {
      given = 0;
      seen.clear();
      ordered_parallel<int>(
          3,
          [&]() -> std::optional<int> {
            if (given == bad_next) throw RunError("next");
            return given < 100 ? std::optional<int>(given++) : std::nullopt;
          },
          [=] {
            return [=](int i) {
              if (i >= bad_job) throw RunError(fmt::format("job {}", i));
              return i;
            };
          },
          [&](int i) {
            if (i == bad_consume) throw RunError("consume");
            seen.push_back(i);
          });
    };
    EXPECT_EQ(message_of<RunError>([&] { run(20, 1000, 1000); }), "job 20");
    EXPECT_EQ(seen.size(), 20U);
    EXPECT_EQ(message_of<RunError>([&] { run(1000, 30, 1000); }), "next");
    EXPECT_EQ(seen.size(), 30U);
    EXPECT_EQ(message_of<RunError>([&] { run(1000, 1000, 5); }), "consume");
  }
}

}  // namespace
}  // namespace meshtrain
