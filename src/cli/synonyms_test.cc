#include "cli/synonyms.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "cli/commands.h"

namespace meshtrain::cli {
namespace {

void add_all(CLI::App& app) {
  for (const auto add :
       {add_train, add_eval, add_generate, add_tokenize, add_plan, add_verify, add_bench, add_ckpt}) {
    add(app);
  }
}

bool has_option(const CLI::App& app, const std::string& name) {
  return app.get_option_no_throw(name) != nullptr;
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

// Each word is a command of what the words before it lead to, an argument in capitals, or an option of that.
TEST(Synonyms, CommandsExist) {
  CLI::App app;
  add_all(app);
  app.set_version_flag("--version", "");
  std::set<std::string_view> seen;
  for (const Synonym& synonym : command_synonyms()) {
    for (const std::string_view name : synonym.names) EXPECT_TRUE(seen.insert(name).second) << name;
    for (const std::string_view meaning : synonym.meanings) {
      std::istringstream words{std::string(meaning)};
      const CLI::App* command = &app;
      for (std::string word; words >> word;) {
        if (word.starts_with("--")) {
          EXPECT_TRUE(has_option(*command, word)) << meaning;
        } else if (word != "RUN") {
          ASSERT_NO_THROW(command = command->get_subcommand(word)) << meaning;
        }
      }
    }
  }
}

TEST(Synonyms, OptionsExistSomewhere) {
  CLI::App app;
  add_all(app);
  std::vector<const CLI::App*> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command);
    for (const CLI::App* inner : command->get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back(inner);
  }
  for (const Synonym& synonym : option_synonyms()) {
    for (const std::string_view meaning : synonym.meanings) {
      EXPECT_TRUE(std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
        return has_option(*command, std::string(meaning));
      })) << meaning;
    }
  }
}

TEST(Synonyms, CommandsOfOtherPrograms) {
  CLI::App app;
  add_all(app);
  const std::vector<std::string> commands = names_of_commands(app);
  EXPECT_EQ(command_hint("meshtrain", "pretrain", commands), "; that is `meshtrain train`");
  EXPECT_EQ(command_hint("meshtrain", "Inference", commands), "; that is `meshtrain generate`");
  EXPECT_EQ(command_hint("meshtrain", "prepare_data", commands), "; that is `meshtrain tokenize`");
  EXPECT_EQ(command_hint("meshtrain", "convert", commands),
            "; that is `meshtrain ckpt import` or `meshtrain ckpt export`");
  EXPECT_EQ(command_hint("meshtrain", "evalute", commands), "; that is `meshtrain eval`");  // misspelt
  EXPECT_EQ(command_hint("meshtrain", "verfiy", commands), "; the nearest is verify");
  EXPECT_EQ(command_hint("meshtrain", "banana", commands), "");
  const std::vector<std::string> of_bench = names_of_commands(*app.get_subcommand("bench"));
  EXPECT_EQ(command_hint("meshtrain bench", "nccl", of_bench), "; that is `meshtrain bench comm`");
  EXPECT_EQ(command_hint("meshtrain bench", "convert", of_bench), "");  // of another group
  const std::vector<std::string> of_ckpt = names_of_commands(*app.get_subcommand("ckpt"));
  EXPECT_EQ(command_hint("meshtrain ckpt", "info", of_ckpt), "; that is `meshtrain ckpt inspect`");
}

TEST(Synonyms, OptionsOfOtherPrograms) {
  CLI::App app;
  add_all(app);
  const CLI::App& train = *app.get_subcommand("train");
  EXPECT_EQ(option_hint(train, "--learning_rate=1e-4"), "; it is a key of the config: `-s optimizer.lr=1e-4`");
  EXPECT_EQ(option_hint(train, "--max-iters"), "; it is a key of the config: `-s train.steps=VALUE`");
  EXPECT_EQ(option_hint(train, "--mesh.tp=2"), "; it is a key of the config: `-s mesh.tp=2`");
  EXPECT_EQ(option_hint(train, "--attention-dropout"), "; dropout is not in this version");
  EXPECT_EQ(option_hint(train, "--nproc_per_node=2"), "; that is --ranks");
  EXPECT_TRUE(option_hint(train, "--train-batch=8").empty());
  EXPECT_TRUE(option_hint(train, "--batch_size=8").ends_with(": `-s train.global_batch=VALUE`"));
  EXPECT_TRUE(option_hint(train, "--grad-accum=4").ends_with("x mesh.dp)"));  // the value is of something else
  EXPECT_TRUE(option_hint(train, "--num-epochs").ends_with(": `-s train.steps=VALUE`"));
  EXPECT_EQ(option_hint(train, "--max-restart"), "; the nearest is --max-restarts");
  EXPECT_EQ(option_hint(train, "--banana"), "");
  EXPECT_EQ(option_hint(train, "-n"), "; that is --ranks");
  EXPECT_EQ(option_hint(*app.get_subcommand("generate"), "-n"), "; that is --tokens");
  EXPECT_EQ(argument_hint(train, "lr=3e-4"), "; it is a key of the config: `-s optimizer.lr=3e-4`");
  EXPECT_EQ(argument_hint(train, "mesh.tp=2"), "; it is a key of the config: `-s mesh.tp=2`");
  EXPECT_EQ(argument_hint(train, "b.toml"), "");
  EXPECT_EQ(argument_hint(train, "banana=2"), "");
  EXPECT_EQ(argument_hint(*app.get_subcommand("tokenize"), "lr=2"), "");
  EXPECT_EQ(option_hint(train, "-q"), "");
  EXPECT_EQ(option_hint(*app.get_subcommand("generate"), "--max-tokens"), "; that is --tokens");
  EXPECT_EQ(option_hint(*app.get_subcommand("tokenize"), "--lr"), "");  // takes no keys of a config
}

}  // namespace
}  // namespace meshtrain::cli
