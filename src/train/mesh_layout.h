// What the ranks of a mesh hold of a model, as any of them can tell.
#pragma once

#include <string>
#include <vector>

#include "comm/device_mesh.h"
#include "gradsync/gradient_norm.h"
#include "params/param_store.h"
#include "train/config.h"

namespace meshtrain {

// Names of the units of a whole model, in order.
std::vector<std::string> unit_names(const ModelSpec& spec);

// Where the sums of squares of this rank's units belong.
NormPlace norm_place_of(const Config& config, const DeviceMesh& mesh, const ParamStore& store);

}  // namespace meshtrain
