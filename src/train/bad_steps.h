// Steps that would harm the model: found before their update is applied, from values that every rank has.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/config.h"
#include "train/left_out.h"

namespace meshtrain {

enum class BadStepReason : std::uint8_t { kLoss, kGradNorm, kSpike };
// "loss not finite", "gradient norm not finite", "gradient norm spike".
std::string_view name_of(BadStepReason reason);

struct BadStep {
  BadStepReason reason = BadStepReason::kLoss;
  double loss = 0.0;
  double grad_norm = 0.0;
  std::optional<double> threshold;  // of the norm, where there was one
};

// What the gradient norm of the step after steps of these norms may be: train.norm_spike times their mean,
// summed in order; nothing while spikes are off or there are fewer than train.norm_spike_window.
std::optional<double> spike_threshold(const TrainConfig& train, std::span<const double> norms);

// Whether a step of this loss and norm (unscaled, before clipping) is a bad one.
std::optional<BadStep> judge(double loss, double grad_norm, std::optional<double> threshold);

// A bad step, whose update was not applied. The message says what to do.
class BadStepError : public RunError {
 public:
  BadStepError(const BadStep& bad, const TrainConfig& train);
  const BadStep& bad() const { return bad_; }

 private:
  BadStep bad_;
};

// What a run knows of its bad steps; part of its checkpoints, so that a run that is interrupted decides as one
// that is not.
struct BadStepRecord {
  std::int64_t rollbacks = 0;
  LeftOut left_out;  // the data of the steps that were rolled back
  std::vector<double>
      norms;  // of the last steps applied, train.norm_spike_window at most; none: spikes are off
  friend bool operator==(const BadStepRecord&, const BadStepRecord&) = default;
};

// After a step that was applied.
void remember_norm(const TrainConfig& train, double grad_norm, BadStepRecord& record);

nlohmann::json to_json(const BadStepRecord& record);
// Throws UserError for what to_json never gives; `from` is the checkpoint.
BadStepRecord bad_steps_from_json(const nlohmann::json& json, const std::string& from);

}  // namespace meshtrain
