// What turns gradients into new parameters. An optimizer sees flat shards and knows neither the mesh
// nor the tensors they are cut from: every rule is element by element, so a shard may be cut anywhere.
//
// The rules are torch.optim's, bit for bit on fp32 (docs/numerics.md). A new one is a file with a
// factory and one line in the table of optimizer.cc.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain {

// The hyperparameters of the config's [optimizer], of which each rule takes its own.
struct OptimizerSettings {
  std::string name = "adamw";                 // one of optimizer_names()
  std::array<double, 2> betas = {0.9, 0.95};  // adam, adamw
  double eps = 1e-8;                          // adagrad, rmsprop, adam, adamw
  double weight_decay = 0.1;                  // adamw: decoupled; others: L2, added to the gradient
  double momentum = 0.9;                      // momentum, nesterov, rmsprop; 0: none, and no velocity is kept
  double alpha = 0.99;                        // rmsprop
};

// One shard: tensors of one length, on the device of the stream.
struct ParameterSpan {
  static constexpr std::size_t kMaxStates = 2;

  Tensor master;    // fp32, updated in place
  Tensor gradient;  // fp32, bf16 or fp16, read
  Tensor weight;    // optional: bf16 or fp16, receives the rounded master
  // fp32, in the order of Optimizer::state_names(), zero before the first step; updated in place.
  std::array<Tensor, kMaxStates> states;
  bool decay = true;  // false: weight decay leaves this shard alone (norms, biases)
};

struct StepInfo {
  double lr = 0.0;
  std::int64_t step = 1;        // this is the step-th update applied, from 1; skipped ones do not count
  float gradient_scale = 1.0F;  // multiplies the gradient first: clipping, loss scale
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  virtual std::string_view name() const = 0;

  // Names of the state tensors, as checkpoints call them. Their number is that of fp32 values kept a
  // parameter, at most ParameterSpan::kMaxStates.
  virtual std::span<const std::string_view> state_names() const = 0;

  // Queues one update of one shard. Holds no state of its own: shards may come in any order.
  virtual void step(Stream& stream, const ParameterSpan& span, const StepInfo& info) const = 0;
};

// In the order that messages list them.
std::vector<std::string> optimizer_names();

// Throws UserError for an unknown name, naming the nearest, and for a hyperparameter out of range.
std::unique_ptr<const Optimizer> make_optimizer(const OptimizerSettings& settings);

}  // namespace meshtrain
