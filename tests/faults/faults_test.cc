#include "faults/rounds.h"

namespace meshtrain::faults {
namespace {

using Faults = FaultRound;

TEST_P(Faults, EndsAsIfNothingHadHappened) {
  survive(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Rounds, Faults, testing::ValuesIn(some_rounds()),
                         [](const auto& round) { return round.param.name(); });

}  // namespace
}  // namespace meshtrain::faults
