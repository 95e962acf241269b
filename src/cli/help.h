// What --help prints: lines of at most 80 columns, or as many as the terminal has where that is less, that end
// between words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace meshtrain::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();

  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* command) const override;
  std::string make_description(const CLI::App* app) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_footer(const CLI::App* app) const override;

 private:
  std::size_t width_ = 80;
};

}  // namespace meshtrain::cli
