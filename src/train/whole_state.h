// The state of a run in one place, to compare it: whole tensors, wherever their parts lie, under the names that
// checkpoints have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/tensor.h"
#include "train/assembly.h"
#include "train/mesh_layout.h"
#include "train/unit_gather.h"

namespace meshtrain {

struct NamedTensor {
  std::string name;
  Shape shape;
  // Called once, in the order of the lists below, model first; what it gives lasts until the next call.
  std::function<const void*()> fetch;

  std::int64_t bytes() const { return shape.numel() * size_of(DType::kF32); }
  std::span<const float> get() const {
    return {static_cast<const float*>(fetch()), static_cast<std::size_t>(shape.numel())};
  }
};

// Masters and optimizer state of every rank, for the one that leads (Assembly::leads), with the names, shapes
// and order of a model on one rank: views of the assembly's memory where it owns a unit whole, else fetched
// unit by unit from the ranks that own slices and parts. The others have none, and send theirs in the
// constructor, which waits for rank 0 to fetch them all: it must read every tensor, in order, model first.
class WholeState {
 public:
  // A collective call. The assembly must outlive the use of its tensors, and nothing may change meanwhile.
  // Where copies are compared, reading a tensor throws RunError when they differ.
  explicit WholeState(Assembly& assembly, Copies copies = Copies::kFirst);
  WholeState(const WholeState&) = delete;
  WholeState& operator=(const WholeState&) = delete;

  const std::vector<NamedTensor>& model() const { return model_; }
  const std::vector<NamedTensor>& optimizer() const { return optimizer_; }

 private:
  // Whole units that were fetched: of masters, of all optimizer states together.
  struct Fetched {
    int unit = -1;
    std::vector<std::vector<float>> tensors;
  };
  const void* place(const Param& param, std::size_t index);
  void send_all();

  Assembly& assembly_;
  const MeshLayout& layout_;
  UnitGather gather_;
  Fetched masters_;
  Fetched states_;
  std::vector<NamedTensor> model_;
  std::vector<NamedTensor> optimizer_;
};

}  // namespace meshtrain
