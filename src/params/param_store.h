// The parameters of a model: who they are, and the flat memory that holds them.
//
// Parameters lie one after the other in units (an embedding, a block, the head), in order of use.
// Weights, fp32 masters, gradients and any per-element optimizer state share one layout: element i of
// one belongs to element i of the others, so an update or a reduction runs over flat ranges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain {

enum class Init : std::uint8_t { kZeros, kOnes, kNormal };

struct ParamDecl {
  std::string name;
  Shape shape;
  Init init = Init::kNormal;
  double deviation = 0.02;  // kNormal
  bool decay = true;        // weight decay applies
};

struct Param {
  ParamDecl decl;
  int unit = 0;
  std::int64_t offset = 0;  // elements from the start of the flat layout
  std::int64_t numel() const { return decl.shape.numel(); }
};

class ParamStore;

// A weight as a layer uses it: one parameter, or several stacked along their first dimension. Tensors
// are looked up at each call, since a sharding strategy may move them. The store must outlive it.
class ParamRef {
 public:
  ParamRef() = default;
  bool defined() const { return store_ != nullptr; }
  const Shape& shape() const { return shape_; }
  Tensor weight() const;    // compute dtype
  Tensor gradient() const;  // fp32

 private:
  friend class ParamStore;
  const ParamStore* store_ = nullptr;
  Shape shape_;
  std::int64_t offset_ = 0;
  std::int64_t gradient_offset_ = 0;
};

class ParamStore {
 public:
  ParamStore() = default;
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  // --- Declaration, before allocate(). ---
  // Later declarations belong to this unit.
  void begin_unit(std::string name);
  ParamRef declare(ParamDecl decl);
  // Adjacent in memory and used as one weight, [sum of first dimensions, rest]; names stay apart.
  ParamRef declare_fused(std::vector<ParamDecl> decls);
  // A second use of the same weight: its gradient has a buffer of its own, which
  // add_tied_gradients() sums into the first.
  ParamRef tie(const ParamRef& first_use);

  // --- Memory. ---
  // Gradients and masters are left out when the model will not be trained.
  void allocate(Device& device, DType compute, bool training);
  // Fills masters and weights from (seed, parameter name, element index).
  void initialize(Stream& stream, std::uint64_t seed);
  // Weights from masters, after masters were loaded.
  void refresh_weights(Stream& stream);
  // Adds the gradients of later uses of tied weights to the first, in order of declaration.
  void add_tied_gradients(Stream& stream);

  DType compute_dtype() const { return compute_; }
  const std::vector<Param>& params() const { return params_; }
  const std::vector<std::string>& units() const { return units_; }
  // Trained parameters, without padding.
  std::int64_t count() const;
  // Elements of the flat layout, padding included.
  std::int64_t flat_elements() const { return elements_; }
  // Elements of unit `unit`'s parameters, without padding.
  std::int64_t count_of_unit(int unit) const;

  // Views in the parameter's shape. The master of an fp32 model is the weight itself.
  Tensor weight(const Param& param) const;
  Tensor master(const Param& param) const;
  Tensor gradient(const Param& param) const;

 private:
  friend class ParamRef;
  struct TiedUse {
    std::int64_t offset;
    std::int64_t gradient_offset;
    Shape shape;
  };

  std::vector<Param> params_;
  std::vector<std::string> units_;
  std::vector<TiedUse> tied_;
  std::int64_t elements_ = 0;
  std::int64_t tied_elements_ = 0;
  DType compute_ = DType::kF32;
  Buffer weights_;
  Buffer masters_;
  Buffer gradients_;
};

}  // namespace meshtrain
