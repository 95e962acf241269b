// `meshtrain ckpt …`: each subcommand adds itself to its parser.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "checkpoint/file_writer.h"

namespace meshtrain::cli {

void add_ckpt_inspect(CLI::App& ckpt);
void add_ckpt_digest(CLI::App& ckpt);
void add_ckpt_verify(CLI::App& ckpt);
void add_ckpt_import(CLI::App& ckpt);
void add_ckpt_export(CLI::App& ckpt);

// Throws RunError from the next write once a stop was requested (commands.h): `out` is not written then.
WriteHook stopping_hook(const std::string& out);

}  // namespace meshtrain::cli
