#include "data/bpe.h"

#include <gtest/gtest.h>

#include <random>

namespace meshtrain {
namespace {

std::vector<std::int32_t> byte_ids() {
  std::vector<std::int32_t> ids(256);
  for (int i = 0; i < 256; ++i) ids[static_cast<std::size_t>(i)] = i;
  return ids;
}

// The definition: merge the pair of lowest rank, the leftmost of equals, until there is none.
std::vector<std::int32_t> slow_bpe(const std::vector<BpeMerge>& merges, std::vector<std::int32_t> word) {
  for (;;) {
    std::size_t best_rank = merges.size();
    std::size_t best_at = 0;
    for (std::size_t i = 0; i + 1 < word.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == word[i] && merges[rank].right == word[i + 1]) {
          best_rank = rank;
          best_at = i;
        }
      }
    }
    if (best_rank == merges.size()) return word;
    word[best_at] = merges[best_rank].result;
    word.erase(word.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

// Random merges of tokens that exist, over a small alphabet so that they overlap.
std::vector<BpeMerge> random_merges(std::mt19937& random, std::int32_t count) {
  std::vector<std::int32_t> known = {'a', 'b', 'c'};
  std::vector<BpeMerge> merges;
  for (std::int32_t i = 0; i < count; ++i) {
    const BpeMerge merge = {known[random() % known.size()], known[random() % known.size()], 256 + i};
    const bool twice = std::any_of(merges.begin(), merges.end(), [&](const BpeMerge& m) {
      return m.left == merge.left && m.right == merge.right;
    });
    if (twice) continue;
    merges.push_back(merge);
    known.push_back(merge.result);
  }
  return merges;
}

// Short words (scan), long ones (heap) and repeated ones (cache).
TEST(Bpe, EqualsTheDefinition) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    const std::vector<BpeMerge> merges = random_merges(random, 60);
    const BpeModel model(merges, byte_ids(), {}, {});
    BpeEncoder encoder(model);
    for (int i = 0; i < 60; ++i) {
      std::string text;
      const std::size_t length = random() % (i % 4 == 0 ? 300 : 40);
      for (std::size_t k = 0; k < length; ++k) text.push_back("abcab"[random() % 5]);
      std::vector<std::int32_t> ids = {-7};
      encoder.encode(text, ids);
      encoder.encode(text, ids);
      std::vector<std::int32_t> expected = {-7};
      const auto once = slow_bpe(merges, {text.begin(), text.end()});
      for (int twice = 0; twice < 2; ++twice) expected.insert(expected.end(), once.begin(), once.end());
      ASSERT_EQ(ids, expected) << text;
    }
  }
}

TEST(Bpe, IgnoreMergesTakesWholeTokens) {
  const std::vector<BpeMerge> merges = {{'a', 'b', 256}};
  const BpeModel plain(merges, byte_ids(), {{"bab", 300}}, {});
  const BpeModel whole(merges, byte_ids(), {{"bab", 300}}, {.ignore_merges = true});
  std::vector<std::int32_t> ids;
  BpeEncoder(plain).encode("bab", ids);
  BpeEncoder(whole).encode("bab", ids);
  BpeEncoder(whole).encode("bbab", ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{'b', 256, 300, 'b', 'b', 256}));
}

TEST(Bpe, MissingBytes) {
  std::vector<std::int32_t> ids_of_bytes = byte_ids();
  ids_of_bytes['x'] = ids_of_bytes['y'] = -1;
  const std::vector<BpeMerge> merges = {{'a', 'b', 256}};
  const auto encode = [&](BpeOptions options) {
    const BpeModel model(merges, ids_of_bytes, {}, options);
    std::vector<std::int32_t> ids;
    BpeEncoder(model).encode("axbxyc", ids);
    return ids;
  };
  // Dropped bytes let their neighbors meet, as in the Hugging Face library.
  EXPECT_EQ(encode({}), (std::vector<std::int32_t>{256, 'c'}));
  EXPECT_EQ(encode({.unk = 9}), (std::vector<std::int32_t>{'a', 9, 'b', 9, 9, 'c'}));
  EXPECT_EQ(encode({.unk = 9, .fuse_unk = true}), (std::vector<std::int32_t>{'a', 9, 'b', 9, 'c'}));
}

TEST(Bpe, AMegabyteWithoutABreak) {
  const BpeModel model(std::vector<BpeMerge>{{'a', 'a', 256}, {256, 256, 257}}, byte_ids(), {}, {});
  std::vector<std::int32_t> ids;
  BpeEncoder(model).encode(std::string(1'000'001, 'a'), ids);
  ASSERT_EQ(ids.size(), 250'001U);
  EXPECT_EQ(ids.front(), 257);
  EXPECT_EQ(ids.back(), 'a');
}

TEST(MergeTable, TheLaterOfTwoCounts) {
  const std::vector<BpeMerge> merges = {{1, 2, 3}, {1, 2, 4}};
  const MergeTable table(merges);
  EXPECT_EQ(table.find(1, 2).id, 4);
  EXPECT_EQ(table.find(1, 2).rank, 1U);
  EXPECT_EQ(table.find(2, 1).rank, MergeTable::kNone);
}

}  // namespace
}  // namespace meshtrain
