#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/terminal.h"
#include "base/text_table.h"
#include "base/text_wrap.h"

namespace meshtrain::cli {
namespace {

// Where descriptions begin.
constexpr std::size_t kIndent = 26;

// "--preset, --seq", in the order of the names.
std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::sort(names.begin(), names.end());
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

HelpFormatter::HelpFormatter() {
  const std::size_t terminal = terminal_columns(STDOUT_FILENO);
  if (terminal > 0) width_ = std::clamp<std::size_t>(terminal, kIndent + 14, width_);
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const std::string name = make_option_name(option, is_positional) + make_option_opts(option);
  return hanging_line("  " + name + " ", make_option_desc(option), kIndent, width_);
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  if (!option->get_option_text().empty()) return " " + option->get_option_text();
  std::string text;
  if (option->get_type_size() != 0) {
    std::string type = option->get_type_name();
    if (const std::size_t choice = type.find('{'); choice != std::string::npos) type.erase(0, choice);
    text += " " + type;
    if (option->get_expected_max() == CLI::detail::expected_max_vector_size) text += " ...";
  }
  if (option->get_required() && !option->get_positional()) text += " REQUIRED";
  return text;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  std::vector<std::string> remarks;
  const std::string value = option->get_default_str();
  if (option->get_option_text().empty() && !value.empty()) remarks.push_back("default: " + value);
  if (!option->get_needs().empty()) remarks.push_back("with " + names_of(option->get_needs()));
  if (!option->get_excludes().empty()) remarks.push_back("not with " + names_of(option->get_excludes()));
  const std::string text = option->get_description();
  return remarks.empty() ? text : fmt::format("{} ({})", text, fmt::join(remarks, "; "));
}

std::string HelpFormatter::make_subcommand(const CLI::App* command) const {
  return hanging_line("  " + command->get_name() + " ", command->get_description(), kIndent, width_);
}

std::string HelpFormatter::make_description(const CLI::App* app) const {
  return wrap(CLI::Formatter::make_description(app), width_);
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  return wrap(CLI::Formatter::make_usage(app, std::move(name)), width_);
}

std::string HelpFormatter::make_footer(const CLI::App* app) const {
  return wrap(CLI::Formatter::make_footer(app), width_);
}

}  // namespace meshtrain::cli
