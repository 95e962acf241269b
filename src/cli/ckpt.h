// `meshtrain ckpt …`: each subcommand adds itself to its parser.
#pragma once

#include <CLI/CLI.hpp>

namespace meshtrain::cli {

void add_ckpt_inspect(CLI::App& ckpt);
void add_ckpt_digest(CLI::App& ckpt);
void add_ckpt_verify(CLI::App& ckpt);
void add_ckpt_import(CLI::App& ckpt);
void add_ckpt_export(CLI::App& ckpt);

}  // namespace meshtrain::cli
