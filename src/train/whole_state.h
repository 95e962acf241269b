// The state of a run as checkpoints name it: whole tensors, wherever their parts lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "train/assembly.h"

namespace meshtrain {

// Masters and optimizer state of every rank, for the one that leads (Assembly::leads): views of the assembly's
// memory where it holds them whole, else fetched unit by unit from the ranks that own their parts. The
// others have none, and send their parts in the constructor, which waits for rank 0 to fetch them all: it must
// read every tensor, in order, model first.
class WholeState {
 public:
  // A collective call. The state must outlive the use of its tensors, and nothing may change meanwhile.
  explicit WholeState(Assembly& assembly);
  WholeState(const WholeState&) = delete;
  WholeState& operator=(const WholeState&) = delete;

  const std::vector<NamedTensor>& model() const { return model_; }
  const std::vector<NamedTensor>& optimizer() const { return optimizer_; }

  // Bytes that it keeps on the rank that leads.
  static std::int64_t buffer_bytes(const ParamStore& params, std::size_t states);

 private:
  // Whole units that were fetched: of masters, of all optimizer states together.
  struct Fetched {
    int unit = -1;
    std::vector<std::vector<float>> tensors;
  };
  const void* place(const Param& param, std::size_t index);
  void fetch(int unit, std::size_t index, std::vector<float>& whole);

  Assembly& assembly_;
  Fetched masters_;
  Fetched states_;
  std::vector<NamedTensor> model_;
  std::vector<NamedTensor> optimizer_;
};

// Where the tensors of such a state go in this rank's memory: the parts that it owns.
struct StateDestinations {
  std::vector<TensorDestination> model;
  std::vector<TensorDestination> optimizer;
};
StateDestinations destinations_in(const Assembly& assembly);

}  // namespace meshtrain
