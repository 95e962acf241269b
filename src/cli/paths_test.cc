#include "cli/paths.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "cli/commands.h"

namespace meshtrain::cli {
namespace {

// What takes text that is not a path. A new option of that kind is added here or to kPaths.
const std::set<std::string> kNotPaths = {
    "--set",    "--prompt", "--eod",    "--text-field", "--model-type", "--mesh", "--dtype",  "--ranks-as",
    "--engine", "--op",     "--type",   "--redop",      "--min",        "--max",  "--link",   "--m",
    "--n",      "--k",      "--preset", "--compute",    "--recompute",  "--stop", "--machine"};

void expect_classified(const CLI::App& app, std::set<std::string>& seen) {
  for (const CLI::Option* option : app.get_options()) {
    const bool text = option->get_type_name() == "TEXT" || option->get_type_name() == "FILE" ||
                      option->get_type_name().find("PREFIX") != std::string::npos;
    if (!text || option->get_expected_max() == 0) continue;
    const std::string name = option->get_name();
    seen.insert(name);
    EXPECT_NE(takes_path(name), kNotPaths.contains(name)) << name << " of " << app.get_name();
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    expect_classified(*command, seen);
  }
}

TEST(Paths, EveryOptionThatTakesTextIsAPathOrNot) {
  CLI::App app;
  for (const auto add :
       {add_train, add_eval, add_generate, add_tokenize, add_plan, add_verify, add_bench, add_ckpt}) {
    add(app);
  }
  std::set<std::string> seen;
  expect_classified(app, seen);
  for (const char* name : {"CONFIG", "MODEL", "CKPT", "FOLDER", "IN", "--out", "--trace", "--json", "--data"}) {
    EXPECT_TRUE(seen.contains(name)) << name;
  }
}

TEST(Paths, HomesAreExpandedInPathsAlone) {
  const char* const before = std::getenv("HOME");
  const std::string home = before == nullptr ? "" : before;
  setenv("HOME", "/h", 1);
  CLI::App app;
  std::string out;
  std::string tokenizer;
  std::string prompt;
  std::vector<std::string> in;
  bool trace = false;
  CLI::App* command = app.add_subcommand("a");
  command->add_option("--out", out);
  command->add_option("--tokenizer", tokenizer);
  command->add_option("--prompt", prompt);
  command->add_option("IN", in);
  command->add_flag("--trace", trace);
  expand_homes(app);
  app.parse("a ~/x y ~/z --out=~/o --tokenizer sentencepiece:~/m --prompt ~/p --trace");
  EXPECT_EQ(out, "/h/o");
  EXPECT_EQ(tokenizer, "sentencepiece:/h/m");
  EXPECT_EQ(prompt, "~/p");
  EXPECT_EQ(in, (std::vector<std::string>{"/h/x", "y", "/h/z"}));
  EXPECT_TRUE(trace);
  before == nullptr ? unsetenv("HOME") : setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace meshtrain::cli
