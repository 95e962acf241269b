#include "comm/agreement.h"

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

}  // namespace meshtrain
