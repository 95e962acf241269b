#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::size_t kHeaderBytes = 34;

template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

template <class T>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof value);
    if constexpr (sizeof(T) > sizeof(std::int32_t)) {
      out[i] = value == static_cast<std::int32_t>(value) ? static_cast<std::int32_t>(value) : -1;
    } else {
      out[i] = static_cast<std::int32_t>(value);  // NOLINT(bugprone-signed-char-misuse): int8 is a number here
    }
  }
}

}  // namespace

std::int64_t size_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  return 0;
}

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::kU8:
      return "uint8";
    case TokenType::kI8:
      return "int8";
    case TokenType::kI16:
      return "int16";
    case TokenType::kU16:
      return "uint16";
    case TokenType::kI32:
      return "int32";
    case TokenType::kI64:
      return "int64";
  }
  return "?";
}

TokenType token_type_for(std::int64_t vocab) {
  return vocab < 65500 ? TokenType::kU16 : TokenType::kI32;
}

IndexedDataset IndexedDataset::open(const std::string& prefix) {
  IndexedDataset data;
  data.prefix_ = prefix;
  data.index_file_ = MappedFile::open(prefix + ".idx", "the token index");
  data.token_file_ = MappedFile::open(prefix + ".bin", "the token file");
  data.index_ = data.index_file_.bytes();
  data.tokens_ = data.token_file_.bytes();
  data.parse();
  return data;
}

IndexedDataset::IndexedDataset(std::span<const std::byte> index, std::span<const std::byte> tokens,
                               std::string prefix)
    : prefix_(std::move(prefix)), index_(index), tokens_(tokens) {
  parse();
}

void IndexedDataset::refuse(const std::string& what) const {
  throw_user_error("the token index \"{}.idx\" is broken or not Megatron's: {}. Tokenize the text again.",
                   prefix_, what);
}

void IndexedDataset::parse() {
  parse_header();
  find_runs();
  check_documents();
}

void IndexedDataset::parse_header() {
  if (index_.size() < kHeaderBytes) {
    refuse(fmt::format("it has {} bytes, and its header alone takes {}", index_.size(), kHeaderBytes));
  }
  if (std::memcmp(index_.data(), kMagic.data(), kMagic.size()) != 0) refuse("it does not start with MMIDIDX");
  const auto version = load<std::uint64_t>(index_, 9);
  if (version != 1) refuse(fmt::format("it has version {}, and only 1 is known", version));
  const auto code = load<std::uint8_t>(index_, 17);
  if (code == 6 || code == 7)
    refuse(fmt::format("its type code {} is floating point, which is no token", code));
  if (code < 1 || code > 8) refuse(fmt::format("its type code {} is none of 1 to 5 and 8", code));
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<std::uint64_t>(index_, 18);
  const auto indices = load<std::uint64_t>(index_, 26);
  // Each count is first held against the file's size, so that no product below can overflow.
  const std::size_t body = index_.size() - kHeaderBytes;
  if (sequences > body / 12)
    refuse(fmt::format("it has {} bytes but says {} sequences", index_.size(), sequences));
  if (indices > body / 8) refuse(fmt::format("it has {} bytes but says {} documents", index_.size(), indices));
  if (indices == 0) refuse("its list of documents is empty, where at least the end of the last one is needed");
  const std::size_t needed = sequences * 12 + indices * 8;
  if (body != needed && body != needed + sequences) {
    refuse(fmt::format("it has {} bytes, but {} sequences and {} document indices take {}", index_.size(),
                       sequences, indices, kHeaderBytes + needed));
  }
  sequences_ = static_cast<std::int64_t>(sequences);
  documents_ = static_cast<std::int64_t>(indices) - 1;
}

std::int64_t IndexedDataset::sequence_length(std::int64_t i) const {
  return load<std::int32_t>(index_, kHeaderBytes + static_cast<std::size_t>(i) * 4);
}

std::int64_t IndexedDataset::sequence_pointer(std::int64_t i) const {
  return load<std::int64_t>(
      index_, kHeaderBytes + static_cast<std::size_t>(sequences_) * 4 + static_cast<std::size_t>(i) * 8);
}

std::int64_t IndexedDataset::document_start(std::int64_t i) const {
  return load<std::int64_t>(
      index_, kHeaderBytes + static_cast<std::size_t>(sequences_) * 12 + static_cast<std::size_t>(i) * 8);
}

void IndexedDataset::find_runs() {
  const std::int64_t width = size_of(type_);
  const auto bytes = static_cast<std::int64_t>(tokens_.size());
  std::int64_t expected = -1;
  for (std::int64_t i = 0; i < sequences_; ++i) {
    const std::int64_t length = sequence_length(i);
    const std::int64_t pointer = sequence_pointer(i);
    if (length < 0) refuse(fmt::format("sequence {} has {} tokens", i, length));
    if (pointer < 0 || pointer % width != 0) {
      refuse(
          fmt::format("sequence {} starts at byte {}, which is no multiple of {} from 0", i, pointer, width));
    }
    if (pointer > bytes || length > (bytes - pointer) / width) {
      throw_user_error(
          "the token file \"{0}.bin\" is too short: sequence {1} of \"{0}.idx\" takes {2} tokens of {3} bytes "
          "from "
          "byte {4} on, but the file has {5} bytes. It was cut off, or the two files do not belong together.",
          prefix_, i, length, width, pointer, bytes);
    }
    if (length == 0) continue;
    if (pointer != expected) runs_.push_back({size_, pointer});
    expected = pointer + length * width;
    // Overlapping sequences could add up beyond 64 bits only with 2^32 sequences of 2^31 tokens.
    if (size_ > std::numeric_limits<std::int64_t>::max() - length) refuse("its lengths add up beyond 64 bits");
    size_ += length;
  }
}

void IndexedDataset::check_documents() const {
  std::int64_t previous = 0;
  for (std::int64_t i = 0; i <= documents_; ++i) {
    const std::int64_t start = document_start(i);
    if ((i == 0 && start != 0) || start < previous || start > sequences_) {
      refuse(fmt::format("document {} starts at sequence {}", i, start));
    }
    previous = start;
  }
  if (previous != sequences_) {
    refuse(fmt::format("its documents end at sequence {} of {}", previous, sequences_));
  }
}

bool IndexedDataset::starts_behind(std::int64_t token, const Run& run) {
  return token < run.first_token;
}

void IndexedDataset::convert(std::int64_t byte, std::span<std::int32_t> out) const {
  const std::byte* from = tokens_.data() + byte;
  switch (type_) {
    case TokenType::kU8:
      return widen<std::uint8_t>(from, out);
    case TokenType::kI8:
      return widen<std::int8_t>(from, out);
    case TokenType::kI16:
      return widen<std::int16_t>(from, out);
    case TokenType::kU16:
      return widen<std::uint16_t>(from, out);
    case TokenType::kI32:
      return widen<std::int32_t>(from, out);
    case TokenType::kI64:
      return widen<std::int64_t>(from, out);
  }
}

void IndexedDataset::read(std::int64_t begin, std::span<std::int32_t> out) const {
  check(begin >= 0 && static_cast<std::int64_t>(out.size()) <= size_ - begin,
        "tokens to read are in the data set");
  token_file_.check_whole();
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin, starts_behind);
  while (!out.empty()) {
    const Run& current = *(run - 1);
    const std::int64_t end = run == runs_.end() ? size_ : run->first_token;
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(end - begin, std::ssize(out)));
    convert(current.first_byte + (begin - current.first_token) * size_of(type_), out.first(count));
    out = out.subspan(count);
    begin += static_cast<std::int64_t>(count);
    ++run;
  }
}

std::int64_t IndexedDataset::id_at(std::int64_t position) const {
  if (type_ != TokenType::kI64) return TokenSource::id_at(position);
  check(position >= 0 && position < size_, "the token is in the data set");
  token_file_.check_whole();
  const Run& run = *(std::upper_bound(runs_.begin(), runs_.end(), position, starts_behind) - 1);
  return load<std::int64_t>(tokens_,
                            static_cast<std::size_t>(run.first_byte + (position - run.first_token) * 8));
}

std::vector<std::int32_t> IndexedDataset::sequence(std::int64_t i) const {
  check(i >= 0 && i < sequences_, "the sequence is in the data set");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(sequence_length(i)));
  if (!ids.empty()) convert(sequence_pointer(i), ids);
  return ids;
}

}  // namespace meshtrain
