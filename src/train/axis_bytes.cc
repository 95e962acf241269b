#include "train/axis_bytes.h"

#include <nlohmann/json.hpp>

#include "train/assembly.h"

namespace meshtrain {
namespace {

std::int64_t of_training(const CommStats& sent) {
  return sent.sent_for(Traffic::kGradients) + sent.sent_for(Traffic::kParameters) +
         sent.sent_for(Traffic::kTensor) + sent.sent_for(Traffic::kPipeline);
}

std::int64_t of_training(const std::unique_ptr<Communicator>& group) {
  return group ? of_training(group->stats()) : 0;
}

}  // namespace

AxisBytes axis_bytes_of(const Assembly& assembly) {
  const RankGroups& groups = assembly.groups;
  AxisBytes bytes;
  bytes[AxisTraffic::kTensorLayers] = of_training(groups.tensor) + of_training(groups.tensor_background);
  bytes[AxisTraffic::kTensorCopies] = of_training(groups.copies) + of_training(groups.head_copies);
  bytes[AxisTraffic::kNextStage] = of_training(assembly.executor->sent_to_next());
  bytes[AxisTraffic::kPreviousStage] = of_training(assembly.executor->sent_to_previous());
  bytes[AxisTraffic::kTiedTable] = of_training(groups.tied);
  bytes[AxisTraffic::kDataGradients] = groups.dp->stats().sent_for(Traffic::kGradients);
  bytes[AxisTraffic::kDataParameters] = groups.dp->stats().sent_for(Traffic::kParameters);
  return bytes;
}

nlohmann::json to_json(const AxisBytes& bytes) {
  return {
      {"tp", {{"layers", bytes[AxisTraffic::kTensorLayers]}, {"copies", bytes[AxisTraffic::kTensorCopies]}}},
      {"pp",
       {{"next", bytes[AxisTraffic::kNextStage]},
        {"previous", bytes[AxisTraffic::kPreviousStage]},
        {"tied", bytes[AxisTraffic::kTiedTable]}}},
      {"dp",
       {{"gradients", bytes[AxisTraffic::kDataGradients]},
        {"parameters", bytes[AxisTraffic::kDataParameters]}}}};
}

}  // namespace meshtrain
