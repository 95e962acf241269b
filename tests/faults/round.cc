#include "faults/round.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace meshtrain::faults {
namespace {

// Of the small disk: some twenty checkpoints.
constexpr std::int64_t kDiskBytes = std::int64_t{32} << 20U;

std::uint64_t seed_of(const Round& round) {
  const char* const other = std::getenv("MESHTRAIN_FAULTS_SEED");
  std::uint64_t seed = round.seed + 1'000'003 * (other == nullptr ? 0 : std::strtoull(other, nullptr, 10));
  for (const char c : round.name()) seed = seed * 31 + static_cast<unsigned char>(c);
  return seed;
}

std::string camel(std::string_view words) {
  std::string result;
  bool begins = true;
  for (const char c : words) {
    const bool letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (letter) result += begins ? static_cast<char>(std::toupper(c)) : c;
    begins = !letter;
  }
  return result.empty() ? "AnyMoment" : result;
}

bool has(const Round& round, Fault fault) {
  return std::any_of(round.strikes.begin(), round.strikes.end(),
                     [&](const Strike& strike) { return strike.fault == fault; });
}

}  // namespace

std::string Round::name() const {
  std::string result = restarts ? "Supervised_" : "";
  for (const Strike& strike : strikes) {
    if (strikes.size() > 3) break;
    result += std::string(name_of(strike.fault)) + "_" + camel(strike.phase) + "_";
  }
  if (strikes.size() > 3) result = "Chain_";
  return result + std::to_string(seed);
}

FaultRound::FaultRound() {
  prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans come here
  fs::create_directory(path("tmp"));
  write_text("text.txt");
  write("a.toml", R"(
[data]
train = "text.txt"
seq_len = 32
[train]
steps = 18
global_batch = 8
micro_batch = 1
[optimizer]
lr = 3e-3
warmup = 4
[numerics]
reduction = "tree"
[checkpoint]
every = 3
keep = 2
[output]
dir = "run"
[machine]
peak_tflops = "off"
threads = 1
)");
}

FaultRound::~FaultRound() {
  for (const pid_t child : children_of(getpid())) kill(child, SIGKILL);
  expect_no_processes();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (fs::exists(path(checkpoints_))) set_writable(path(checkpoints_), true, true);
  disk_.reset();
}

void FaultRound::survive(const Round& round) {
  const bool mounts = enter_private_mounts();
  if (has(round, Fault::kFillDisk) && !mounts)
    GTEST_SKIP() << "nothing may be mounted here: no small disk to fill";
  plain_ = has(round, Fault::kReadOnly);
  if (plain_ && !somebody_plain_may_run(MESHTRAIN_BINARY)) {
    GTEST_SKIP() << "permissions do not hold root back, and nobody else may run " << MESHTRAIN_BINARY;
  }
  prepare(round);
  for (const Strike& one : round.strikes) {
    if (!ended_ && !HasFailure()) strike(one);
  }
  if (!ended_ && !HasFailure()) go_on();
  if (!HasFailure()) {
    expect_same_end();
    expect_no_strays();
  }
  if (HasFailure()) {
    ADD_FAILURE() << "The round " << round.name() << story_ << "\nTo repeat it: MESHTRAIN_FAULTS_SEED="
                  << (std::getenv("MESHTRAIN_FAULTS_SEED") ? std::getenv("MESHTRAIN_FAULTS_SEED") : "0") << " "
                  << testing::internal::GetArgvs().front() << " --gtest_filter='*/" << round.name() << "'";
  }
}

void FaultRound::prepare(const Round& round) {
  random_ = Random(seed_of(round));
  job_ = &random_.of(jobs());
  tp_ = random_.below(3) == 0 ? 2 : 1;
  const auto needs_async = [](const Strike& s) { return !s.phase.empty() && phase_called(s.phase).async_only; };
  async_ = random_.coin() || std::any_of(round.strikes.begin(), round.strikes.end(), needs_async);
  restarts_ = round.restarts;
  elastic_ = restarts_ && random_.coin();
  if (has(round, Fault::kFillDisk)) {
    disk_ = std::make_unique<SmallDisk>(path("disk"), kDiskBytes);
    checkpoints_ = "disk/checkpoints";
    if (random_.coin()) {
      run_ = "disk/run";
      checkpoints_ = "disk/run/checkpoints";
    }
  }
  if (plain_) give_to_somebody_plain(dir_);
  story_ = ": " + job_->name + (async_ ? ", asynchronous" : ", synchronous") + ", in " + checkpoints_;
}

Training FaultRound::start(const Mesh& mesh, const std::optional<Pause>& pause) {
  Arguments words = set(job_->keys) + set({"output.dir=" + run_, "checkpoint.dir=" + checkpoints_,
                                           std::string("checkpoint.async=") + (async_ ? "true" : "false")});
  if (left_) words.emplace_back("--resume");
  if (restarts_) words = words + Arguments{"--max-restarts", "5"};
  if (elastic_) words.emplace_back("--elastic");
  story_ += "\n  " + testing::PrintToString(mesh.keys) + " on " + std::to_string(mesh.ranks) + " ranks";
  return {dir_, mesh, words, pause, plain_};
}

std::vector<std::int64_t> FaultRound::committed() const {
  std::vector<std::int64_t> steps;
  for (const CheckpointPlace& place : committed_checkpoints(path(checkpoints_).string())) {
    steps.push_back(place.step);
  }
  return steps;
}

std::int64_t FaultRound::last_recorded() const {
  std::int64_t last = 0;
  for (const nlohmann::json& line : metrics(run_)) last = std::max(last, line["step"].get<std::int64_t>());
  return last;
}

// A step that is still to come, and a rank that gets there.
Pause FaultRound::choose_pause(const Strike& strike) {
  const Phase& phase = phase_called(strike.phase);
  const std::int64_t done = left_ ? left_->newest : 0;
  // Two checkpoints must be there to lose one; an old one goes with the third; a disk must be needed once more.
  const std::int64_t enough = (damages_checkpoint(strike.fault) || phase.cleans) ? kEvery * (kKeep + 1) : 0;
  const bool needs_disk = strike.fault == Fault::kFillDisk || strike.fault == Fault::kReadOnly;
  const std::int64_t last = needs_disk ? kSteps - kEvery : kSteps;
  const std::int64_t first = std::max(enough, done + 1);
  Pause pause{.phase = strike.phase};
  if (phase.of_save) {
    const std::int64_t first_save = (first + kEvery - 1) / kEvery;
    pause.step =
        kEvery * (first_save + random_.below(std::max<std::int64_t>(last / kEvery - first_save + 1, 1)));
  } else {
    pause.step = first + random_.below(std::max<std::int64_t>(last - first + 1, 1));
  }
  pause.rank = phase.leader_only ? 0 : static_cast<int>(random_.below(4));
  return pause;
}

void FaultRound::wait_for_moment(Training& training, const Strike& strike) {
  const std::int64_t done = left_ ? left_->newest : 0;
  const std::int64_t steps = done + random_.below(std::max<std::int64_t>(kSteps - done - 1, 1));
  const auto microseconds = std::chrono::microseconds(random_.below(10'000));
  story_ += ", " + std::to_string(microseconds.count()) + " us after step " + std::to_string(steps);
  training.wait_until([&] {
    return !training.ranks().empty() && last_recorded() >= steps && exists(checkpoints_) &&
           (!damages_checkpoint(strike.fault) || committed().size() >= 2);
  });
  std::this_thread::sleep_for(microseconds);
}

void FaultRound::do_fault(Training& training, const Strike& strike, const std::optional<Pause>& pause) {
  const auto victim = static_cast<std::size_t>(random_.below(4));
  const bool of_rank = strike.fault == Fault::kKillRank || strike.fault == Fault::kStopRank;
  victim_ = of_rank && !seen_.empty()
                ? "rank " + std::to_string(victim) + " (process " + std::to_string(seen_[victim]) + ")"
                : "";
  story_ += ": " + std::string(name_of(strike.fault)) + " " + victim_;
  if (pause)
    story_ += " when rank " + std::to_string(pause->rank) + " is at " + pause->phase + " of step " +
              std::to_string(pause->step);
  if (of_rank) {
    if (!seen_.empty()) kill(seen_[victim], strike.fault == Fault::kKillRank ? SIGKILL : SIGSTOP);
  } else if (strike.fault == Fault::kFillDisk) {
    disk_->fill_but(random_.below(2'000'000));
  } else if (strike.fault == Fault::kReadOnly) {
    set_writable(path(checkpoints_), false, random_.coin());
  } else {
    training.signal(SIGKILL);
  }
}

void FaultRound::strike(const Strike& strike) {
  const std::optional<Pause> pause = strike.phase.empty() ? std::nullopt : std::optional(choose_pause(strike));
  if (pause && pause->step > kSteps) return;  // earlier strikes have left nothing of it
  const Mesh& mesh = random_.of(meshes_of_four(tp_));
  Mesh with_deadline = mesh;
  if (strike.fault == Fault::kStopRank) with_deadline.keys.emplace_back("mesh.deadline=4");
  Training training = start(with_deadline, pause);
  if (pause) {
    ASSERT_TRUE(training.wait_for_pause()) << pause->phase << " of step " << pause->step
                                           << " is not reached by rank " << pause->rank << story_ << "\n"
                                           << training.finish();
    // In the background it may be that the checkpoint before is not there yet.
    if (damages_checkpoint(strike.fault)) training.wait_until([&] { return committed().size() >= 2; });
  } else {
    wait_for_moment(training, strike);
  }
  seen_ = training.ranks();
  const std::vector<std::int64_t> before = committed();
  do_fault(training, strike, pause);
  const Outcome outcome = training.finish([&] {
    if (strike.fault == Fault::kFillDisk) disk_->fill_rest();
  });
  ended_ = outcome.status == 0;
  if (!ended_ || pause) expect_failure(strike, outcome);
  if (ended_ || pause) expect_went_on(outcome.err);
  expect_no_processes();
  undo(strike);
  // Too late to strike anything: the run had said that it was over.
  if (!pause && exists(run_ + "/summary.json")) ended_ = true;
  if (ended_) return;

  const std::vector<std::int64_t> after = committed();
  EXPECT_GE(after.empty() ? 0 : after.back(), before.empty() ? 0 : before.back()) << "a checkpoint was lost";
  Left left{.newest = after.empty() ? 0 : after.back(),
            .done = last_recorded(),
            .most_redone = async_ ? 2 * kEvery : kEvery};
  if (damages_checkpoint(strike.fault) && after.size() >= 2) {
    const std::string checkpoint = checkpoints_ + "/" + checkpoint_name(after.back());
    left.damaged = checkpoint + "/" + damage(path(checkpoint), strike.fault, random_).filename().string();
    story_ += "\n  damaged: " + left.damaged;
    left.newest = after[after.size() - 2];
    left.most_redone += kEvery;
  }
  left_ = left;
}

std::string FaultRound::what_is_said(const Strike& strike) const {
  switch (strike.fault) {
    case Fault::kKillRank:
      return victim_ + " was killed by signal 9";
    case Fault::kStopRank:
      return "did not finish within 4 s";
    case Fault::kFillDisk:
      return "No space left on device";
    default:
      return "Permission denied";
  }
}

// One paragraph that names what happened and what to do.
void FaultRound::expect_failure(const Strike& strike, const Outcome& outcome) const {
  if (strike.fault == Fault::kKillSupervisor || damages_checkpoint(strike.fault)) {
    EXPECT_EQ(outcome.status, -SIGKILL) << outcome;
    return;
  }
  if (restarts_) {
    EXPECT_EQ(outcome.status, 0) << outcome;
    expect_contains(outcome.err, {what_is_said(strike), "Restart 1 of 5 from "});
    return;
  }
  EXPECT_EQ(outcome.status, 1) << outcome;
  const std::size_t begin = outcome.err.rfind("meshtrain: ");  // notices come before
  ASSERT_NE(begin, std::string::npos) << outcome;
  const std::string message = outcome.err.substr(begin);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << outcome;
  expect_contains(message, {what_is_said(strike)});
  const std::vector<std::int64_t> steps = committed();
  if (steps.empty()) {
    expect_contains(message, {"No checkpoint was saved before"});
  } else {
    expect_contains(message, {"The newest checkpoint is " + checkpoints_ + "/" + checkpoint_name(steps.back()),
                              "meshtrain train " + run_ + " --resume"});
  }
}

void FaultRound::undo(const Strike& strike) {
  if (strike.fault == Fault::kFillDisk) disk_->empty();
  if (strike.fault == Fault::kReadOnly) set_writable(path(checkpoints_), true, true);
}

void FaultRound::go_on() {
  Training training = start(random_.of(meshes_of_any(tp_)), std::nullopt);
  const Outcome outcome = training.finish();
  EXPECT_EQ(outcome.status, 0) << outcome;
  expect_contains(outcome.out, {std::to_string(kSteps) + " steps, loss "});
  expect_went_on(outcome.err);
  expect_no_processes();
}

}  // namespace meshtrain::faults
