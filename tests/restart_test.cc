// Runs that lose ranks and go on by themselves: to the same bits, with nothing left behind.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cerrno>
#include <regex>

#include "launch/launch_testing.h"
#include "program.h"

namespace meshtrain {
namespace {

constexpr int kSteps = 30;
const Arguments kFour = {"--ranks", "4"};

class Restart : public ProgramTest {
 protected:
  Restart() {
    write_config("a.toml", "gpt2-tiny");
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come here
  }
  ~Restart() override { prctl(PR_SET_CHILD_SUBREAPER, 0); }

  static Arguments train(const Arguments& words) {
    return Arguments{"train", "a.toml"} +
           set({"train.steps=" + std::to_string(kSteps), "train.global_batch=12", "train.micro_batch=1",
                "numerics.reduction=tree", "checkpoint.every=5"}) +
           words;
  }
  // The victim waits before the gradients of step 13 are combined, the others for it.
  std::unique_ptr<Process> start(int victim, const Arguments& words) const {
    let_go();
    return std::make_unique<Process>(MESHTRAIN_BINARY, train(words), dir_,
                                     pausing_at("collective:13:" + std::to_string(victim)));
  }

  std::int64_t steps_done() const {
    return exists("run/metrics.jsonl") ? count(read("run/metrics.jsonl"), "\n") : 0;
  }

  // The ranks' processes, once the victim waits.
  std::vector<pid_t> ranks_of(Process& process, std::size_t count = 4) const {
    if (!wait_for_pause(process)) throw std::runtime_error("no rank waits: " + read(".stderr"));
    std::vector<pid_t> ranks = children_of(process.pid());
    if (ranks.size() != count) throw std::runtime_error("so many ranks: " + std::to_string(ranks.size()));
    return ranks;
  }
  // The one that takes the victim's place waits again.
  void kill_and_pause_again(pid_t victim) const {
    kill(victim, SIGSTOP);
    EXPECT_TRUE(wait_until([&] { return process_state(victim) == 'T'; }));
    let_go();
    kill(victim, SIGKILL);
  }

  static void expect_nothing_is_left() {
    EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD) << "a process is left";
  }

  // It has ended well, after so many restarts, with the bits of a run of one rank that met no fault. What it
  // wrote to standard error.
  std::string expect_same_end(Process& process, int restarts, const Arguments& words = {}) const {
    const Outcome outcome = process.finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    EXPECT_EQ(count(outcome.err, " Restart "), restarts) << outcome;
    EXPECT_EQ(count(outcome.err, "held another run"), 0) << outcome;
    expect_nothing_is_left();
    fs::remove_all(path("whole"));
    succeed(train(words + set({"output.dir=whole"})));
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole")) << outcome;
    EXPECT_EQ(read_json("run/summary.json")["steps"], read_json("whole/summary.json")["steps"]);
    EXPECT_FALSE(exists("run.1"));
    return outcome.err;
  }
};

TEST_F(Restart, AKilledRankIsReplacedAndTheBitsAreTheSame) {
  int victim = 0;
  for (const Arguments& keys : {set({"mesh.zero=0"}), set({"mesh.zero=3", "checkpoint.async=true"}),
                                set({"mesh.pp=2", "mesh.zero=1", "mesh.schedule=zb-h1"}),
                                set({"mesh.pp=2", "checkpoint.async=true"})}) {
    SCOPED_TRACE(testing::PrintToString(keys));
    fs::remove_all(path("run"));
    const auto process = start(victim, kFour + Arguments{"--max-restarts", "2"} + keys);
    const std::vector<pid_t> ranks = ranks_of(*process);
    const pid_t killed = ranks[static_cast<std::size_t>(victim)];
    kill(killed, SIGKILL);
    const std::string err = expect_same_end(*process, 1);
    const std::string name = "rank " + std::to_string(victim);
    EXPECT_TRUE(std::regex_search(
        err, std::regex("meshtrain: " + name + " \\(process " + std::to_string(killed) +
                        "\\) was killed by signal 9 [^\n]* Restart 1 of 2 from run/checkpoints/step-\\d+: " +
                        name + " was lost, continuing with dp=\\d \\(4 ranks\\) as before\n")))
        << err;
    ++victim;
  }
}

TEST_F(Restart, TwiceAndThenTheRestartsAreUsedUp) {
  for (const int allowed : {2, 1}) {
    fs::remove_all(path("run"));
    const auto process = start(3, kFour + Arguments{"--max-restarts", std::to_string(allowed)});
    const std::vector<pid_t> first = ranks_of(*process);
    kill_and_pause_again(first[3]);
    const std::vector<pid_t> second = ranks_of(*process);
    for (const pid_t rank : first) EXPECT_EQ(process_state(rank), 0);
    kill(second[3], SIGKILL);
    if (allowed == 2) {
      expect_same_end(*process, 2);
      continue;
    }
    const Outcome outcome = process->finish();
    EXPECT_EQ(outcome.status, 1) << outcome;
    expect_contains(outcome.err, {"meshtrain: rank 3 (process ",
                                  "--max-restarts 1: the run was restarted 1 time. "
                                  "The newest checkpoint is run/checkpoints/step-",
                                  "to resume from it: `meshtrain train run --resume`"});
    expect_nothing_is_left();
  }
}

// An older run is moved out of the way once, and the attempts are one run.
TEST_F(Restart, BeforeItsFirstCheckpointARunBeginsAnew) {
  succeed(train(set({"train.seed=2", "train.steps=10"})));
  const std::string older = read("run/metrics.jsonl");
  const Arguments keys = set({"checkpoint.every=0"});
  const auto process = start(1, kFour + keys + Arguments{"--max-restarts", "1"});
  kill(ranks_of(*process)[1], SIGKILL);
  const Outcome outcome = process->finish();
  EXPECT_EQ(outcome.status, 0) << outcome;
  expect_contains(outcome.err, {"Restart 1 of 1 from step 1: rank 1 was lost"});
  EXPECT_EQ(count(outcome.err, "held another run"), 1) << outcome;
  EXPECT_EQ(read("run.1/metrics.jsonl"), older);
  EXPECT_FALSE(exists("run.2"));
  succeed(train(keys + set({"output.dir=whole"})));
  EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
}

TEST_F(Restart, WhereItBeganCountsUntilItHasACheckpointOfItsOwn) {
  succeed(train(Arguments{"--stop-at-step", "5"} + set({"output.dir=other"})));
  const Arguments from = {"--resume-from", "other/checkpoints/step-00000005"};
  for (const std::string every : {"0", "5"}) {
    fs::remove_all(path("run"));
    const auto process =
        start(2, kFour + from + set({"checkpoint.every=" + every}) + Arguments{"--max-restarts", "1"});
    kill(ranks_of(*process)[2], SIGKILL);
    const Outcome outcome = process->finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    expect_contains(outcome.err, {every == "0" ? "Restart 1 of 1 from other/checkpoints/step-00000005: "
                                               : "Restart 1 of 1 from run/checkpoints/step-"});
    EXPECT_FALSE(exists("run.1"));
    fs::remove_all(path("whole"));
    succeed(train(from + set({"output.dir=whole"})));
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
  }
}

TEST_F(Restart, WhereToStopAndTheTraceStayWhatTheyAre) {
  const Arguments until = {"--stop-at-step", "20"};
  const auto process = start(2, kFour + until + Arguments{"--trace", "--max-restarts", "1"});
  kill(ranks_of(*process)[2], SIGKILL);
  expect_same_end(*process, 1, until);
  EXPECT_EQ(steps_done(), 20);
  EXPECT_TRUE(exists("run/trace.json"));
}

TEST_F(Restart, AStoppedRankIsLostWhenTheDeadlineHasPassed) {
  const auto process = start(2, kFour + set({"mesh.deadline=3"}) + Arguments{"--max-restarts", "1"});
  kill(ranks_of(*process)[2], SIGSTOP);
  const std::string err = expect_same_end(*process, 1);
  EXPECT_TRUE(
      std::regex_search(err, std::regex("did not finish within 3 s: [^\n]* Restart 1 of 1 from [^\n]*: rank 2 "
                                        "was lost, continuing with dp=4 \\(4 ranks\\) as before\n")))
      << err;
}

TEST_F(Restart, ASingleRankIsSupervisedToo) {
  const auto process = start(0, {"--max-restarts", "1"});
  kill(ranks_of(*process, 1)[0], SIGSEGV);
  const std::string err = expect_same_end(*process, 1);
  expect_contains(err, {"rank 0 was lost, continuing with dp=1 (1 rank) as before"});
}

TEST_F(Restart, AnElasticRunGoesOnWithTheRanksThatAreLeft) {
  for (const std::string zero : {"0", "3"}) {
    fs::remove_all(path("run"));
    const auto process = start(1, kFour + Arguments{"--elastic"} + set({"mesh.dp=4", "mesh.zero=" + zero}));
    kill_and_pause_again(ranks_of(*process)[1]);
    kill(ranks_of(*process, 3)[1], SIGKILL);
    const std::string err = expect_same_end(*process, 2);
    expect_contains(err, {"rank 1 was lost, continuing with dp=3 instead of dp=4 (3 ranks)",
                          "rank 1 was lost, continuing with dp=2 instead of dp=3 (2 ranks)"});
    EXPECT_TRUE(std::regex_search(read("run/config.toml"), std::regex("\ndp = 2\n")))
        << read("run/config.toml");
  }
}

TEST_F(Restart, RanksThatAreLostTogetherAreCounted) {
  const auto process = start(1, kFour + Arguments{"--elastic", "--max-restarts", "5"});
  const std::vector<pid_t> ranks = ranks_of(*process);
  process->signal(SIGSTOP);  // so that it sees both at once
  for (const pid_t rank : {ranks[1], ranks[3]}) {
    kill(rank, SIGKILL);
    EXPECT_TRUE(wait_until([&] { return is_gone(rank); }));
  }
  process->signal(SIGCONT);
  const std::string err = expect_same_end(*process, 1);
  expect_contains(err, {"Restart 1 of 5 from run/checkpoints/step-",
                        "ranks 1, 3 were lost, continuing with dp=2 instead of dp=4 (2 ranks)"});
}

TEST_F(Restart, AMeshThatCannotShrinkEndsOrStays) {
  const Arguments keys = set({"mesh.pp=2", "mesh.dp=1"});
  const auto alone = start(1, keys + Arguments{"--elastic"});
  kill(ranks_of(*alone, 2)[1], SIGKILL);
  const Outcome outcome = alone->finish();
  EXPECT_EQ(outcome.status, 1) << outcome;
  const std::string why =
      "the mesh cannot shrink: a copy of the model takes 2 ranks (tp=1 x pp=2) and 1 is left";
  expect_contains(outcome.err, {"rank 1 (process ", "--elastic: " + why, "meshtrain train run --resume"});
  expect_nothing_is_left();
  fs::remove_all(path("run"));
  const auto again = start(1, keys + Arguments{"--elastic", "--max-restarts", "1"});
  kill(ranks_of(*again, 2)[1], SIGKILL);
  const std::string err = expect_same_end(*again, 1);
  expect_contains(err, {"rank 1 was lost, continuing with dp=1 (2 ranks) as before; " + why});
}

TEST_F(Restart, AFullDiskIsNoLostRank) {
  const auto process = start(0, kFour + Arguments{"--max-restarts", "3", "--elastic"});
  const std::vector<pid_t> ranks = ranks_of(*process);
  // From now on files end after 20 kB, as on a full disk.
  const rlimit limit = {20'000, 20'000};
  for (const pid_t rank : ranks) ASSERT_EQ(prlimit(rank, RLIMIT_FSIZE, &limit, nullptr), 0);
  let_go();
  const Outcome outcome = process->finish();
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err, {"File too large", "meshtrain train run --resume"});
  EXPECT_EQ(count(outcome.err, " Restart "), 0) << outcome;
  expect_nothing_is_left();
}

TEST_F(Restart, AnInterruptSavesAndStops) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    fs::remove_all(path("run"));
    const auto process = start(1, kFour + Arguments{"--max-restarts", "3", "--elastic"});
    kill_and_pause_again(ranks_of(*process)[1]);
    ranks_of(*process, 3);
    process->signal(signal);
    let_go();
    const Outcome outcome = process->finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    EXPECT_EQ(count(outcome.err, " Restart "), 1) << outcome;
    expect_contains(outcome.out, {"stopped after step " + std::to_string(steps_done()), "--resume"});
    expect_nothing_is_left();
  }
}

TEST_F(Restart, RestartsOfOthersRanksAreTheirs) {
  using Variables = std::vector<std::pair<const char*, const char*>>;
  const std::vector<std::pair<Variables, std::vector<std::string>>> launchers = {
      {{{"RANK", "0"},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", "0"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"MASTER_ADDR", "localhost"},
        {"MASTER_PORT", "29500"}},
       {"torchrun started", "torchrun's own --max-restarts"}},
      {{{"OMPI_COMM_WORLD_RANK", "0"},
        {"OMPI_COMM_WORLD_SIZE", "2"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
       {"mpirun started", "start mpirun again"}},
      {{{"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "2"},
        {"SLURM_STEP_NUM_TASKS", "2"},
        {"SLURM_LOCALID", "0"},
        {"SLURM_JOB_ID", "7"},
        {"SLURM_STEP_ID", "0"}},
       {"srun started", "sbatch --requeue"}}};
  for (const auto& [variables, parts] : launchers) {
    for (const Arguments& option : {Arguments{"--max-restarts", "3"}, Arguments{"--elastic"}}) {
      const Outcome outcome = run(train(option), [&variables = variables] {
        for (const auto& [name, value] : variables) setenv(name, value, 1);
      });
      EXPECT_EQ(outcome.status, 2) << outcome;
      expect_contains(outcome.err, {"meshtrain: " + option.front(), "--resume", parts[0], parts[1]});
    }
  }
  const Outcome threads = run(train(kFour + Arguments{"--ranks-as", "threads", "--max-restarts", "3"}));
  EXPECT_EQ(threads.status, 2) << threads;
  expect_contains(threads.err, {"--max-restarts 3 with --ranks-as threads"});
  const Outcome negative = run(train({"--max-restarts", "-1"}));
  EXPECT_EQ(negative.status, 2) << negative;
  EXPECT_FALSE(exists("run"));
}

}  // namespace
}  // namespace meshtrain
