// Paths on the command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace meshtrain::cli {

// Whether an option or argument, by its name as the parser has it ("--out", "CONFIG"), takes a path or the name
// of a tokenizer.
bool takes_path(std::string_view name);

// Makes "~" at the start of what such options take the home folder (base/home_path.h), in the app and all its
// commands: a shell leaves --opt=~/x as it is.
void expand_homes(CLI::App& app);

// Throws UserError where `path` is empty or a folder's. `advice`: "name a file"; `example`: a name in the
// folder that would do.
void check_names_file(std::string_view option, const std::string& path, std::string_view advice,
                      std::string_view example);

// Throw UserError unless a file, or the files PREFIX.bin and PREFIX.idx, of that name can be made: the name is
// not a folder's, and the folder that it lies in is there or, for a prefix, can be made. `option` as the user
// wrote it.
void check_output_file(std::string_view option, const std::string& path);
void check_output_prefix(std::string_view option, const std::string& prefix);

}  // namespace meshtrain::cli
