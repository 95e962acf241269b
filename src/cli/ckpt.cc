#include "cli/ckpt.h"

#include "cli/commands.h"

namespace meshtrain::cli {

void add_ckpt(CLI::App& app) {
  CLI::App* command = app.add_subcommand("ckpt", "Looks at checkpoints, and carries them to and from others");
  command->require_subcommand(1);
  add_ckpt_import(*command);
  add_ckpt_export(*command);
}

}  // namespace meshtrain::cli
