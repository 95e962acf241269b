#include <fmt/format.h>

#include <atomic>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/temporary_file.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/manifest.h"
#include "cli/commands.h"
#include "train/model_source.h"

namespace meshtrain::cli {
namespace {

namespace fs = std::filesystem;

// A signal handler can reach nothing but a global.
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  if (stop.exchange(true)) {
    remove_temporary_files();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void add_overrides(CLI::App& command, std::vector<std::string>& overrides) {
  command
      .add_option("-s,--set", overrides,
                  "Override one key of the config, as -s optimizer.lr=1e-3; may be repeated")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("CONFIG", arguments.path, "Config (a TOML file), run folder, or Hugging Face folder")
      ->required();
  add_overrides(command, arguments.overrides);
}

Config load(const ConfigArguments& arguments) {
  const fs::path folder(arguments.path);
  if (!fs::is_directory(folder)) return load_config(arguments.path, arguments.overrides);
  if (is_hf_folder(arguments.path)) return config_of_folder(arguments.path, arguments.overrides);
  const std::string file = (folder / "config.toml").string();
  if (!fs::exists(file) && fs::exists(folder / kManifestName)) {
    throw_user_error(
        "{0} is a checkpoint, and a config was asked for; name its run folder or a TOML file: --resume-from "
        "{0} resumes it, and model.from = \"{0}\" begins a run with its weights",
        arguments.path);
  }
  if (!fs::exists(file)) {
    throw_user_error(
        "{} is a folder without a config.toml or config.json, so it is neither a run folder nor a Hugging Face "
        "model; name a TOML file, a run's output.dir or a model folder",
        arguments.path);
  }
  // The folder may have been moved, or be named from another place: it is the run's wherever it lies.
  const auto own_checkpoints = [](const std::string& output) { return output + "/checkpoints"; };
  const Config saved = load_config(file, {}, ConfigWriter::kRun);
  Config config = load_config(file, arguments.overrides, ConfigWriter::kRun);
  if (config.output.dir == saved.output.dir) {
    config.output.dir = folder.has_filename() ? arguments.path : folder.parent_path().string();
  }
  if (config.checkpoint.dir == saved.checkpoint.dir &&
      saved.checkpoint.dir == own_checkpoints(saved.output.dir)) {
    config.checkpoint.dir = own_checkpoints(config.output.dir);
  }
  return config;
}

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  const auto check_value = [least, most](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= most) return "";
    const bool bounded = most != std::numeric_limits<std::int64_t>::max();
    return fmt::format("\"{}\" is not a whole number from {} {}", text, least,
                       bounded ? fmt::format("to {}", most) : "on");
  };
  return CLI::Validator(check_value, "");
}

void install_stop_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);  // the one that mpirun passes on to its ranks
}

bool stop_requested() {
  return stop.load();
}

}  // namespace meshtrain::cli
