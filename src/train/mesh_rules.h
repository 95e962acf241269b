// Which meshes are possible.
#pragma once

#include <cstdint>

#include "train/config.h"

namespace meshtrain {

// Throws UserError when no number of ranks could train config.model on config.mesh: it names the key, its
// value, why, and the nearest values that would do. What needs the number of ranks is checked by for_ranks()
// (train/mesh.h). Everything but [mesh] must be valid already; model.vocab may be unknown, mesh.dp open.
void check_mesh(const Config& config);

// Of an optimizer step, over all ranks: mesh.dp must divide them.
std::int64_t micro_batches_of(const Config& config);

}  // namespace meshtrain
