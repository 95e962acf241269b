#include "data/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::size_t kCacheEntries = 1U << 15U;
// Up to here a scan for the lowest rank beats a heap.
constexpr std::size_t kShortWord = 48;
constexpr std::uint64_t kEmpty = ~std::uint64_t{0};

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U |
         static_cast<std::uint32_t>(right);
}

std::uint64_t mix(std::uint64_t key) {
  key *= 0x9E3779B97F4A7C15U;
  return key ^ (key >> 32U);
}

}  // namespace

MergeTable::MergeTable(std::span<const BpeMerge> merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(16, merges.size() * 2));
  slots_.assign(size, {kEmpty, {kNone, -1}});
  mask_ = size - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = key_of(merges[rank].left, merges[rank].right);
    std::uint64_t at = mix(key) & mask_;
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, {static_cast<std::uint32_t>(rank), merges[rank].result}};
  }
}

MergeTable::Result MergeTable::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  for (std::uint64_t at = mix(key) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].key == key || slots_[at].key == kEmpty) return slots_[at].result;
  }
}

BpeModel::BpeModel(std::vector<BpeMerge> merges, std::vector<std::int32_t> byte_ids,
                   std::vector<std::pair<std::string, std::int32_t>> tokens, BpeOptions options)
    : merges_(merges), byte_ids_(std::move(byte_ids)), options_(options) {
  check(byte_ids_.size() == 256, "a BPE model has one entry a byte");
  if (!options_.ignore_merges) return;
  tokens_ = std::move(tokens);
  whole_.reserve(tokens_.size());
  for (const auto& [bytes, id] : tokens_) whole_.emplace(bytes, id);
}

BpeEncoder::BpeEncoder(const BpeModel& model) : model_(model), cache_(kCacheEntries) {}

void BpeEncoder::encode(std::string_view piece, std::vector<std::int32_t>& ids) {
  CacheEntry* entry = nullptr;
  if (piece.size() <= kCachedBytes) {
    entry = &cache_[XXH3_64bits(piece.data(), piece.size()) % kCacheEntries];
    if (entry->bytes == piece.size() && std::memcmp(entry->text, piece.data(), piece.size()) == 0) {
      ids.insert(ids.end(), entry->ids, entry->ids + entry->count);
      return;
    }
  }
  const std::size_t first = ids.size();
  const auto whole = model_.options_.ignore_merges ? model_.whole_.find(piece) : model_.whole_.end();
  if (whole != model_.whole_.end()) {
    ids.push_back(whole->second);
  } else {
    start(piece);
    if (word_.size() <= kShortWord) {
      merge_short(ids);
    } else {
      merge_long(ids);
    }
  }
  const std::size_t count = ids.size() - first;
  if (entry != nullptr && count <= kCachedIds && !piece.empty()) {
    entry->bytes = static_cast<std::uint8_t>(piece.size());
    entry->count = static_cast<std::uint8_t>(count);
    std::memcpy(entry->text, piece.data(), piece.size());
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry->ids);
  }
}

// The tokens of single bytes.
void BpeEncoder::start(std::string_view piece) {
  word_.clear();
  bool unknown = false;
  for (const char c : piece) {
    const std::int32_t id = model_.byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      word_.push_back(id);
    } else if (model_.options_.unk && !(unknown && model_.options_.fuse_unk)) {
      word_.push_back(*model_.options_.unk);
    }
    unknown = id < 0;
  }
}

void BpeEncoder::merge_short(std::vector<std::int32_t>& ids) {
  const MergeTable& merges = model_.merges_;
  pairs_.clear();
  for (std::size_t i = 0; i + 1 < word_.size(); ++i) pairs_.push_back(merges.find(word_[i], word_[i + 1]));
  while (!pairs_.empty()) {
    const auto best = std::min_element(pairs_.begin(), pairs_.end(),
                                       [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (best->rank == MergeTable::kNone) break;
    const auto i = best - pairs_.begin();
    const auto at = static_cast<std::size_t>(i);
    word_[at] = best->id;
    word_.erase(word_.begin() + i + 1);
    pairs_.erase(best);
    if (at > 0) pairs_[at - 1] = merges.find(word_[at - 1], word_[at]);
    if (at < pairs_.size()) pairs_[at] = merges.find(word_[at], word_[at + 1]);
  }
  ids.insert(ids.end(), word_.begin(), word_.end());
}

void BpeEncoder::merge_long(std::vector<std::int32_t>& ids) {
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t left;
    std::int32_t right;
    std::int32_t result;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto length = static_cast<std::int64_t>(word_.size());
  if (length > INT32_MAX) throw_run_error("a piece of {} bytes without a break cannot be tokenized", length);
  symbols_.clear();
  for (std::int32_t i = 0; i < length; ++i) {
    symbols_.push_back({word_[static_cast<std::size_t>(i)], i - 1, i + 1 < length ? i + 1 : -1, true});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto symbol = [&](std::int32_t i) -> Symbol& { return symbols_[static_cast<std::size_t>(i)]; };
  const auto offer = [&](std::int32_t i) {
    if (i < 0 || symbol(i).next < 0) return;
    const std::int32_t left = symbol(i).id;
    const std::int32_t right = symbol(symbol(i).next).id;
    const MergeTable::Result merge = model_.merges_.find(left, right);
    if (merge.rank != MergeTable::kNone) queue.push({merge.rank, i, left, right, merge.id});
  };
  for (std::int32_t i = 0; i < length; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbol(top.at);
    if (!left.alive || left.id != top.left || left.next < 0 || symbol(left.next).id != top.right) continue;
    Symbol& right = symbol(left.next);
    left.id = top.result;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbol(left.next).previous = top.at;
    offer(left.previous);
    offer(top.at);
  }
  for (std::int32_t i = 0; i >= 0 && length > 0; i = symbol(i).next) ids.push_back(symbol(i).id);
}

}  // namespace meshtrain
