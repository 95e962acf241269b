// meshtrain tokenize: text to token files.
#pragma once

#include <CLI/CLI.hpp>

namespace meshtrain::cli {

// Adds the subcommand; it runs when `app` has parsed it. Errors are UserError and RunError.
void add_tokenize(CLI::App& app);

}  // namespace meshtrain::cli
