#include "cli/bench.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"

namespace meshtrain::cli {

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measures this machine");
  command->require_subcommand(1);
  add_bench_checkpoint(*command);
  add_bench_comm(*command);
  add_bench_matmul(*command);
  add_bench_train(*command);
}

void check_json_path(const std::string& path) {
  if (path.empty() || path == "-") return;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder) || std::filesystem::is_directory(path)) {
    throw_user_error("--json {} cannot be written: {}; name a file in a folder that exists", path,
                     std::filesystem::is_directory(path) ? "it is a folder" : "there is no such folder");
  }
}

void write_json(const std::string& path, const nlohmann::json& json) {
  if (path == "-") {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  if (!file) throw_run_error("cannot write {}: check the folder, its permissions and the free space", path);
}

}  // namespace meshtrain::cli
