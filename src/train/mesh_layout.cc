#include "train/mesh_layout.h"

#include <algorithm>

#include "base/error.h"
#include "model/transformer.h"

namespace meshtrain {

std::vector<std::string> unit_names(const ModelSpec& spec) {
  const std::unique_ptr<Device> device = make_sim_device();
  ParamStore store;
  const Transformer model(spec, store, *device, {.positions = 1});
  std::vector<std::string> names;
  for (const Unit& unit : store.units()) names.push_back(unit.name);
  return names;
}

NormPlace norm_place_of(const Config& config, const DeviceMesh& mesh, const ParamStore& store) {
  NormPlace place = {.tensor_ranks = static_cast<int>(mesh.size("tp")),
                     .tensor_rank = static_cast<int>(mesh.coordinate("tp")),
                     .counts = mesh.coordinate("dp") == 0};
  const std::vector<std::string> names = unit_names(config.model);
  for (const Unit& unit : store.units()) {
    if (unit.copy) {
      place.unit.push_back(-1);
      continue;
    }
    const auto found = std::find(names.begin(), names.end(), unit.name);
    check(found != names.end(), "a unit that the whole model lacks");
    place.unit.push_back(static_cast<int>(found - names.begin()));
  }
  place.model_units = names.size();
  return place;
}

}  // namespace meshtrain
