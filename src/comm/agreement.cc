#include "comm/agreement.h"

#include <array>

namespace meshtrain {

bool any_rank(Communicator& ranks, bool says_so) {
  std::int32_t value = says_so ? 1 : 0;
  const Tensor tensor(&value, DType::kI32, {1});
  ranks.all_reduce(tensor, tensor, ReduceOp::kMax, Traffic::kOther);
  return value != 0;
}

std::string text_of_first(Communicator& ranks, const std::string& text) {
  auto length = static_cast<std::int64_t>(text.size());
  ranks.broadcast(Tensor(&length, DType::kI64, {1}), 0, Traffic::kOther);
  std::string result = text;
  result.resize(static_cast<std::size_t>(length));
  ranks.broadcast(Tensor(result.data(), DType::kU8, {length}), 0, Traffic::kOther);
  return result;
}

std::vector<std::string> texts_at_first(Communicator& ranks, const std::string& text) {
  std::string own = text;
  const std::vector<std::int64_t> lengths = gather_from_ranks<std::int64_t>(
      ranks, std::array{static_cast<std::int64_t>(own.size())}, Traffic::kOther);
  const auto bytes_of = [](std::string& bytes) {
    return Tensor(bytes.data(), DType::kU8, {static_cast<std::int64_t>(bytes.size())});
  };
  if (ranks.rank() != 0) {
    ranks.send(bytes_of(own), 0, Traffic::kOther);
    return {};
  }
  std::vector<std::string> texts = {own};
  for (std::size_t i = 1; i < lengths.size(); ++i)
    texts.emplace_back(static_cast<std::size_t>(lengths[i]), '\0');
  std::vector<Transfer> receives;
  for (std::size_t i = 1; i < texts.size(); ++i) {
    receives.push_back({.peer = static_cast<int>(i), .data = bytes_of(texts[i])});
  }
  ranks.exchange({}, receives, Traffic::kOther);
  return texts;
}

}  // namespace meshtrain
