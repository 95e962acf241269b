// The training that faults befall: what it trains, how it is started and watched.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "faults/faults.h"
#include "program.h"

namespace meshtrain::faults {

inline constexpr std::int64_t kSteps = 18;
inline constexpr std::int64_t kEvery = 3;  // between checkpoints
inline constexpr std::int64_t kKeep = 2;

// What is trained: a model, a precision, evaluations or none.
struct Job {
  std::string name;
  Arguments keys;
};
const std::vector<Job>& jobs();

// Four ranks that cut layers in `tp` parts; runs of the same tp give the same bits.
struct Mesh {
  int ranks = 1;
  Arguments keys;
};
// Of the runs that are struck: four ranks each; and of the runs that go on afterwards.
const std::vector<Mesh>& meshes_of_four(int tp);
const std::vector<Mesh>& meshes_of_any(int tp);

// A rank that waits somewhere.
struct Pause {
  std::string phase;
  std::int64_t step = 0;
  int rank = 0;
};

// `meshtrain train a.toml` in `folder`, which is watched. Its ranks die with it when it goes.
class Training {
 public:
  // `plain`: as somebody whom permissions hold back (sandbox.h).
  Training(const std::filesystem::path& folder, const Mesh& mesh, const Arguments& words,
           const std::optional<Pause>& pause, bool plain);

  // Waits until the rank that is to wait does so; false where the run ended without.
  bool wait_for_pause();
  // Waits until `holds`; false where the run ended before.
  bool wait_until(const std::function<bool()>& holds) { return process_.wait_until(holds); }
  // Its ranks, in order; empty before they are all there.
  std::vector<pid_t> ranks() const;
  // Of the supervisor.
  void signal(int number) const { process_.signal(number); }

  // Whoever waits goes on, now and later; `meanwhile` is called again and again.
  Outcome finish(const std::function<void()>& meanwhile = {});

 private:
  std::filesystem::path pause_file_;
  int count_;
  Process process_;
};

}  // namespace meshtrain::faults
