#include "train/run_summary.h"

#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "comm/agreement.h"
#include "model/flops.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

nlohmann::json number_or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nullptr;
}

nlohmann::json to_json(const CommStats& sent) {
  nlohmann::json json;
  for (std::size_t i = 0; i < kTrafficKinds; ++i)
    json[std::string(name_of(static_cast<Traffic>(i)))] = sent.sent[i];
  return json;
}

nlohmann::json to_json(const std::vector<RankSummary>& ranks) {
  nlohmann::json json = nlohmann::json::array();
  for (const RankSummary& rank : ranks) {
    json.push_back({{"rank", json.size()},
                    {"memory", memory_to_json(rank.memory)},
                    {"sent_bytes", to_json(rank.sent)},
                    {"sent_bytes_by_axis", to_json(rank.by_axis)}});
  }
  return json;
}

}  // namespace

std::vector<RankSummary> summaries_of_ranks(Assembly& assembly) {
  const RankSummary own = {
      .memory = assembly.peak_memory(), .sent = assembly.sent(), .by_axis = axis_bytes_of(assembly)};
  return gather_from_ranks<RankSummary>(*assembly.groups.control, {&own, 1}, Traffic::kOther);
}

std::string to_json_text(const RunSummary& summary) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::json json = {
      {"steps", summary.steps},
      {"updates", summary.updates},
      {"rollbacks", summary.rollbacks},
      {"parameters", summary.parameters},
      {"loss", number_or_null(summary.loss)},
      {"tokens", summary.tokens},
      {"seconds", summary.seconds},
      {"tokens_per_second", summary.tokens_per_second},
      {"threads", summary.threads},
      {"peak_tflops", summary.peak_tflops > 0.0 ? nlohmann::json(summary.peak_tflops) : nullptr},
      {"flop_convention", kFlopConvention},
      {"engine", summary.engine},
      {"memory", memory_to_json(summary.ranks.front().memory)},
      {"ranks", to_json(summary.ranks)},
      {"peak_resident_bytes", static_cast<std::int64_t>(usage.ru_maxrss) * 1024},
      {"checkpoint", summary.checkpoint},
      {"checkpoints",
       {{"saved", summary.saves.saves},
        {"bytes", summary.saves.bytes},
        {"stalled_seconds", summary.stalled_seconds},
        {"write_seconds", summary.saves.write_seconds}}},
  };
  if (summary.evaluation) {
    json["eval_loss"] = summary.evaluation->nats_per_token;
    json["eval_tokens"] = summary.evaluation->tokens;
    if (std::isfinite(summary.evaluation->bits_per_byte)) {
      json["eval_bits_per_byte"] = summary.evaluation->bits_per_byte;
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace meshtrain
