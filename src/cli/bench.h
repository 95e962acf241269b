#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace meshtrain::cli {

void add_bench_checkpoint(CLI::App& bench);
void add_bench_comm(CLI::App& bench);
void add_bench_matmul(CLI::App& bench);
void add_bench_train(CLI::App& bench);

// --json: a file, "-" for standard output, or empty for none.
// Mistakes that would show only after the measurement are UserErrors.
void check_json_path(const std::string& path);
// Throws RunError when the file cannot be written.
void write_json(const std::string& path, const nlohmann::json& json);

}  // namespace meshtrain::cli
