#include "train/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/scratch_file.h"
#include "data/tokenizer.h"
#include "train/assembly.h"
#include "train/checkpointing.h"
#include "train/memory_plan.h"
#include "train/model_source.h"
#include "train/run_data.h"
#include "train/step.h"
#include "train/whole_state.h"

namespace meshtrain {
namespace {

// Calls visit(step, result, state) on the rank that leads after each step of a run on one rank of a mesh.
template <class Visit>
void train_and_visit(const Config& config, World& world, std::int64_t steps, const Visit& visit) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(config.data.tokenizer);
  const RunData data(config, *tokenizer);
  const std::unique_ptr<Device> device = world.make_device();
  Assembly assembly(config, *device, world, plan_memory(config, *device, world));
  initialize_weights(assembly);
  RunPosition place;
  while (place.step < steps) {
    ++place.step;
    const Batch batch = rank_batch(data.train(), assembly, place.position);
    const double lr = learning_rate(assembly.schedule, place.step);
    const StepResult result =
        train_step(assembly, {.tokens = batch.tokens, .targets = batch.targets}, lr, place.updates + 1);
    place.position += config.train.global_batch;
    place.updates += result.skipped ? 0 : 1;
    WholeState state(assembly, Copies::kCompare);
    if (assembly.leads()) visit(place.step, result, state);
  }
}

double largest_magnitude(std::span<const float> values) {
  double largest = 0.0;
  for (const float value : values) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

std::vector<NamedTensor> tensors_of(const WholeState& state) {
  std::vector<NamedTensor> all = state.model();
  all.insert(all.end(), state.optimizer().begin(), state.optimizer().end());
  return all;
}

double relative(double difference, double magnitude) {
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  if (difference == 0.0) return 0.0;
  return difference / magnitude;  // infinite where the reference is zero
}

// Masters; or the optimizer state of this name, "layers.0.attn.q.weight.m" being an "m".
using Kind = std::string;
Kind kind_of(const NamedTensor& tensor, const WholeState& state) {
  const bool master = std::any_of(state.model().begin(), state.model().end(),
                                  [&](const NamedTensor& t) { return t.name == tensor.name; });
  return master ? "" : tensor.name.substr(tensor.name.rfind('.') + 1);
}

struct Reference {
  struct Step {
    StepResult result;
    std::map<Kind, double> largest;
  };
  std::vector<Step> steps;
  ScratchFile states;  // of each step, tensor by tensor

  void record(const StepResult& result, const WholeState& state) {
    Step step{.result = result, .largest = {}};
    for (const NamedTensor& tensor : tensors_of(state)) {
      const std::span<const float> values = tensor.get();
      states.append(std::as_bytes(values));
      double& largest = step.largest[kind_of(tensor, state)];
      largest = std::max(largest, largest_magnitude(values));
    }
    steps.push_back(std::move(step));
  }
};

// One mesh against the reference, step by step.
class Comparison {
 public:
  Comparison(const Reference& reference, const Tolerance& tolerance, MeshResult& result)
      : reference_(reference), tolerance_(tolerance), result_(result) {}

  void see(std::int64_t step, const StepResult& found, const WholeState& state) {
    step_ = step;
    const Reference::Step& reference = reference_.steps[static_cast<std::size_t>(step - 1)];
    const StepResult& expected = reference.result;
    compare("loss", expected.loss, found.loss, result_.loss_difference);
    compare("gradient norm", expected.grad_norm, found.grad_norm, result_.norm_difference);
    for (const NamedTensor& tensor : tensors_of(state)) {
      compare(tensor, kNoise * reference.largest.at(kind_of(tensor, state)));
    }
    result_.last_loss = found.loss;
    result_.last_norm = found.grad_norm;
  }

 private:
  void compare(const char* what, double expected, double found, double& largest) {
    if (std::memcmp(&expected, &found, sizeof(double)) == 0) return;
    const double difference = relative(std::abs(expected - found), std::abs(expected));
    largest = std::max(largest, difference);
    note(difference, tolerance_.results, {.step = step_, .what = what, .expected = expected, .found = found});
  }

  void compare(const NamedTensor& tensor, double least_magnitude) {
    expected_.resize(static_cast<std::size_t>(tensor.shape.numel()));
    reference_.states.read(offset_, std::as_writable_bytes(std::span(expected_)));
    offset_ += tensor.bytes();
    const std::span<const float> found = tensor.get();
    if (std::memcmp(expected_.data(), found.data(), found.size_bytes()) == 0) return;
    const double magnitude = std::max(largest_magnitude(expected_), least_magnitude);
    const double passes =
        tolerance_.states.value_or(tolerance_.results > 0.0 ? std::numeric_limits<double>::infinity() : 0.0);
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      if (std::memcmp(&expected_[i], &found[i], sizeof(float)) == 0) continue;
      const double expected = expected_[i];
      const double difference = relative(std::abs(expected - found[i]), magnitude);
      result_.state_difference = std::max(result_.state_difference, difference);
      note(difference, passes,
           {.step = step_,
            .what = tensor.name,
            .element = static_cast<std::int64_t>(i),
            .expected = expected,
            .found = found[i]});
    }
  }

  // Called where bits differ, which is a difference even if the values do not (0 and -0).
  void note(double difference, double passes, const Difference& here) {
    result_.same_bits = false;
    if (result_.first || (passes > 0.0 && difference <= passes)) return;
    result_.first = here;
  }

  const Reference& reference_;
  Tolerance tolerance_;
  MeshResult& result_;
  std::int64_t step_ = 0;
  std::int64_t offset_ = 0;
  std::vector<float> expected_;
};

template <class Body>
void named(const VerifyMesh& mesh, const Body& body) {
  try {
    body();
  } catch (const UserError& error) {
    throw_user_error("--mesh \"{}\": {}", mesh.name, error.what());
  } catch (const RunError& error) {
    throw_run_error("--mesh \"{}\": {}", mesh.name, error.what());
  }
}

}  // namespace

std::vector<MeshResult> verify_meshes(const std::vector<VerifyMesh>& meshes, std::int64_t steps,
                                      const Tolerance& tolerance, const RankRunner& run) {
  std::vector<MeshResult> results;
  Reference reference;
  for (const VerifyMesh& mesh : meshes) {
    MeshResult result;
    result.name = mesh.name;
    const bool first = results.empty();
    Comparison comparison(reference, tolerance, result);
    const auto visit = [&](std::int64_t step, const StepResult& found, const WholeState& state) {
      if (first) {
        reference.record(found, state);
        result.last_loss = found.loss;
        result.last_norm = found.grad_norm;
      } else {
        comparison.see(step, found, state);
      }
    };
    named(mesh,
          [&] { run(mesh.config, [&](World& world) { train_and_visit(mesh.config, world, steps, visit); }); });
    results.push_back(std::move(result));
  }
  return results;
}

}  // namespace meshtrain
