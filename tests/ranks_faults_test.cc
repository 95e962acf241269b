// Faults of a run with local ranks: what it says, what it leaves behind, and that it goes on to the same bits.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cerrno>
#include <regex>
#include <tuple>

#include "checkpoint/checkpoint_folder.h"
#include "data/sampler.h"
#include "launch/launch_testing.h"
#include "program.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;

// Much less than the deadline that is the default.
constexpr std::chrono::seconds kLong{60};

const Arguments kProcesses = {"--ranks", "4"};
const Arguments kThreads = {"--ranks", "4", "--ranks-as", "threads"};

// Of a process that runs (proc(5)).
double cpu_seconds(pid_t process) {
  const std::string text = read_file("/proc/" + std::to_string(process) + "/stat");
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0.0;
  double system = 0.0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

class RanksFaults : public ProgramTest {
 protected:
  RanksFaults() {
    write_config("a.toml", "gpt2-tiny");
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come here
  }
  ~RanksFaults() override { prctl(PR_SET_CHILD_SUBREAPER, 0); }

  // More steps than any test has time for; a checkpoint every five.
  static Arguments train(const Arguments& words) {
    return Arguments{"train", "a.toml"} +
           set({"train.steps=100000", "train.global_batch=8", "train.micro_batch=1", "numerics.reduction=tree",
                "checkpoint.every=5"}) +
           words;
  }

  std::int64_t steps_of(const std::string& folder) const {
    return exists(folder + "/metrics.jsonl") ? count(read(folder + "/metrics.jsonl"), "\n") : 0;
  }

  // A run in the middle of its work, and the processes of its ranks.
  struct Running {
    std::unique_ptr<Process> process;
    std::vector<pid_t> ranks;
  };
  Running start(
      const Arguments& words, const BeforeExec& pausing = [] {}) const {
    fs::remove_all(path("run"));
    // In a process group whose parent is outside it: Ctrl-Z does nothing in an orphaned one.
    Running running{std::make_unique<Process>(MESHTRAIN_BINARY, train(words), dir_,
                                              [&] {
                                                setpgid(0, 0);
                                                pausing();
                                              }),
                    {}};
    if (!running.process->wait_until([&] { return steps_of("run") >= 12; })) {
      throw std::runtime_error("no twelve steps: " + read(".stderr"));
    }
    running.ranks = children_of(running.process->pid());
    return running;
  }
  // The same with four processes.
  Running start_processes(
      const Arguments& words = {}, const BeforeExec& pausing = [] {}) const {
    Running running = start(kProcesses + words, pausing);
    if (running.ranks.size() != 4) throw std::runtime_error("not four processes");
    return running;
  }

  // As Ctrl-Z does.
  static void suspend(const Running& running) {
    running.process->signal(SIGTSTP);
    std::vector<pid_t> all = running.ranks;
    all.push_back(running.process->pid());
    for (const pid_t one : all) EXPECT_TRUE(wait_until([&] { return process_state(one) == 'T'; }));
  }

  static void expect_nothing_is_left(const Running& running) {
    for (const pid_t rank : running.ranks) EXPECT_EQ(process_state(rank), 0);
    EXPECT_TRUE(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD) << "a process is left";
  }

  // The message of a run that failed: one paragraph, said once.
  static std::string message_of(const Outcome& outcome, int status) {
    EXPECT_EQ(outcome.status, status) << outcome;
    EXPECT_EQ(count(outcome.err, "meshtrain: "), 1) << outcome;
    const std::size_t begin = std::min(outcome.err.find("meshtrain: "), outcome.err.size());
    const std::string message = outcome.err.substr(begin);
    EXPECT_EQ(count(message, "\n"), 1) << outcome;
    return message;
  }

  // Trains some more steps as `words` and `keys` say, and then everything is as in a run of one rank with
  // `keys` that met no fault.
  void expect_goes_on(const Arguments& words, const Arguments& keys = {}) const {
    const std::int64_t end = steps_of("run") + 5;
    const Arguments until = {"--stop-at-step", std::to_string(end)};
    const Outcome outcome = succeed(train(words + keys) + Arguments{"--resume"} + until);
    expect_contains(outcome.err, {"resuming from run/checkpoints/step-"});
    fs::remove_all(path("whole"));
    succeed(train(keys + set({"output.dir=whole"})) + until);
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
    const std::string name = "/checkpoints/" + checkpoint_name(end);
    EXPECT_EQ(tensors_of("run" + name), tensors_of("whole" + name)) << name;
  }
};

TEST_F(RanksFaults, AKilledRankIsNamedAndTheRunGoesOnOnOtherRanks) {
  const std::vector<Arguments> others = {{"--ranks", "2"}, {}, {"--ranks", "8"}, {"--ranks", "4"}};
  for (std::size_t zero = 0; zero < 4; ++zero) {
    SCOPED_TRACE(zero);
    const std::size_t victim = (zero + 2) % 4;
    const Running running =
        start_processes(set({"mesh.zero=" + std::to_string(zero), "checkpoint.async=true"}));
    for (const pid_t rank : running.ranks) {
      const std::string maps = read_file("/proc/" + std::to_string(rank) + "/maps");
      EXPECT_EQ(maps.find("/dev/shm"), std::string::npos) << "a file that could stay behind";
    }
    const auto begin = Clock::now();
    kill(running.ranks[victim], SIGKILL);
    const Outcome outcome = running.process->finish();
    EXPECT_LT(Clock::now() - begin, kLong);
    expect_contains(message_of(outcome, 1),
                    {"rank " + std::to_string(victim) + " (process " + std::to_string(running.ranks[victim]) +
                         ") was killed by signal 9",
                     "the other ranks were stopped", "meshtrain train run --resume"});
    expect_nothing_is_left(running);
    expect_goes_on(others[zero] + set({"mesh.zero=" + std::to_string(3 - zero)}));
  }
}

TEST_F(RanksFaults, AStoppedRankIsADeadlineThatNamesIt) {
  for (const auto& [place, step] : {std::pair{"collective:13:2", "13"}, std::pair{"write:15:2", "15"}}) {
    SCOPED_TRACE(place);
    let_go();
    const Running running = start_processes(set({"mesh.deadline=3"}), pausing_at(place));
    ASSERT_TRUE(wait_for_pause(*running.process));
    kill(running.ranks[2], SIGSTOP);
    const std::string message = message_of(running.process->finish(), 1);
    const std::regex expected(
        "meshtrain: (rank [013]: )?step " + std::string(step) +
        ": [a-z-]+ .* \\(operation \\d+ of group \"[a-z]+\", ranks 0 1 2 3\\) "
        "did not finish within 3 s: (ranks 0 1 3 had arrived, rank 2 had not|all had arrived, but rank 2 had "
        "not done their part)\\. The newest checkpoint is run/checkpoints/step-\\d+; to resume from it: "
        "`meshtrain train run --resume`\n");
    EXPECT_TRUE(std::regex_match(message, expected)) << message;
    expect_nothing_is_left(running);
    expect_goes_on(kProcesses);
  }
}

// With tensor parallelism the bits are those of the same tensor group.
TEST_F(RanksFaults, AKilledStageOrPartOfALayerIsNamedToo) {
  const Arguments tensor = set({"mesh.tp=2"});
  const std::vector<std::tuple<Arguments, Arguments, Arguments>> cases = {
      {set({"mesh.pp=4", "mesh.schedule=zb-h1"}), {}, set({"mesh.dp=2", "mesh.zero=3"})},
      {set({"mesh.pp=2", "mesh.zero=2"}), {}, set({"mesh.pp=3"})},
      {set({"mesh.pp=2", "mesh.tp=2"}), tensor, {}},
      {set({"mesh.tp=2", "mesh.zero=3"}), tensor, set({"mesh.pp=2", "mesh.dp=2", "mesh.zero=1"})}};
  std::size_t victim = 0;
  for (const auto& [mesh, same, other] : cases) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const Running running = start_processes(mesh);
    const auto begin = Clock::now();
    kill(running.ranks[victim], SIGKILL);
    const std::string message = message_of(running.process->finish(), 1);
    EXPECT_LT(Clock::now() - begin, kLong);
    expect_contains(message, {"rank " + std::to_string(victim) + " (process ", "was killed by signal 9",
                              "meshtrain train run --resume"});
    expect_nothing_is_left(running);
    expect_goes_on(other, same);
    ++victim;
  }
}

// Whoever waits for a rank that waits for the stopped one may be the first whose deadline passes.
TEST_F(RanksFaults, AStoppedStageOrPartOfALayerIsNamedToo) {
  const std::vector<std::pair<Arguments, std::size_t>> cases = {{set({"mesh.pp=4"}), 0},
                                                                {set({"mesh.pp=4", "mesh.schedule=zb-h1"}), 3},
                                                                {set({"mesh.pp=2", "mesh.tp=2"}), 1},
                                                                {set({"mesh.tp=4"}), 2}};
  for (const auto& [mesh, victim] : cases) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const Running running = start_processes(mesh + set({"mesh.deadline=3"}));
    kill(running.ranks[victim], SIGSTOP);
    const std::string message = message_of(running.process->finish(), 1);
    const std::string name = "rank " + std::to_string(victim);
    const std::regex expected(
        "meshtrain: (rank \\d: )?step \\d+: [a-z-]+ .*(of group \"[a-z0-9 -]+\").* did not finish within 3 "
        "s: .*(" +
        name + " had not\\b|only " + name + " waits for nobody).*The newest checkpoint is .*--resume`\n");
    EXPECT_TRUE(std::regex_match(message, expected)) << message;
    expect_nothing_is_left(running);
  }
}

TEST_F(RanksFaults, RanksDieWithTheirSupervisor) {
  const Running running = start_processes(set({"mesh.zero=3"}));
  running.process->signal(SIGKILL);
  EXPECT_EQ(running.process->finish().status, -SIGKILL);
  const auto begin = Clock::now();
  for (const pid_t rank : running.ranks) {
    int status = 0;
    ASSERT_EQ(waitpid(rank, &status, 0), rank);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }
  EXPECT_LT(Clock::now() - begin, kLong);
  expect_nothing_is_left(running);
  expect_goes_on(kThreads);
}

TEST_F(RanksFaults, AnInterruptSavesAndStops) {
  for (const Arguments& kind : {kProcesses, kThreads}) {
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
      SCOPED_TRACE(testing::PrintToString(kind) + strsignal(signal));
      const Running running = start(kind + set({"mesh.zero=2"}));
      running.process->signal(signal);
      const Outcome outcome = running.process->finish();
      const std::string steps = std::to_string(steps_of("run"));
      EXPECT_EQ(outcome.status, 0) << outcome;
      EXPECT_EQ(outcome.out, "stopped after step " + steps +
                                 " of 100000: the run is not finished. Saved in run/checkpoints/" +
                                 checkpoint_name(steps_of("run")) +
                                 "; to resume: `meshtrain train run --resume`\n");
      EXPECT_EQ(count(outcome.err, "meshtrain: "), 0) << outcome;
      expect_nothing_is_left(running);
      EXPECT_EQ(read_json("run/summary.json")["steps"], steps_of("run"));
      if (signal == SIGINT) expect_goes_on({"--ranks", "2"});
    }
  }
}

TEST_F(RanksFaults, AnInterruptSavesWhatStagesAndPartsHold) {
  for (const Arguments& kind : {kProcesses, kThreads}) {
    const Running running = start(kind + set({"mesh.tp=2", "mesh.pp=2", "mesh.schedule=zb-h1"}));
    running.process->signal(SIGINT);
    const Outcome outcome = running.process->finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    expect_contains(outcome.out, {"stopped after step " + std::to_string(steps_of("run")),
                                  checkpoint_name(steps_of("run")), "meshtrain train run --resume"});
    expect_nothing_is_left(running);
    expect_goes_on(set({"mesh.dp=2", "mesh.zero=3"}), set({"mesh.tp=2"}));
  }
}

TEST_F(RanksFaults, TheSecondInterruptEndsAtOnce) {
  for (const Arguments& kind : {kProcesses, kThreads}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      fs::remove_all(path("run"));
      Process process(MESHTRAIN_BINARY, train(kind + set({"train.global_batch=80000"})), dir_);
      // In the first step, which takes a minute: it has used more than a start does.
      ASSERT_TRUE(process.wait_until([&] {
        const std::vector<pid_t> ranks = children_of(process.pid());
        return cpu_seconds(ranks.empty() ? process.pid() : ranks.front()) > 0.3;
      }));
      const std::vector<pid_t> ranks = children_of(process.pid());
      // More than two, since those that come before the first is seen are one with it.
      process.wait_until([&] {
        process.signal(signal);
        sleep_ms(100);
        return false;
      });
      EXPECT_EQ(process.finish().status, -signal);
      EXPECT_EQ(steps_of("run"), 0);
      expect_nothing_is_left({nullptr, ranks});
    }
  }
}

// The time for which all were stopped is no rank's delay.
TEST_F(RanksFaults, CtrlZMayLastLongerThanTheDeadline) {
  for (const Arguments& kind : {kProcesses, kThreads}) {
    const Running running = start(kind + set({"mesh.deadline=3"}));
    suspend(running);
    sleep_ms(4000);
    running.process->signal(SIGCONT);
    const std::int64_t steps = steps_of("run");
    EXPECT_TRUE(running.process->wait_until([&] { return steps_of("run") > steps + 5; })) << read(".stderr");
    running.process->signal(SIGINT);
    const Outcome outcome = running.process->finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
  }
}

TEST_F(RanksFaults, AFullDiskIsSaidOnce) {
  for (const auto& [async, mesh] : std::vector<std::pair<std::string, Arguments>>{
           {"false", {}}, {"true", {}}, {"false", set({"mesh.pp=4"})}, {"true", set({"mesh.pp=4"})}}) {
    SCOPED_TRACE(async + testing::PrintToString(mesh));
    const Running running = start_processes(mesh + set({"checkpoint.async=" + async}));
    // From now on files end after 200 kB, as on a full disk; a checkpoint has half a megabyte of weights.
    const rlimit limit = {200'000, 200'000};
    ASSERT_EQ(prlimit(running.ranks[0], RLIMIT_FSIZE, &limit, nullptr), 0);
    const std::string message = message_of(running.process->finish(), 1);
    expect_contains(message,
                    {"meshtrain: writing the checkpoint of step ", "cannot write run/checkpoints/step-",
                     "File too large", "intact", "meshtrain train run --resume"});
    EXPECT_EQ(message.find("group"), std::string::npos) << message;
    expect_nothing_is_left(running);
    expect_goes_on({"--ranks", "2"});
  }
}

TEST_F(RanksFaults, DamagedDataIsNamedByTheRankThatReadsIt) {
  succeed({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"});
  const std::string whole = read("corpus.bin");
  const std::int64_t samples = (static_cast<std::int64_t>(whole.size()) / 2 - 1) / 32;
  for (const Arguments& kind : {kProcesses, kThreads}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    const Running running = start(kind + set({"data.train=corpus", "mesh.zero=3"}));
    suspend(running);
    const std::int64_t step = steps_of("run") + 3;
    // Its sequence 1 is rank 1's, and the middle of a sequence nobody else's.
    const std::int64_t sample = (step - 1) * 8 + 1;
    const std::int64_t position = Permutation(samples, /*seed=*/1, sample / samples)(sample % samples) * 32 + 5;
    std::fstream(path("corpus.bin"), std::ios::in | std::ios::out | std::ios::binary).seekp(2 * position)
        << "\x60\xea";  // 60000
    running.process->signal(SIGCONT);
    const std::string message = message_of(running.process->finish(), 1);
    expect_contains(message, {"meshtrain: rank 1: step " + std::to_string(step) + ": the tokens \"corpus",
                              "hold the id 60000 at position " + std::to_string(position) + ",",
                              "meshtrain train run --resume"});
    expect_nothing_is_left(running);
    EXPECT_EQ(steps_of("run"), step - 1);
    write("corpus.bin", whole);
    expect_goes_on({"--ranks", "2"}, set({"data.train=corpus"}));
  }
}

TEST_F(RanksFaults, DataThatIsTakenAwayIsNamed) {
  succeed({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"});
  const std::string whole = read("corpus.bin");
  for (const Arguments& kind : {kProcesses, kThreads}) {
    SCOPED_TRACE(testing::PrintToString(kind));
    const Running running = start(kind + set({"data.train=corpus"}));
    suspend(running);
    fs::resize_file(path("corpus.bin"), 100);
    running.process->signal(SIGCONT);
    const std::string message = message_of(running.process->finish(), 1);
    expect_contains(message, {"step ",
                              ": the token file \"corpus.bin\" had " + std::to_string(whole.size()) +
                                  " bytes when it was opened and has 100 now",
                              "meshtrain train run --resume"});
    expect_nothing_is_left(running);
    write("corpus.bin", whole);
    expect_goes_on({"--ranks", "2"}, set({"data.train=corpus"}));
  }
}

TEST_F(RanksFaults, ALossThatIsNotFiniteIsSaidOnce) {
  for (const Arguments& kind : {kProcesses, kThreads}) {
    for (const Arguments& mesh : {set({"mesh.zero=0"}), set({"mesh.zero=3"}), set({"mesh.pp=4"}),
                                  set({"mesh.pp=2", "mesh.tp=2", "mesh.schedule=zb-h1"})}) {
      SCOPED_TRACE(testing::PrintToString(kind + mesh));
      fs::remove_all(path("run"));
      const std::string message = message_of(run(train(kind + mesh + set({"optimizer.lr=1e30"}))), 1);
      expect_contains(message, {"meshtrain: step ", ": the loss", "not finite", "optimizer.lr"});
      EXPECT_EQ(message.find("rank "), std::string::npos) << "all ranks say the same: " << message;
    }
  }
}

TEST_F(RanksFaults, MistakesAreSaidOnce) {
  fs::create_directory(path("empty"));
  for (const Arguments& kind : {kProcesses, kThreads}) {
    // Every rank finds the first two, and the rank that reads and writes the others.
    for (const auto& [mistake, part] :
         std::vector<std::pair<Arguments, std::string>>{{set({"data.train=nope.txt"}), "nope.txt"},
                                                        {set({"model.vocab=200"}), "model.vocab"},
                                                        {set({"output.dir=text.txt/run"}), "text.txt/run"},
                                                        {{"--resume-from", "nope"}, "nope"},
                                                        {{"--resume-from", "empty"}, "empty"}}) {
      SCOPED_TRACE(testing::PrintToString(kind + mistake));
      const Outcome outcome = run(train(kind + mistake));
      const std::string message = message_of(outcome, 2);
      EXPECT_EQ(message, outcome.err) << "nothing else is said";
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(outcome.out, "");
      EXPECT_FALSE(exists("run"));
    }
  }
}

}  // namespace
}  // namespace meshtrain
