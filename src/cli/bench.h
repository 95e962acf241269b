#pragma once

#include <CLI/CLI.hpp>

namespace meshtrain::cli {

void add_bench_matmul(CLI::App& bench);
void add_bench_train(CLI::App& bench);

}  // namespace meshtrain::cli
