// Where the weights of a model are read from: a checkpoint that any mesh wrote, or a Hugging Face folder.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "device/tensor.h"

namespace meshtrain {

// Parameters have the names and shapes that model/ declares on one rank. Used by one thread.
class WeightSource {
 public:
  WeightSource() = default;
  WeightSource(const WeightSource&) = delete;
  WeightSource& operator=(const WeightSource&) = delete;
  virtual ~WeightSource() = default;

  // Stands for the source in messages.
  virtual const std::string& path() const = 0;
  // Elements [first, first + to.size()) of the parameter `name`, whose shape is `whole`, in row-major order.
  // Throws UserError when the source has no such parameter, or another shape of it.
  virtual void read(const std::string& name, const Shape& whole, std::int64_t first,
                    std::span<float> to) const = 0;
  // Gives back the memory of what was read so far, for sources that map files larger than memory.
  virtual void let_go() const {}
};

}  // namespace meshtrain
