// Byte-pair encoding: the model part of a byte-level BPE tokenizer (Sennrich et al. 2016, section 3.2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace meshtrain {

struct BpeMerge {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t result = 0;
};

struct BpeOptions {
  bool ignore_merges = false;            // a piece that is a token as it stands is that token
  std::optional<std::int32_t> unk = {};  // id for bytes without a token; none: such bytes are dropped
  bool fuse_unk = false;                 // one unk for a run of them
};

// Ids of (left, right) pairs, in a flat table.
class MergeTable {
 public:
  struct Result {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  // The rank of a merge is its place; of two for one pair the later one counts.
  explicit MergeTable(std::span<const BpeMerge> merges);
  // rank kNone when the pair does not merge.
  Result find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key;
    Result result;
  };
  std::vector<Slot> slots_;
  std::uint64_t mask_ = 0;
};

// Immutable, shared by threads.
class BpeModel {
 public:
  // `byte_ids[b]`: token of byte b, -1: none. `tokens`: (bytes, id) of every token that is a sequence of
  // bytes; read only with ignore_merges.
  BpeModel(std::vector<BpeMerge> merges, std::vector<std::int32_t> byte_ids,
           std::vector<std::pair<std::string, std::int32_t>> tokens, BpeOptions options);

 private:
  friend class BpeEncoder;

  MergeTable merges_;
  std::vector<std::int32_t> byte_ids_;
  std::unordered_map<std::string_view, std::int32_t> whole_;  // views of tokens_
  std::vector<std::pair<std::string, std::int32_t>> tokens_;
  BpeOptions options_;
};

// One thread's encoder: scratch memory and a cache of short pieces. The model must outlive it.
class BpeEncoder {
 public:
  explicit BpeEncoder(const BpeModel& model);
  // Appends the ids of one piece. Of the mergeable pairs the one of lowest rank, then the leftmost, is
  // merged, until there is none.
  void encode(std::string_view piece, std::vector<std::int32_t>& ids);

 private:
  static constexpr std::size_t kCachedBytes = 30;
  static constexpr std::size_t kCachedIds = 8;
  // A cache line; direct-mapped, so memory is fixed and a collision overwrites.
  struct alignas(64) CacheEntry {
    std::uint8_t bytes = 0;  // 0: empty
    std::uint8_t count = 0;
    char text[kCachedBytes];
    std::int32_t ids[kCachedIds];
  };
  struct Symbol {
    std::int32_t id;
    std::int32_t previous;  // -1: none
    std::int32_t next;      // -1: none
    bool alive;
  };

  void start(std::string_view piece);
  void merge_short(std::vector<std::int32_t>& ids);
  void merge_long(std::vector<std::int32_t>& ids);

  const BpeModel& model_;
  std::vector<CacheEntry> cache_;
  std::vector<std::int32_t> word_;
  std::vector<MergeTable::Result> pairs_;  // merge_short: of word_[i] and word_[i + 1]
  std::vector<Symbol> symbols_;            // merge_long
};

}  // namespace meshtrain
