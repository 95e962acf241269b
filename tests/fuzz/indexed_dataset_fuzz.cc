// Megatron's index and llm.c's header, from any bytes: they are refused, or all that they promise can be read.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/indexed_dataset.h"
#include "data/llmc_tokens.h"

namespace {

using meshtrain::TokenSource;

void require(bool holds) {
  if (!holds) std::abort();
}

std::vector<std::int32_t> read(const TokenSource& source, std::int64_t begin, std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  source.read(begin, ids);
  return ids;
}

void read_everything(const TokenSource& source) {
  const std::int64_t size = source.size();
  const std::vector<std::int32_t> all = read(source, 0, size);
  for (std::int64_t begin = 0; begin < size; begin += 1 + size / 7) {
    const std::int64_t count = std::min<std::int64_t>(size - begin, 5);
    const std::vector<std::int32_t> part = read(source, begin, count);
    require(std::equal(part.begin(), part.end(), all.begin() + begin));
  }
}

void sequences_cover_it(const meshtrain::IndexedDataset& data) {
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < data.sequences(); ++i) tokens += std::ssize(data.sequence(i));
  require(tokens == data.size());
  require(data.document_start(0) == 0 && data.document_start(data.documents()) == data.sequences());
}

}  // namespace

// The first two bytes say how many of the others are the index.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  std::uint16_t split = 0;
  std::memcpy(&split, data, 2);
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 2, size - 2);
  const std::size_t index_size = std::min<std::size_t>(split, bytes.size());
  // Copies, so that a read past either end is seen.
  const std::vector<std::byte> index(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(index_size));
  const std::vector<std::byte> tokens(bytes.begin() + static_cast<std::ptrdiff_t>(index_size), bytes.end());
  try {
    const meshtrain::IndexedDataset source(index, tokens, "fuzz");
    read_everything(source);
    sequences_cover_it(source);
  } catch (const meshtrain::UserError&) {
  }
  try {
    const meshtrain::LlmcTokens source(tokens, "fuzz");
    read_everything(source);
  } catch (const meshtrain::UserError&) {
  }
  return 0;
}
