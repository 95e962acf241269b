#include "train/run_summary.h"

#include <sys/resource.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/flops.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

nlohmann::json number_or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nullptr;
}

}  // namespace

std::string to_json_text(const RunSummary& summary) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  nlohmann::json json = {
      {"steps", summary.steps},
      {"updates", summary.updates},
      {"parameters", summary.parameters},
      {"loss", number_or_null(summary.loss)},
      {"tokens", summary.tokens},
      {"seconds", summary.seconds},
      {"tokens_per_second", summary.tokens_per_second},
      {"threads", summary.threads},
      {"peak_tflops", summary.peak_tflops > 0.0 ? nlohmann::json(summary.peak_tflops) : nullptr},
      {"flop_convention", kFlopConvention},
      {"memory", memory_to_json(summary.memory)},
      {"peak_resident_bytes", static_cast<std::int64_t>(usage.ru_maxrss) * 1024},
      {"checkpoint", summary.checkpoint},
  };
  if (summary.evaluation) {
    json["eval_loss"] = summary.evaluation->nats_per_token;
    if (std::isfinite(summary.evaluation->bits_per_byte)) {
      json["eval_bits_per_byte"] = summary.evaluation->bits_per_byte;
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace meshtrain
