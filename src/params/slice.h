// Which part of a parameter a tensor-parallel rank holds, in the coordinates of the whole.
#pragma once

#include <cstdint>
#include <functional>

#include "device/tensor.h"

namespace meshtrain {

// Places [first, first + shape[dim]) of dimension `dim` of a parameter of shape `whole`. What reaches beyond
// the whole's end is padding, which stays zero, counts for nothing and is never saved.
struct ParamSlice {
  Shape whole;  // rank 0: the parameter is held as it is declared
  int dim = 0;
  std::int64_t first = 0;
  friend bool operator==(const ParamSlice&, const ParamSlice&) = default;
};

// Tensor-parallel ranks [k·ranks, (k + 1)·ranks) hold the same slice.
struct ParamCopies {
  int ranks = 1;
  bool first = true;  // whether this rank's copy is the one that norms count and checkpoints hold
  bool partial =
      false;  // each copy sees a part of the gradient: the parts are summed, so that copies stay equal
  friend bool operator==(const ParamCopies&, const ParamCopies&) = default;
};

// Elements [local, local + count) of the slice are elements [global, global + count) of the whole.
struct SliceRun {
  std::int64_t local = 0;
  std::int64_t global = 0;
  std::int64_t count = 0;
  friend bool operator==(const SliceRun&, const SliceRun&) = default;
};

// Elements of a parameter held in `shape`, padding left out.
std::int64_t held_elements(const Shape& shape, const ParamSlice& slice);

// Elements [first, first + count) of a parameter held in `shape` as runs of the whole, in order, padding left
// out. Runs are as long as they can be.
void for_each_run(const Shape& shape, const ParamSlice& slice, std::int64_t first, std::int64_t count,
                  const std::function<void(const SliceRun&)>& visit);

}  // namespace meshtrain
