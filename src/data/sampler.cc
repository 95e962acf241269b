#include "data/sampler.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace meshtrain {
namespace {

constexpr std::uint32_t kRounds = 8;

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch)
    : size_(static_cast<std::uint64_t>(size)),
      half_bits_(std::max(1U, (static_cast<unsigned>(std::bit_width(size_ - 1)) + 1) / 2)),
      stream_(seed, fmt::format("data/order/epoch {}", epoch)) {
  check(size >= 1 && size <= std::int64_t{1} << 62U, "a permutation has at least one element");
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (stream_.bits(round << 32U | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::operator()(std::int64_t i) const {
  auto value = static_cast<std::uint64_t>(i);
  check(value < size_, "the element is in the permutation");
  do {
    value = encrypt(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

BatchSampler::BatchSampler(const TokenSource& source, const BatchOptions& options)
    : source_(source), options_(options), samples_(0) {
  check(options.seq_len > 0 && options.vocab > 0, "a sampler needs a sequence length and a vocabulary");
  samples_ = source.size() > 0 ? (source.size() - 1) / options.seq_len : 0;
  if (samples_ < 1) {
    throw_user_error(
        "the tokens \"{}\" are too few: {} tokens, but one sample of data.seq_len = {} takes {}. Use more text "
        "or a "
        "shorter data.seq_len.",
        source.name(), source.size(), options.seq_len, options.seq_len + 1);
  }
}

std::int64_t BatchSampler::data_sample(std::int64_t i) const {
  check(i >= 0, "a sample index is not negative");
  const std::int64_t within = i % samples_;
  return options_.shuffle ? Permutation(samples_, options_.seed, i / samples_)(within) : within;
}

Batch BatchSampler::batch(std::int64_t first, std::int64_t count) const {
  const auto seq_len = static_cast<std::size_t>(options_.seq_len);
  Batch batch{count, options_.seq_len, {}, {}};
  batch.tokens.resize(static_cast<std::size_t>(count) * seq_len);
  batch.targets.resize(batch.tokens.size());
  std::vector<std::int32_t> sample(seq_len + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = data_sample(first + i) * options_.seq_len;
    source_.read(begin, sample);
    const auto bad = std::find_if(sample.begin(), sample.end(),
                                  [&](std::int32_t id) { return id < 0 || id >= options_.vocab; });
    if (bad != sample.end()) {
      const std::int64_t position = begin + (bad - sample.begin());
      throw_run_error(
          "the tokens \"{}\" hold the id {} at position {}, but the vocabulary has {} ids (0 to {}). They were "
          "made "
          "with another tokenizer, or the file is damaged.",
          source_.name(), source_.id_at(position), position, options_.vocab, options_.vocab - 1);
    }
    const auto row = static_cast<std::ptrdiff_t>(i * options_.seq_len);
    std::copy(sample.begin(), sample.end() - 1, batch.tokens.begin() + row);
    std::copy(sample.begin() + 1, sample.end(), batch.targets.begin() + row);
  }
  source_.let_go();
  return batch;
}

}  // namespace meshtrain
