// The state of a run as checkpoints name it: whole tensors, wherever their parts lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "train/assembly.h"
#include "train/mesh_layout.h"
#include "train/unit_gather.h"

namespace meshtrain {

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

  // Bytes that it keeps on the rank that leads, where data-parallel ranks hold so many parts of a state.
  static std::int64_t buffer_bytes(const MeshLayout& layout, int parts, std::size_t states);

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

// Where the tensors of such a state go in this rank's memory: the slices and parts that it owns.
struct StateDestinations {
  std::vector<TensorDestination> model;
  std::vector<TensorDestination> optimizer;
};
StateDestinations destinations_in(const Assembly& assembly);

}  // namespace meshtrain
