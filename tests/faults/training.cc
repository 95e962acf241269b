#include "faults/training.h"

#include <sys/prctl.h>

#include "faults/sandbox.h"

namespace meshtrain::faults {
namespace {

// Ten times what a run takes that was struck, on a machine that is busy.
constexpr std::chrono::seconds kPatience{60};

Arguments words_of(const Mesh& mesh, const Arguments& words) {
  return Arguments{"train", "a.toml", "--ranks", std::to_string(mesh.ranks)} + set(mesh.keys) + words;
}

}  // namespace

const std::vector<Job>& jobs() {
  static const std::vector<Job> all = {
      {"gpt2", {"model.preset=gpt2-tiny"}},
      {"llama-bf16", {"model.preset=llama-tiny", "precision.compute=bf16"}},
      // The scale overflows at first and grows again: steps are skipped, updates are fewer than steps.
      {"gpt2-fp16",
       {"model.preset=gpt2-tiny", "precision.compute=fp16", "precision.loss_scale=33554432.0",
        "precision.loss_scale_window=4"}},
      {"llama-evaluated",
       {"model.preset=llama-tiny", "data.valid=text.txt", "train.eval_every=2", "train.eval_tokens=128"}},
  };
  return all;
}

const std::vector<Mesh>& meshes_of_four(int tp) {
  static const std::vector<Mesh> whole = {
      {4, {"mesh.zero=0"}},
      {4, {"mesh.zero=1"}},
      {4, {"mesh.zero=3"}},
      {4, {"mesh.pp=4"}},
      {4, {"mesh.pp=2", "mesh.zero=2"}},
      {4, {"mesh.pp=2", "mesh.zero=3", "mesh.schedule=zb-h1"}},
  };
  static const std::vector<Mesh> halves = {
      {4, {"mesh.tp=2", "mesh.zero=3"}},
      {4, {"mesh.tp=2", "mesh.zero=1"}},
      {4, {"mesh.tp=2", "mesh.pp=2"}},
  };
  return tp == 2 ? halves : whole;
}

const std::vector<Mesh>& meshes_of_any(int tp) {
  static const std::vector<Mesh> whole = {
      {1, {}},
      {2, {"mesh.zero=2"}},
      {2, {"mesh.pp=2"}},
      {3, {"mesh.pp=3", "mesh.schedule=gpipe"}},
      {4, {"mesh.zero=3"}},
      {8, {"mesh.pp=2", "mesh.zero=1"}},
  };
  static const std::vector<Mesh> halves = {
      {2, {"mesh.tp=2"}},
      {4, {"mesh.tp=2", "mesh.zero=2"}},
      {4, {"mesh.tp=2", "mesh.pp=2", "mesh.schedule=zb-h1"}},
  };
  return tp == 2 ? halves : whole;
}

Training::Training(const fs::path& folder, const Mesh& mesh, const Arguments& words,
                   const std::optional<Pause>& pause, bool plain)
    : pause_file_(folder / "paused"),
      count_(mesh.ranks),
      process_(MESHTRAIN_BINARY, words_of(mesh, words), folder, [&, file = pause_file_.string()] {
        setenv("TMPDIR", (folder / "tmp").c_str(), 1);
        if (pause) {
          const std::string value =
              pause->phase + ":" + std::to_string(pause->step) + ":" + std::to_string(pause->rank) + ":" + file;
          setenv("MESHTRAIN_PAUSE_AT", value.c_str(), 1);
        }
        if (plain) become_somebody_plain();
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no training behind
      }) {}

bool Training::wait_for_pause() {
  return process_.wait_until([&] { return fs::exists(pause_file_) && fs::file_size(pause_file_) > 0; });
}

std::vector<pid_t> Training::ranks() const {
  const std::vector<pid_t> children = children_of(process_.pid());
  return static_cast<int>(children.size()) == count_ ? children : std::vector<pid_t>();
}

Outcome Training::finish(const std::function<void()>& meanwhile) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  process_.wait_until([&] {
    fs::remove(pause_file_);
    if (meanwhile) meanwhile();
    return std::chrono::steady_clock::now() > end;
  });
  if (process_.pid() > 0) {
    ADD_FAILURE() << "the program hangs; killed";
    process_.signal(SIGKILL);
  }
  fs::remove(pause_file_);
  return process_.finish();
}

}  // namespace meshtrain::faults
