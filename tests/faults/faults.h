// What can befall a training run, and how it is done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain::faults {

enum class Fault : std::uint8_t {
  kKillRank,        // SIGKILL
  kKillSupervisor,  // SIGKILL
  kStopRank,        // SIGSTOP
  kFillDisk,
  kReadOnly,  // the folder of checkpoints
  kTruncate,  // a file of the newest checkpoint, after the supervisor was killed
  kFlipBit,   // likewise
};
std::string_view name_of(Fault fault);
inline bool damages_checkpoint(Fault fault) {
  return fault == Fault::kTruncate || fault == Fault::kFlipBit;
}

// Where in a run a fault strikes. The names that MESHTRAIN_PAUSE_AT takes (base/pause_point.h); "": at any
// moment.
struct Phase {
  std::string_view name;
  bool of_save = true;  // else of a step
  bool async_only = false;
  bool leader_only = false;  // else every rank comes there
  bool cleans = false;       // only where an older checkpoint goes
};
const std::vector<Phase>& phases();
inline const Phase kAnyMoment = {"", false, false, false, false};
const Phase& phase_called(std::string_view name);  // throws std::out_of_range

// The numbers that a round is made of: the same for a seed everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // In [0, count).
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(count));
  }
  bool coin() { return below(2) == 1; }
  template <class T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }

 private:
  std::mt19937_64 engine_;
};

// Cuts off the end of a shard of the checkpoint or of its manifest, or flips one of their bits; returns the
// file.
std::filesystem::path damage(const std::filesystem::path& checkpoint, Fault fault, Random& random);

// Takes away, or gives back, the permission to write to a folder; `below`: and to the folders in it.
void set_writable(const std::filesystem::path& folder, bool writable, bool below);

}  // namespace meshtrain::faults
