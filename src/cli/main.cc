#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "base/system_failure.h"
#include "base/temporary_file.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/paths.h"
#include "cli/synonyms.h"

namespace {

using meshtrain::throw_user_error;

int report(const char* kind, const std::exception& error, int status) {
  meshtrain::say(kind + std::string(error.what()));
  return status;
}

// The command that the arguments had reached when they made no sense.
const CLI::App& reached(const CLI::App& app, std::string& words) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty()) return app;
  words += " " + chosen.front()->get_name();
  return reached(*chosen.front(), words);
}

// Help that was asked for, or what is wrong with the command line; the exit status.
int answer(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  std::string words = "meshtrain";
  const CLI::App& command = reached(app, words);
  std::vector<std::string> commands;
  for (const CLI::App* subcommand : command.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(subcommand->get_name());
  }
  const std::vector<std::string> left = command.remaining();
  if (!commands.empty() && left.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  if (!commands.empty() && left.front().starts_with('-')) {
    throw_user_error("there is no option {} before the command. `{} --help` lists what it takes.", left.front(),
                     words);
  }
  if (!commands.empty()) {
    throw_user_error("there is no command {}{}. Commands: {}. `{} --help` describes them.", left.front(),
                     meshtrain::cli::command_hint(words, left.front(), commands), fmt::join(commands, ", "),
                     words);
  }
  if (!left.empty() && left.front().starts_with('-')) {
    throw_user_error("there is no option {}{}. `{} --help` lists them all.", left.front(),
                     meshtrain::cli::option_hint(command, left.front()), words);
  }
  if (!left.empty()) {
    throw_user_error("{} is one argument too many{}. `{} --help` lists what it takes.", left.front(),
                     meshtrain::cli::argument_hint(command, left.front()), words);
  }
  throw_user_error("{}. `{} --help` lists what it takes.", error.what(), words);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace meshtrain;
  open_closed_streams();
  // A file-size limit or a reader that went away is an error of that write, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  remove_temporary_files_at_signals();
  try {
    CLI::App app("Trains language models on any mesh of processors, and says beforehand what a run will cost.",
                 "meshtrain");
    app.formatter(std::make_shared<cli::HelpFormatter>());  // commands inherit it
    app.set_version_flag("--version", std::string("meshtrain ") + version(), "Print the version and exit");
    app.require_subcommand(1);
    cli::add_train(app);
    cli::add_eval(app);
    cli::add_generate(app);
    cli::add_tokenize(app);
    cli::add_plan(app);
    cli::add_verify(app);
    cli::add_bench(app);
    cli::add_ckpt(app);
    app.footer("`meshtrain COMMAND --help` lists what a command takes.");  // later: commands would inherit it
    cli::expand_homes(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::RuntimeError& status) {
      flush_standard_output();
      return status.get_exit_code();  // that a command asked for
    } catch (const CLI::ParseError& error) {
      const int status = answer(app, error);
      flush_standard_output();
      return status;
    }
    flush_standard_output();
    return 0;
  } catch (const UserError& error) {
    return report("", error, 2);
  } catch (const RunError& error) {
    return report("", error, 1);
  } catch (const std::filesystem::filesystem_error& error) {
    return report("", UserError(system_failure(error)), 2);  // of a file that an argument names
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::broken_pipe) end_by_closed_pipe();
    return report("", RunError(system_failure(error)), 1);
  } catch (const std::exception& error) {
    const std::string refused = system_failure(error);
    if (!refused.empty()) return report("", RunError(refused), 1);
    return report("unexpected failure: ", error, 1);
  }
}
