// Whether meshes train the same model to the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/world.h"
#include "train/config.h"

namespace meshtrain {

// Runs `body` on as many ranks as the config's mesh has.
using RankRunner = std::function<void(const Config& config, const std::function<void(World&)>& body)>;

struct VerifyMesh {
  std::string name;  // as the user wrote it
  Config config;     // mesh filled in; but for what the mesh changes, that of the others
};

// The first value of a mesh that differs from the reference by more than the tolerance.
struct Difference {
  std::int64_t step = 0;
  std::string what;          // "loss", "gradient norm", or the name of a tensor
  std::int64_t element = 0;  // of a tensor
  double expected = 0.0;
  double found = 0.0;
};

struct MeshResult {
  std::string name;
  double last_loss = 0.0;
  double last_norm = 0.0;
  // The largest relative difference from the reference at any step.
  double loss_difference = 0.0;
  double norm_difference = 0.0;
  double state_difference = 0.0;
  bool same_bits = true;
  std::optional<Difference> first;  // beyond the tolerance
};

// Relative differences that pass. Adam turns the rounding of a gradient near zero into a step of its own, so
// where sums are rounded in another order states differ by more than losses, without harm.
struct Tolerance {
  double results = 0.0;  // of losses and gradient norms; 0: no bit may differ, nor of states
  std::optional<double> states = std::nullopt;  // nothing: where results may differ, states are only reported
};

// Trains `steps` steps on each mesh, the first being the reference of the others, and compares losses, gradient
// norms, and masters and optimizer state by name, after every step. A difference is relative: to the
// reference's loss or norm, or to the largest magnitude in the reference's tensor, which counts as at least
// kNoise of the largest in all tensors of its kind: what should be zero, like the key biases of attention, is
// noise. Copies that tensor-parallel ranks hold of a slice must be equal to the bit, whatever the tolerance:
// else RunError. The reference's states are kept in an unlinked file of the temporary folder; RunError when
// that is full.
inline constexpr double kNoise = 1e-6;
std::vector<MeshResult> verify_meshes(const std::vector<VerifyMesh>& meshes, std::int64_t steps,
                                      const Tolerance& tolerance, const RankRunner& run);

}  // namespace meshtrain
