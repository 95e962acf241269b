// The state of a run as checkpoints name it: whole tensors, wherever their parts lie.
#pragma once

#include <cstddef>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_writer.h"
#include "train/assembly.h"

namespace meshtrain {

// Masters and optimizer state of every rank, on the rank that leads (Assembly::leads): views of the assembly's
// memory where it holds them whole, else of a copy. The others have none.
class WholeState {
 public:
  // A collective call.
  explicit WholeState(Assembly& assembly);

  const std::vector<NamedTensor>& model() const { return model_; }
  const std::vector<NamedTensor>& optimizer() const { return optimizer_; }

 private:
  std::vector<std::byte> copy_;
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
