#include "gradsync/grad_sync.h"

#include <array>

#include "base/error.h"
#include "gradsync/strategies.h"

namespace meshtrain {
namespace {

struct Strategy {
  bool states = false;  // sharded: masters and optimizer state
  bool gradients = false;
  bool weights = false;
  std::unique_ptr<GradSync> (*make)(const GradSyncParts& parts, const GradSyncOptions& options) = nullptr;
};

constexpr std::array kTable = {
    Strategy{.make = gradsync::make_ddp},
    Strategy{.states = true, .make = gradsync::make_zero1},
    Strategy{.states = true, .gradients = true, .make = gradsync::make_zero2},
    Strategy{.states = true, .gradients = true, .weights = true, .make = gradsync::make_zero3},
};

const Strategy& strategy(int zero) {
  check(zero >= 0 && zero < static_cast<int>(kTable.size()), "a ZeRO stage is 0 to 3");
  return kTable[static_cast<std::size_t>(zero)];
}

}  // namespace

Sharding sharding_of(int zero, const Communicator& ranks) {
  const Strategy& s = strategy(zero);
  if (!s.states) return {};
  return {.parts = ranks.size(), .part = ranks.rank(), .gradients = s.gradients, .weights = s.weights};
}

std::unique_ptr<GradSync> make_grad_sync(const GradSyncParts& parts, const GradSyncOptions& options) {
  return strategy(options.zero).make(parts, options);
}

}  // namespace meshtrain
