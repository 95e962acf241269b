#include <atomic>
#include <csignal>
#include <filesystem>

#include "cli/commands.h"

namespace meshtrain::cli {
namespace {

// A signal handler can reach nothing but a global.
std::atomic<bool> stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int signal) {
  if (stop.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

}  // namespace

void add_config_arguments(CLI::App& command, ConfigArguments& arguments) {
  command.add_option("CONFIG", arguments.path, "TOML file, or a run folder")->required();
  command.add_option("-s,--set", arguments.overrides, "Override one key: section.key=value")
      ->allow_extra_args(false);
}

Config load(const ConfigArguments& arguments) {
  const std::filesystem::path path(arguments.path);
  const bool is_folder = std::filesystem::is_directory(path);
  return load_config(is_folder ? (path / "config.toml").string() : arguments.path, arguments.overrides);
}

void install_stop_handler() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() {
  return stop.load();
}

}  // namespace meshtrain::cli
