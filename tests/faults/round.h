// One round: a training is struck by one or more faults, goes on after each, and ends as if nothing had
// happened.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "faults/faults.h"
#include "faults/sandbox.h"
#include "faults/training.h"
#include "program.h"

namespace meshtrain::faults {

struct Strike {
  Fault fault = Fault::kKillRank;
  std::string phase;  // "": any moment
};

struct Round {
  std::vector<Strike> strikes;
  std::uint64_t seed = 0;  // of all that is not said: job, meshes, ranks, steps, bytes
  // Whether the supervisor restarts the ranks itself, in one call of the program (faults that leave it alive).
  bool restarts = false;

  // "KillRank_BeforeRename_3", as a test is called.
  std::string name() const;
};

inline std::ostream& operator<<(std::ostream& stream, const Round& round) {
  return stream << round.name();
}

// MESHTRAIN_FAULTS_SEED=N in the environment makes all rounds different ones.
class FaultRound : public ProgramTest, public testing::WithParamInterface<Round> {
 protected:
  FaultRound();
  ~FaultRound() override;

  void survive(const Round& round);

 private:
  // What a strike leaves for the run that goes on.
  struct Left {
    std::int64_t newest = 0;  // step of the newest checkpoint that is whole; 0: none
    std::int64_t done = 0;    // last step that was recorded
    std::int64_t most_redone = 0;
    std::string damaged = {};  // a checkpoint's file
  };

  void prepare(const Round& round);
  void strike(const Strike& strike);
  Pause choose_pause(const Strike& strike);
  void wait_for_moment(Training& training, const Strike& strike);
  void do_fault(Training& training, const Strike& strike, const std::optional<Pause>& pause);
  void expect_failure(const Strike& strike, const Outcome& outcome) const;
  std::string what_is_said(const Strike& strike) const;
  void undo(const Strike& strike);
  void go_on();

  Training start(const Mesh& mesh, const std::optional<Pause>& pause);
  Arguments words(const std::string& run_folder) const;
  std::vector<std::int64_t> committed() const;
  std::int64_t last_recorded() const;

  // checks.cc
  void expect_went_on(const std::string& err) const;
  std::string digest_of(const std::string& checkpoint) const;
  void expect_same_end() const;
  void expect_no_strays() const;
  void expect_no_processes();

  Random random_{0};
  int tp_ = 1;
  bool async_ = false;
  bool restarts_ = false;
  bool elastic_ = false;
  bool plain_ = false;
  std::string run_ = "run";
  std::string checkpoints_ = "run/checkpoints";
  const Job* job_ = nullptr;
  std::unique_ptr<SmallDisk> disk_;
  std::vector<pid_t> seen_;  // ranks
  std::string victim_;       // "rank 2 (process 4711)"
  std::optional<Left> left_;
  bool ended_ = false;
  std::string story_;  // what was done, for who reads a failure
};

}  // namespace meshtrain::faults
