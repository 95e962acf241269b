#include "data/indexed_dataset_writer.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace meshtrain {

IndexedDatasetWriter::IndexedDatasetWriter(const std::string& prefix, std::int64_t vocab,
                                           std::int64_t longest_sequence)
    : prefix_(prefix),
      vocab_(vocab),
      longest_sequence_(longest_sequence),
      type_(token_type_for(vocab)),
      bin_(prefix + ".bin"),
      idx_(prefix + ".idx") {
  check(longest_sequence > 0 && longest_sequence <= INT32_MAX, "a sequence's length fits 32 bits");
}

void IndexedDatasetWriter::add(std::span<const std::int32_t> ids) {
  while (!ids.empty()) {
    if (open_tokens_ == longest_sequence_) end_sequence();
    const auto count =
        static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(ids), longest_sequence_ - open_tokens_));
    const std::span<const std::int32_t> part = ids.first(count);
    check(std::all_of(part.begin(), part.end(), [&](std::int32_t id) { return id >= 0 && id < vocab_; }),
          "an id to write is in the vocabulary");
    if (type_ == TokenType::kU16) {
      narrow_.assign(part.begin(), part.end());
      bin_.write(std::as_bytes(std::span(narrow_)));
    } else {
      bin_.write(std::as_bytes(part));
    }
    open_tokens_ += static_cast<std::int64_t>(count);
    tokens_ += static_cast<std::int64_t>(count);
    ids = ids.subspan(count);
  }
}

void IndexedDatasetWriter::end_sequence() {
  lengths_.push_back(static_cast<std::int32_t>(open_tokens_));
  open_tokens_ = 0;
}

void IndexedDatasetWriter::end_document() {
  end_sequence();
  document_starts_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void IndexedDatasetWriter::commit() {
  check(open_tokens_ == 0, "the last document has ended");
  bin_.finish();
  idx_.write(std::as_bytes(std::span("MMIDIDX\0", 9)));
  idx_.write_value(std::uint64_t{1});
  idx_.write_value(static_cast<std::uint8_t>(type_));
  idx_.write_value(static_cast<std::uint64_t>(lengths_.size()));
  idx_.write_value(static_cast<std::uint64_t>(document_starts_.size()));
  idx_.write(std::as_bytes(std::span(lengths_)));
  std::int64_t pointer = 0;
  for (const std::int32_t length : lengths_) {
    idx_.write_value(pointer);
    pointer += length * size_of(type_);
  }
  idx_.write(std::as_bytes(std::span(document_starts_)));
  idx_.finish();
  const HeldSignals waiting;  // both or neither
  std::error_code ignored;
  std::filesystem::remove(prefix_ + ".idx", ignored);
  bin_.commit();
  idx_.commit();
}

}  // namespace meshtrain
