#include "faults/rounds.h"

namespace meshtrain::faults {
namespace {

const std::vector<Fault> kFaults = {Fault::kKillRank, Fault::kKillSupervisor, Fault::kStopRank,
                                    Fault::kFillDisk, Fault::kReadOnly,       Fault::kTruncate,
                                    Fault::kFlipBit};

constexpr std::uint64_t kSeeds = 3;
constexpr std::uint64_t kChains = 12;
constexpr int kLinks = 5;

}  // namespace

std::vector<Round> some_rounds() {
  return {
      {{{Fault::kKillRank, "micro-step"}}, 1},
      {{{Fault::kKillRank, "before sync"}}, 1, /*restarts=*/true},
      {{{Fault::kKillRank, "write"}}, 1},
      {{{Fault::kKillSupervisor, "collective"}}, 1},
      {{{Fault::kKillSupervisor, "before rename"}}, 1},
      {{{Fault::kKillSupervisor, "remove"}}, 1},
      {{{Fault::kStopRank, "collective"}}, 1},
      {{{Fault::kFillDisk, "write"}}, 1},
      {{{Fault::kReadOnly, "sync"}}, 1},
      {{{Fault::kTruncate, "rename"}}, 1},
      {{{Fault::kFlipBit, "copy"}}, 1},
      {{{Fault::kKillRank, ""}, {Fault::kKillSupervisor, ""}}, 1},
  };
}

std::vector<Round> all_rounds() {
  std::vector<Round> rounds;
  for (const Fault fault : kFaults) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
      rounds.push_back({{{fault, ""}}, seed});
      for (const Phase& phase : phases()) rounds.push_back({{{fault, std::string(phase.name)}}, seed});
    }
  }
  for (const Fault fault : {Fault::kKillRank, Fault::kStopRank}) {
    rounds.push_back({{{fault, ""}}, 1, /*restarts=*/true});
    for (const Phase& phase : phases()) rounds.push_back({{{fault, std::string(phase.name)}}, 1, true});
  }
  // One fault after another; disks and permissions would need a place of their own from the start.
  for (std::uint64_t seed = 1; seed <= kChains; ++seed) {
    Random random(seed);
    Round round{{}, seed};
    for (int i = 0; i < kLinks; ++i) {
      const std::vector<Fault> faults = {Fault::kKillRank, Fault::kKillSupervisor, Fault::kStopRank};
      const Fault fault = random.of(faults);
      round.strikes.push_back({fault, random.coin() ? "" : std::string(random.of(phases()).name)});
    }
    rounds.push_back(round);
  }
  return rounds;
}

}  // namespace meshtrain::faults
