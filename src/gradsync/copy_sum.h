// Gradients of parameters that several tensor-parallel ranks hold, each having seen a part: norms under
// sequence parallelism, key and value heads that are fewer than ranks. The sum over the copies keeps them
// equal.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "params/param_store.h"

namespace meshtrain::gradsync {

class CopySum {
 public:
  // `groups`: a communicator for every number of ranks that copies have, of this rank's copies; used by jobs of
  // the communication queue only. They outlive it.
  CopySum(Device& device, const ParamStore& store, std::vector<Communicator*> groups);

  // Sums the copies in `flat`, all gradients of a unit: one message for each number of ranks.
  void add(Stream& stream, int unit, const Tensor& flat) const;

 private:
  struct Group {
    Communicator* ranks = nullptr;
    std::vector<std::vector<CopyRange>> of_unit;
  };
  std::vector<Group> groups_;
  Buffer packed_;  // the copies of one unit, where they lie apart
};

}  // namespace meshtrain::gradsync
