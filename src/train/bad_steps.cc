#include "train/bad_steps.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/number_text.h"

namespace meshtrain {
namespace {

std::string message(const BadStep& bad, const TrainConfig& train) {
  const std::string_view leave_out =
      train.on_bad_step == "stop" ? " (train.on_bad_step = \"rollback\" leaves them out)" : "";
  if (bad.reason != BadStepReason::kSpike) {
    return fmt::format(
        "the loss ({}) or the gradient norm ({}) is not finite, and the update was not applied; lower "
        "optimizer.lr, lengthen optimizer.warmup, set train.grad_clip, or look for damaged data in this step's "
        "samples{}",
        without_sign_of_nan(bad.loss), without_sign_of_nan(bad.grad_norm), leave_out);
  }
  return fmt::format(
      "the gradient norm ({:.6g}) is above {:.6g}, train.norm_spike = {} times the mean of the last {} "
      "steps, and the update was not applied; lower optimizer.lr, raise train.norm_spike, or look for damaged "
      "data in this step's samples{}",
      bad.grad_norm, bad.threshold.value_or(0.0), train.norm_spike, train.norm_spike_window, leave_out);
}

std::optional<BadStepRecord> read_record(const nlohmann::json& json) {
  BadStepRecord record;
  record.rollbacks = json.at("rollbacks");
  record.norms = json.at("norms").get<std::vector<double>>();
  std::vector<SampleRange> ranges;
  for (const nlohmann::json& range : json.at("left_out")) {
    ranges.push_back({.first = range.at(0), .count = range.at(1)});
  }
  const bool norms_possible =
      std::all_of(record.norms.begin(), record.norms.end(), [](double norm) { return norm >= 0.0; });
  if (record.rollbacks < 0 || !norms_possible || !LeftOut::possible(ranges)) return std::nullopt;
  record.left_out = LeftOut(std::move(ranges));
  return record;
}

}  // namespace

std::string_view name_of(BadStepReason reason) {
  switch (reason) {
    case BadStepReason::kLoss:
      return "loss not finite";
    case BadStepReason::kGradNorm:
      return "gradient norm not finite";
    case BadStepReason::kSpike:
      return "gradient norm spike";
  }
  return "?";
}

std::optional<double> spike_threshold(const TrainConfig& train, std::span<const double> norms) {
  if (train.norm_spike == 0.0 || norms.size() < static_cast<std::size_t>(train.norm_spike_window)) return {};
  const auto last = norms.last(static_cast<std::size_t>(train.norm_spike_window));
  const double sum = std::accumulate(last.begin(), last.end(), 0.0);
  if (sum == 0.0) return {};  // nothing but masked targets so far
  return train.norm_spike * (sum / static_cast<double>(last.size()));
}

std::optional<BadStep> judge(double loss, double grad_norm, std::optional<double> threshold) {
  BadStep bad{.reason = BadStepReason::kLoss, .loss = loss, .grad_norm = grad_norm, .threshold = threshold};
  if (!std::isfinite(loss)) return bad;
  bad.reason = BadStepReason::kGradNorm;
  if (!std::isfinite(grad_norm)) return bad;
  bad.reason = BadStepReason::kSpike;
  if (threshold && grad_norm > *threshold) return bad;
  return std::nullopt;
}

BadStepError::BadStepError(const BadStep& bad, const TrainConfig& train)
    : RunError(message(bad, train)), bad_(bad) {}

void remember_norm(const TrainConfig& train, double grad_norm, BadStepRecord& record) {
  std::vector<double>& norms = record.norms;
  if (train.norm_spike == 0.0) return norms.clear();
  norms.push_back(grad_norm);
  const auto most = static_cast<std::size_t>(train.norm_spike_window);
  if (norms.size() > most) norms.erase(norms.begin(), norms.end() - static_cast<std::ptrdiff_t>(most));
}

nlohmann::json to_json(const BadStepRecord& record) {
  nlohmann::json left_out = nlohmann::json::array();
  for (const SampleRange& range : record.left_out.ranges()) left_out.push_back({range.first, range.count});
  return {{"rollbacks", record.rollbacks}, {"left_out", left_out}, {"norms", record.norms}};
}

BadStepRecord bad_steps_from_json(const nlohmann::json& json, const std::string& from) {
  try {
    if (std::optional<BadStepRecord> record = read_record(json)) return *std::move(record);
  } catch (const nlohmann::json::exception&) {  // said below
  }
  throw_user_error("{} is damaged: what its manifest says of bad_steps is not possible", from);
}

}  // namespace meshtrain
