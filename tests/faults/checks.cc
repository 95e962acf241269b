// What must hold after faults.
#include <sys/wait.h>

#include <cerrno>
#include <regex>
#include <set>

#include "faults/round.h"
#include "launch/launch_testing.h"

namespace meshtrain::faults {
namespace {

// What the undisturbed run of a job left: for all meshes of a tp.
struct End {
  std::vector<nlohmann::json> metrics;
  std::string digest;
};

}  // namespace

// From the newest checkpoint that is whole, with no more steps to do again than it allows.
void FaultRound::expect_went_on(const std::string& err) const {
  if (!left_) return;
  std::smatch match;
  if (!std::regex_search(err, match,
                         std::regex("meshtrain: (?:resuming from )?([^ ]*) (?:at step|with the evaluation|is "
                                    "the last checkpoint)"))) {
    EXPECT_EQ(left_->newest, 0) << "it did not go on from a checkpoint: " << err;
    if (left_->newest == 0) expect_contains(err, {"no checkpoint in", "starting at step 1"});
    return;
  }
  EXPECT_EQ(match[1], checkpoints_ + "/" + checkpoint_name(left_->newest)) << err;
  EXPECT_LE(left_->done - left_->newest, left_->most_redone) << "too many steps are done again";
  if (left_->damaged.empty()) return;
  expect_contains(err, {left_->damaged});
  EXPECT_LT(err.find(left_->damaged), static_cast<std::size_t>(match.position())) << err;
}

// Tensor by tensor and in all, as `ckpt digest` prints it.
std::string FaultRound::digest_of(const std::string& checkpoint) const {
  const std::string digest = succeed({"ckpt", "digest", checkpoint, "--all"}).out;
  expect_contains(digest, {"\ntotal "});
  return digest;
}

void FaultRound::expect_same_end() const {
  static std::map<std::pair<std::string, int>, End> ends;
  const std::string last = "/" + checkpoint_name(kSteps);
  End& end = ends[{job_->name, tp_}];
  if (end.digest.empty()) {
    const Arguments alone = {"--ranks", std::to_string(tp_), "-s", "mesh.tp=" + std::to_string(tp_)};
    succeed(Arguments{"train", "a.toml"} + set(job_->keys) + set({"output.dir=undisturbed"}) + alone);
    end = {bits_of_metrics("undisturbed"), digest_of("undisturbed/checkpoints" + last)};
    fs::remove_all(path("undisturbed"));
  }
  EXPECT_EQ(bits_of_metrics(run_), end.metrics);
  succeed({"ckpt", "verify", checkpoints_ + last});
  EXPECT_EQ(digest_of(checkpoints_ + last), end.digest) << "another end than that of an undisturbed run";
}

void FaultRound::expect_no_strays() const {
  const auto names_in = [&](const std::string& folder) {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(path(folder))) {
      names.insert(entry.path().filename().string());
    }
    return names;
  };
  const std::set<std::string> kept = {checkpoint_name(kSteps - kEvery), checkpoint_name(kSteps)};
  EXPECT_EQ(names_in(checkpoints_), kept);
  std::set<std::string> run = {"config.toml", "metrics.jsonl", "summary.json"};
  if (checkpoints_ == run_ + "/checkpoints") run.insert("checkpoints");
  EXPECT_EQ(names_in(run_), run);
  EXPECT_EQ(names_in("tmp"), std::set<std::string>());
  for (const std::string& name : kept) {
    for (const std::string& file : names_in(checkpoints_ + "/" + name)) {
      EXPECT_EQ(file.find(".tmp"), std::string::npos) << name << "/" << file;
    }
  }
}

// Ranks that lost their supervisor come to this process, which must see them end.
void FaultRound::expect_no_processes() {
  const auto all_gone = [&] {
    while (waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return std::all_of(seen_.begin(), seen_.end(), [](pid_t rank) { return process_state(rank) == 0; }) &&
           waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD;
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!all_gone() && std::chrono::steady_clock::now() < end) sleep_ms(1);
  EXPECT_TRUE(all_gone()) << "processes are left";
  for (const pid_t child : children_of(getpid())) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  seen_.clear();
}

}  // namespace meshtrain::faults
