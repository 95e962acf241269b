#include "train/verify.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/number_text.h"
#include "base/terminal.h"
#include "base/text_table.h"
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
  std::optional<double> state_tolerance;
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

std::string verdict(const MeshResult& result) {
  if (result.first) return "DIFFERS";
  return result.same_bits ? "equal" : "within";
}

void print(const std::vector<MeshResult>& results, const Arguments& arguments) {
  TextTable table("mesh", {{"last loss"},
                           {"last norm"},
                           {"loss diff"},
                           {"norm diff"},
                           {"state diff"},
                           {"", TextTable::Align::kLeft}});
  bool within = false;
  for (const MeshResult& result : results) {
    std::vector<std::string> cells = {fmt::format("{:.8f}", result.last_loss),
                                      fmt::format("{:.8f}", result.last_norm)};
    if (&result == &results.front()) {
      cells.insert(cells.end(), {"reference", "", "", ""});
    } else {
      cells.insert(cells.end(),
                   {difference_text(result.loss_difference), difference_text(result.norm_difference),
                    difference_text(result.state_difference), verdict(result)});
      within = within || cells.back() == "within";
    }
    table.add(result.name, std::move(cells));
  }
  const std::size_t width = std::max(TextTable::kWidth, terminal_columns(STDOUT_FILENO));
  fmt::print("{}{}", table.text(width),
             within ? fmt::format("within: loss and norm differ by {} at most\n", arguments.tolerance) : "");
  std::fflush(stdout);
}

// Why a mesh may differ from the reference by more than this.
std::string reason_of(const Config& config, const Config& reference, double tolerance) {
  if (config.mesh.tp != reference.mesh.tp) {
    if (tolerance > 0.0) return "";
    return " Tensor parallelism cuts the sums inside matrix products, which rounds them in another order: such "
           "meshes are compared with --tolerance, 1e-5 in fp32.";
  }
  if (config.mesh.tp > 1 && config.mesh.sequence_parallel != reference.mesh.sequence_parallel) {
    if (tolerance > 0.0) return "";
    return " With mesh.sequence_parallel the gradients of norms and biases are summed over tokens in another "
           "order: such meshes are compared with --tolerance, 1e-5 in fp32.";
  }
  if (config.reduction == "tree") return "";
  return " With numerics.reduction = \"fast\" sums over the batch follow the mesh and its micro-steps; "
         "\"tree\" gives all of them the same bits.";
}

void check_equal(const std::vector<MeshResult>& results, const Arguments& arguments,
                 const std::vector<VerifyMesh>& meshes) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const MeshResult& result = results[i];
    if (!result.first) continue;
    const Difference& d = *result.first;
    const bool scalar = d.what == "loss" || d.what == "gradient norm";
    const double tolerance =
        scalar ? arguments.tolerance : arguments.state_tolerance.value_or(arguments.tolerance);
    throw_run_error("\"{}\" differs from \"{}\" first at step {}: {}{} is {} instead of {} (tolerance {}).{}",
                    result.name, results.front().name, d.step, d.what,
                    scalar ? "" : fmt::format(", element {},", d.element), number_text(d.found),
                    number_text(d.expected), tolerance,
                    reason_of(meshes[i].config, meshes.front().config, tolerance));
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
  if (arguments.state_tolerance && !(*arguments.state_tolerance >= 0.0)) {
    throw_user_error("--state-tolerance {} is not possible: it is 0 or a number above",
                     *arguments.state_tolerance);
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
      verify_meshes(meshes, arguments.steps,
                    {.results = arguments.tolerance, .states = arguments.state_tolerance}, on_threads);
  print(results, arguments);
  check_equal(results, arguments, meshes);
}

}  // namespace

void add_verify(CLI::App& app) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("verify", "Trains briefly on several meshes and compares every bit");
  add_config_arguments(*command, arguments->config);
  command
      ->add_option(
          "--mesh", arguments->meshes,
          "A mesh to compare: keys of [mesh], as \"dp=2 zero=3\", or section.key=value. Give it two times or "
          "more; the first is the reference")
      ->option_text("KEYS")
      ->allow_extra_args(false);
  command->add_option("--steps", arguments->steps, "Steps to train on each mesh")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option(
          "--tolerance", arguments->tolerance,
          "Accept losses and gradient norms that differ by this much, relatively; 0: every bit must be "
          "equal, of weights and optimizer state too")
      ->capture_default_str();
  command->add_option(
      "--state-tolerance", arguments->state_tolerance,
      "Accept elements of masters and optimizer state that differ by this much, relative to the "
      "largest of their tensor. By default, with a --tolerance above 0, such differences are only "
      "printed: Adam turns the rounding of a gradient near zero into a step of its own");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli
