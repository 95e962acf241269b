#include "cli/bench.h"

#include "cli/commands.h"

namespace meshtrain::cli {

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Measures this machine");
  command->require_subcommand(1);
  add_bench_matmul(*command);
  add_bench_train(*command);
}

}  // namespace meshtrain::cli
