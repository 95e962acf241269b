#include "cli/paths.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/home_path.h"
#include "data/tokenizer_name.h"

namespace meshtrain::cli {
namespace {

constexpr std::string_view kTokenizer = "--tokenizer";
constexpr std::array<std::string_view, 15> kPaths = {
    "CONFIG",       "MODEL",    "CKPT",     "FOLDER",        "IN",
    "--checkpoint", "--config", "--data",   "--dir",         "--json",
    "--out",        "--trace",  kTokenizer, "--resume-from", "--train-sentencepiece"};

namespace fs = std::filesystem;

CLI::Validator home_folder(bool of_tokenizer) {
  return CLI::Validator(
      [of_tokenizer](std::string& path) -> std::string {
        try {
          path = of_tokenizer ? expand_home_of_tokenizer(path) : expand_home(path);
          return "";
        } catch (const UserError& error) {
          return error.what();
        }
      },
      "");
}

}  // namespace

bool takes_path(std::string_view name) {
  return std::find(kPaths.begin(), kPaths.end(), name) != kPaths.end();
}

void check_names_file(std::string_view option, const std::string& path, std::string_view advice,
                      std::string_view example) {
  if (path.empty()) throw_user_error("{} \"\": no name was given; {}", option, advice);
  std::error_code ignored;
  const std::string name = fs::path(path).filename().string();
  if (!fs::is_directory(path, ignored) && !name.empty() && name != "." && name != "..") return;
  throw_user_error("{} {} names a folder; {}, as in `{} {}{}{}`", option, path, advice, option, path,
                   path.ends_with('/') ? "" : "/", example);
}

void check_output_file(std::string_view option, const std::string& path) {
  check_names_file(option, path, "name a file", "out.json");
  std::error_code ignored;
  const fs::path folder = fs::absolute(path).parent_path();
  if (fs::is_directory(folder, ignored)) {
    if (access(folder.c_str(), W_OK | X_OK) == 0) return;
    throw_user_error("{} {} cannot be written: {}; choose another folder, or change its permissions", option,
                     path, std::strerror(errno));
  }
  throw_user_error("{} {} cannot be written: {}; name a file in a folder that exists", option, path,
                   fs::exists(folder, ignored) ? folder.string() + " is a file" : "there is no such folder");
}

void check_output_prefix(std::string_view option, const std::string& prefix) {
  check_names_file(option, prefix, "name the prefix of two files", "corpus");
  std::error_code ignored;
  for (const char* extension : {".bin", ".idx"}) {
    if (!fs::is_directory(prefix + extension, ignored)) continue;
    throw_user_error("{} {} cannot be written: {}{} is a folder; choose another prefix", option, prefix, prefix,
                     extension);
  }
}

void expand_homes(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool flag = option->get_expected_max() == 0;  // train --trace
    if (takes_path(name) && !flag) option->transform(home_folder(name == kTokenizer));
  }
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) expand_homes(*command);
}

}  // namespace meshtrain::cli
