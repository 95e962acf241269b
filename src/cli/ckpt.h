// The commands of `meshtrain ckpt`.
#pragma once

#include <CLI/CLI.hpp>

namespace meshtrain::cli {

void add_ckpt_import(CLI::App& ckpt);
void add_ckpt_export(CLI::App& ckpt);

}  // namespace meshtrain::cli
