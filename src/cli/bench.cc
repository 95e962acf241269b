#include "cli/bench.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/paths.h"
#include "data/output_file.h"

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
  if (!path.empty() && path != "-") check_output_file("--json", path);
}

void write_json(const std::string& path, const nlohmann::json& json) {
  if (path == "-") {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  const std::string text = json.dump(2) + '\n';
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    std::ofstream device(path);  // or a pipe, which cannot be replaced
    device << text;
    device.close();
    if (!device) throw_run_error("cannot write {}: check that it can be written to", path);
    return;
  }
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.finish();
  file.commit();
}

}  // namespace meshtrain::cli
