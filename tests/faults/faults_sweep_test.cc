#include "faults/rounds.h"

namespace meshtrain::faults {
namespace {

using FaultsSweep = FaultRound;

TEST_P(FaultsSweep, EndsAsIfNothingHadHappened) {
  survive(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Rounds, FaultsSweep, testing::ValuesIn(all_rounds()),
                         [](const auto& round) { return round.param.name(); });

}  // namespace
}  // namespace meshtrain::faults
