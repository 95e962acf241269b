#include "train/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/number_text.h"
#include "cli/commands.h"
#include "launch/launch.h"
#include "train/mesh.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  ConfigArguments config;
  std::vector<std::string> meshes;
  std::int64_t steps = 10;
  double tolerance = 0.0;
};

// "dp=2 zero=3": keys of [mesh], or whole ones ("recompute.policy=full").
std::vector<std::string> overrides_of(const std::string& mesh) {
  std::istringstream words(mesh);
  std::vector<std::string> overrides;
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    if (equals == std::string::npos) {
      throw_user_error("--mesh \"{}\": \"{}\" is not key=value. Write it like --mesh \"dp=2 zero=1\".", mesh,
                       word);
    }
    overrides.push_back(word.find('.') < equals ? word : "mesh." + word);
  }
  return overrides;
}

VerifyMesh make_mesh(const Arguments& arguments, const std::string& text) {
  ConfigArguments config = arguments.config;
  const std::vector<std::string> own = overrides_of(text);
  config.overrides.insert(config.overrides.end(), own.begin(), own.end());
  try {
    return {.name = text, .config = with_vocabulary(with_ranks(load(config), 0))};
  } catch (const UserError& error) {
    throw_user_error("--mesh \"{}\": {}", text, error.what());
  }
}

std::string difference_text(double difference) {
  return difference == 0.0 ? "0" : fmt::format("{:.2e}", difference);
}

void print(const std::vector<MeshResult>& results) {
  std::size_t width = 32;
  for (const MeshResult& result : results) width = std::max(width, result.name.size());
  fmt::print("{:<{}} {:>12} {:>12} {:>10} {:>10} {:>10}\n", "mesh", width, "last loss", "last norm",
             "loss diff", "norm diff", "state diff");
  for (const MeshResult& result : results) {
    fmt::print("{:<{}} {:>12.8f} {:>12.8f}", result.name, width, result.last_loss, result.last_norm);
    if (&result == &results.front()) {
      fmt::print("  reference\n");
      continue;
    }
    fmt::print(" {:>10} {:>10} {:>10}  {}\n", difference_text(result.loss_difference),
               difference_text(result.norm_difference), difference_text(result.state_difference),
               result.first ? "DIFFERS" : "equal");
  }
  std::fflush(stdout);
}

void check_equal(const std::vector<MeshResult>& results, const Arguments& arguments, const Config& config) {
  for (const MeshResult& result : results) {
    if (!result.first) continue;
    const Difference& d = *result.first;
    const bool scalar = d.what == "loss" || d.what == "gradient norm";
    throw_run_error("\"{}\" differs from \"{}\" first at step {}: {}{} is {} instead of {} (tolerance {}).{}",
                    result.name, results.front().name, d.step, d.what,
                    scalar ? "" : fmt::format(", element {},", d.element), number_text(d.found),
                    number_text(d.expected), arguments.tolerance,
                    config.reduction == "fast"
                        ? " With numerics.reduction = \"fast\" sums over the batch follow the mesh and "
                          "its micro-steps; \"tree\" gives all of them the same bits."
                        : "");
  }
}

void run(const Arguments& arguments) {
  if (arguments.meshes.size() < 2) {
    throw_user_error(
        "verify compares meshes: give at least two, like --mesh \"dp=1\" --mesh \"dp=2 zero=3\"; the first is "
        "the "
        "reference of the others");
  }
  if (!(arguments.tolerance >= 0.0)) {
    throw_user_error("--tolerance {} is not possible: it is 0 or a number above", arguments.tolerance);
  }
  std::vector<VerifyMesh> meshes;
  for (const std::string& text : arguments.meshes) meshes.push_back(make_mesh(arguments, text));
  const auto on_threads = [](const Config& config, const std::function<void(World&)>& body) {
    run_local_ranks({.ranks = static_cast<int>(ranks_of(config.mesh)),
                     .ranks_as = RanksAs::kThreads,
                     .world = world_options(config)},
                    [&](World& world, int /*threads*/) { body(world); });
  };
  const std::vector<MeshResult> results =
      verify_meshes(meshes, arguments.steps, arguments.tolerance, on_threads);
  print(results);
  check_equal(results, arguments, meshes.front().config);
}

}  // namespace

void add_verify(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("verify", "Trains briefly on several meshes and compares every bit");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option(
          "--mesh", arguments->meshes,
          "Keys of [mesh] for one of them, \"dp=2 zero=3\", or whole keys; the first mesh is the reference")
      ->allow_extra_args(false);
  command->add_option("--steps", arguments->steps, "Steps on each")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option(
          "--tolerance", arguments->tolerance,
          "Relative difference that passes, of losses and norms, and of elements to the largest of their "
          "tensor; 0: every bit counts")
      ->capture_default_str();
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli
