#include "train/processors.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/log.h"
#include "comm/agreement.h"

namespace meshtrain {

Bf16Products agree_on_bf16_products(Communicator& ranks, const ops::Processor& own) {
  const bool some_in_fp32 = any_rank(ranks, !ops::multiplies_bf16(own));
  const bool some_in_bf16 = any_rank(ranks, ops::multiplies_bf16(own));
  const std::vector<std::string> vectors = texts_at_first(ranks, own.vectors);
  const auto other =
      std::find_if(vectors.begin(), vectors.end(), [&](const std::string& name) { return name != vectors[0]; });
  if (other != vectors.end()) {
    notice(
        "the processors of the ranks differ: rank 0 has {}, rank {} {}. The same mesh on like processors "
        "rounds "
        "some sums otherwise.",
        vectors[0], other - vectors.begin(), *other);
  }
  if (some_in_fp32 && some_in_bf16 && ranks.rank() == 0) {
    notice(
        "the processors of the ranks differ: not all multiply bf16 numbers faster than fp32 numbers. All ranks "
        "compute products of bf16 numbers in fp32, so that their results agree.");
  }
  return some_in_fp32 ? Bf16Products::kFp32 : Bf16Products::kFastest;
}

}  // namespace meshtrain
