#include "params/param_store.h"

#include <utility>

#include "base/philox.h"
#include "base/round_up.h"
#include "ops/elementwise.h"

namespace meshtrain {
namespace {

// Elements; a weight starts on a cache line in every dtype.
constexpr std::int64_t kAlignElements = 32;

Tensor at(const Buffer& buffer, DType dtype, std::int64_t offset, const Shape& shape) {
  check(buffer.data() != nullptr, "a parameter buffer was used before it was allocated");
  return tensor_in(buffer, offset * size_of(dtype), dtype, shape);
}

}  // namespace

Tensor ParamRef::weight() const {
  return at(store_->weights_, store_->compute_, offset_, shape_);
}

Tensor ParamRef::gradient() const {
  return at(store_->gradients_, DType::kF32, gradient_offset_, shape_);
}

void ParamStore::begin_unit(std::string name) {
  units_.push_back(std::move(name));
}

ParamRef ParamStore::declare(ParamDecl decl) {
  return declare_fused({std::move(decl)});
}

ParamRef ParamStore::declare_fused(std::vector<ParamDecl> decls) {
  check(!units_.empty() && tied_.empty(), "declare parameters inside a unit, before tied uses");
  elements_ = round_up(elements_, kAlignElements);
  ParamRef ref;
  ref.store_ = this;
  ref.shape_ = decls.front().shape;
  ref.shape_[0] = 0;
  ref.offset_ = ref.gradient_offset_ = elements_;
  for (ParamDecl& decl : decls) {
    ref.shape_[0] += decl.shape[0];
    Param param{.decl = std::move(decl), .unit = static_cast<int>(units_.size()) - 1, .offset = elements_};
    elements_ += param.numel();
    params_.push_back(std::move(param));
  }
  check(ref.shape_.numel() == elements_ - ref.offset_, "fused parameters differ in more than their rows");
  return ref;
}

ParamRef ParamStore::tie(const ParamRef& first_use) {
  ParamRef ref = first_use;
  // Behind all others: no parameter may be declared after a tied use.
  ref.gradient_offset_ = round_up(elements_, kAlignElements) + tied_elements_;
  tied_.push_back({.offset = ref.offset_, .gradient_offset = ref.gradient_offset_, .shape = ref.shape_});
  tied_elements_ += round_up(first_use.shape_.numel(), kAlignElements);
  return ref;
}

void ParamStore::allocate(Device& device, DType compute, bool training) {
  elements_ = round_up(elements_, kAlignElements);
  compute_ = compute;
  weights_ = device.allocate(elements_ * size_of(compute), MemoryCategory::kParameters);
  if (!training) return;
  gradients_ = device.allocate((elements_ + tied_elements_) * size_of(DType::kF32), MemoryCategory::kGradients);
  if (compute != DType::kF32) {
    masters_ = device.allocate(elements_ * size_of(DType::kF32), MemoryCategory::kMaster);
  }
}

void ParamStore::initialize(Stream& stream, std::uint64_t seed) {
  for (const Param& param : params_) {
    const Tensor target = master(param).view({param.numel()});
    switch (param.decl.init) {
      case Init::kZeros:
        ops::fill(stream, target, 0.0F);
        break;
      case Init::kOnes:
        ops::fill(stream, target, 1.0F);
        break;
      case Init::kNormal:
        ops::fill_normal(stream, target, RandomStream(seed, "init/" + param.decl.name), 0, 0.0F,
                         static_cast<float>(param.decl.deviation));
        break;
    }
  }
  refresh_weights(stream);
}

void ParamStore::refresh_weights(Stream& stream) {
  if (compute_ == DType::kF32) return;
  const Shape flat = {elements_};
  ops::cast(stream, at(masters_, DType::kF32, 0, flat), at(weights_, compute_, 0, flat));
}

void ParamStore::add_tied_gradients(Stream& stream) {
  for (const TiedUse& use : tied_) {
    const Shape flat = {use.shape.numel()};
    const Tensor first = at(gradients_, DType::kF32, use.offset, flat);
    ops::add(stream, first, at(gradients_, DType::kF32, use.gradient_offset, flat), first);
  }
}

std::int64_t ParamStore::count() const {
  std::int64_t total = 0;
  for (const Param& param : params_) total += param.numel();
  return total;
}

std::int64_t ParamStore::count_of_unit(int unit) const {
  std::int64_t total = 0;
  for (const Param& param : params_) total += param.unit == unit ? param.numel() : 0;
  return total;
}

Tensor ParamStore::weight(const Param& param) const {
  return at(weights_, compute_, param.offset, param.decl.shape);
}

Tensor ParamStore::master(const Param& param) const {
  return at(compute_ == DType::kF32 ? weights_ : masters_, DType::kF32, param.offset, param.decl.shape);
}

Tensor ParamStore::gradient(const Param& param) const {
  return at(gradients_, DType::kF32, param.offset, param.decl.shape);
}

}  // namespace meshtrain
