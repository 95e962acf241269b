#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "base/error.h"
#include "base/version.h"
#include "cli/commands.h"

namespace {

int report(const char* kind, const std::exception& error, int status) {
  std::fprintf(stderr, "meshtrain: %s%s\n", kind, error.what());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace meshtrain;
  // A file-size limit or a reader that went away is an error of that write, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    CLI::App app("Trains language models on any mesh of processors, and says beforehand what a run will cost.",
                 "meshtrain");
    app.set_version_flag("--version", std::string("meshtrain ") + version());
    app.require_subcommand(1);
    cli::add_train(app);
    cli::add_eval(app);
    cli::add_generate(app);
    cli::add_tokenize(app);
    cli::add_plan(app);
    cli::add_bench(app);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    return 0;
  } catch (const UserError& error) {
    return report("", error, 2);
  } catch (const RunError& error) {
    return report("", error, 1);
  } catch (const std::exception& error) {
    return report("unexpected failure: ", error, 1);
  }
}
