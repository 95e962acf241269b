#include "params/param_store.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/philox.h"
#include "base/round_up.h"
#include "ops/elementwise.h"

namespace meshtrain {
namespace {

// Elements; a weight starts on a cache line in every dtype.
constexpr std::int64_t kAlignElements = 32;

// `shape` at element `offset` of a flat tensor.
Tensor view_at(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  check(flat.defined(), "a weight or gradient was used that has no memory at the moment");
  return flat.slice(0, offset, shape.numel()).view(shape);
}

Tensor flat_in(const Buffer& buffer, DType dtype, std::int64_t offset, std::int64_t count) {
  if (buffer.data() == nullptr) return {};
  return tensor_in(buffer, offset * size_of(dtype), dtype, {count});
}

void fill_init(Stream& stream, const OwnedSlice& slice, std::uint64_t seed) {
  const ParamDecl& decl = slice.param->decl;
  const RandomStream random(seed, "init/" + decl.name);
  for_each_run(decl.shape, decl.slice, slice.first, slice.count, [&](const SliceRun& run) {
    const Tensor out = slice.master.slice(0, run.local - slice.first, run.count);
    switch (decl.init) {
      case Init::kZeros:
        return ops::fill(stream, out, 0.0F);
      case Init::kOnes:
        return ops::fill(stream, out, 1.0F);
      case Init::kNormal:
        return ops::fill_normal(stream, out, random, run.global, 0.0F, static_cast<float>(decl.deviation));
    }
  });
}

}  // namespace

Tensor ParamRef::weight() const {
  return view_at(store_->unit_weights(unit_), offset_, shape_);
}

Tensor ParamRef::gradient() const {
  if (tied_use_ >= 0) return view_at(store_->tied_gradients(tied_use_), offset_, shape_);
  return view_at(store_->unit_gradients(unit_), offset_, shape_);
}

ParamStore::ParamStore(int parts) : unit_multiple_(std::lcm(kAlignElements, kCutElements * parts)) {}

void ParamStore::close_unit() {
  if (!units_.empty()) units_.back().elements = round_up(units_.back().elements, unit_multiple_);
}

void ParamStore::begin_unit(std::string name, bool copy) {
  close_unit();
  check(copy || units_.empty() || !units_.back().copy, "copies come last");
  units_.push_back({.name = std::move(name), .begin = flat_elements(), .copy = copy});
}

ParamRef ParamStore::declare(ParamDecl decl) {
  return declare_fused({std::move(decl)});
}

ParamRef ParamStore::declare_fused(std::vector<ParamDecl> decls) {
  check(!units_.empty(), "declare parameters inside a unit");
  Unit& unit = units_.back();
  unit.elements = round_up(unit.elements, kAlignElements);
  ParamRef ref;
  ref.store_ = this;
  ref.unit_ = static_cast<int>(units_.size()) - 1;
  ref.shape_ = decls.front().shape;
  ref.shape_[0] = 0;
  ref.offset_ = unit.elements;
  for (ParamDecl& decl : decls) {
    ref.shape_[0] += decl.shape[0];
    Param param{.decl = std::move(decl), .unit = ref.unit_, .offset = unit.end()};
    unit.elements += param.numel();
    params_.push_back(std::move(param));
  }
  check(ref.shape_.numel() == unit.elements - ref.offset_, "fused parameters differ in more than their rows");
  return ref;
}

ParamRef ParamStore::tie(const ParamRef& first_use, int user) {
  ParamRef ref = first_use;
  ref.tied_use_ = static_cast<int>(tied_.size());
  tied_.push_back({.unit = user, .owner = ref.unit_});
  return ref;
}

void ParamStore::allocate(Device& device, const Memory& memory) {
  close_unit();
  memory_ = memory;
  unit_weights_.resize(units_.size());
  unit_gradients_.resize(units_.size());
  const Sharding& sharding = memory.sharding;
  const std::int64_t all = flat_elements();
  const std::int64_t trained = trained_elements();
  weights_ = device.allocate((sharding.weights ? all / sharding.parts : all) * size_of(memory.compute),
                             MemoryCategory::kParameters);
  for (std::size_t i = 0; i < units_.size() && !sharding.weights; ++i) {
    unit_weights_[i] = flat_in(weights_, memory.compute, units_[i].begin, units_[i].elements);
  }
  if (!memory.training) return;
  gradients_ = device.allocate((sharding.gradients ? owned_elements() : trained) * size_of(memory.gradients),
                               MemoryCategory::kGradients);
  if (memory.compute != DType::kF32) {
    masters_ = device.allocate(owned_elements() * size_of(DType::kF32), MemoryCategory::kMaster);
  }
  std::int64_t tied_elements = 0;
  for (const TiedUse& use : tied_) tied_elements += at(use.owner).elements;
  // Not the gradient of a parameter yet: a part of one.
  tied_gradients_ = device.allocate(tied_elements * size_of(memory.gradients), MemoryCategory::kWorkspace);
  for (std::size_t i = 0; i < units_.size() && !sharding.gradients; ++i) {
    if (!units_[i].copy) {
      unit_gradients_[i] = flat_in(gradients_, memory.gradients, units_[i].begin, units_[i].elements);
    }
  }
}

void ParamStore::initialize(Stream& stream, std::uint64_t seed) {
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    for (const OwnedSlice& slice : owned_slices(static_cast<int>(unit))) fill_init(stream, slice, seed);
  }
  refresh_weights(stream);
}

void ParamStore::refresh_weights(Stream& stream) {
  if (memory_.compute == DType::kF32) return;
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) {
    if (!at(unit).copy) ops::cast(stream, owned_masters(unit), owned_weights(unit));
  }
}

std::int64_t ParamStore::trained_elements() const {
  std::int64_t end = 0;
  for (const Unit& unit : units_) end = unit.copy ? end : unit.end();
  return end;
}

std::int64_t ParamStore::count() const {
  std::int64_t total = 0;
  for (const Param& param : params_) total += at(param.unit).copy ? 0 : param.held();
  return total;
}

std::int64_t ParamStore::largest_unit() const {
  std::int64_t elements = 0;
  for (const Unit& unit : units_) elements = std::max(elements, unit.elements);
  return elements;
}

std::int64_t ParamStore::count_of_unit(int unit) const {
  std::int64_t total = 0;
  for (const Param& param : params_) total += param.unit == unit ? param.held() : 0;
  return total;
}

std::vector<ops::ElementRange> ParamStore::uncounted(int unit) const {
  std::vector<ops::ElementRange> ranges;
  for (const Param& param : params_) {
    if (param.unit != unit || param.decl.copies.first) continue;
    const std::int64_t begin = param.offset - at(unit).begin;
    ranges.push_back({.begin = begin, .end = begin + param.numel()});
  }
  return ranges;
}

std::vector<CopyRange> ParamStore::partial_copies(int unit) const {
  std::vector<CopyRange> ranges;
  bool adjacent = false;  // the last range ends with the parameter before
  for (const Param& param : params_) {
    if (param.unit != unit) continue;
    const ParamCopies& copies = param.decl.copies;
    const bool shared = copies.partial && copies.ranks > 1;
    const std::int64_t begin = param.offset - at(unit).begin;
    const std::int64_t end = begin + param.numel();
    if (shared && adjacent && ranges.back().ranks == copies.ranks) {
      ranges.back().end = end;
    } else if (shared) {
      ranges.push_back({.begin = begin, .end = end, .ranks = copies.ranks});
    }
    adjacent = shared;
  }
  return ranges;
}

Tensor ParamStore::unit_weights(int unit) const {
  return unit_weights_[static_cast<std::size_t>(unit)];
}

Tensor ParamStore::unit_gradients(int unit) const {
  return unit_gradients_[static_cast<std::size_t>(unit)];
}

Tensor ParamStore::tied_gradients(int tied_use) const {
  std::int64_t begin = 0;
  for (int i = 0; i < tied_use; ++i) begin += at(tied_[static_cast<std::size_t>(i)].owner).elements;
  const std::int64_t elements = at(tied_[static_cast<std::size_t>(tied_use)].owner).elements;
  return flat_in(tied_gradients_, memory_.gradients, begin, elements);
}

Tensor ParamStore::gradients_of_units(int first, int last) const {
  check(!memory_.sharding.gradients, "the gradients of several units, which lie apart");
  return flat_in(gradients_, memory_.gradients, at(first).begin, at(last).end() - at(first).begin);
}

void ParamStore::place_weights(int unit, const Tensor& flat) {
  unit_weights_[static_cast<std::size_t>(unit)] = flat;
}

void ParamStore::place_gradients(int unit, const Tensor& flat) {
  unit_gradients_[static_cast<std::size_t>(unit)] = flat;
}

void ParamStore::clear_padding(Stream& stream, int unit, const Tensor& flat) const {
  std::int64_t filled = at(unit).begin;
  const auto clear_to = [&](std::int64_t end) {
    if (filled < end) ops::fill(stream, flat.slice(0, filled - at(unit).begin, end - filled), 0.0F);
  };
  for (const Param& param : params_) {
    if (param.unit != unit) continue;
    clear_to(param.offset);
    filled = param.offset + param.numel();
  }
  clear_to(at(unit).end());
}

std::int64_t ParamStore::owned_begin(int unit) const {
  return owned_elements(unit) * memory_.sharding.part;
}

Tensor ParamStore::owned_weights(int unit) const {
  if (memory_.sharding.weights) {
    return flat_in(weights_, memory_.compute, owned_offset(unit), owned_elements(unit));
  }
  return unit_weights(unit).slice(0, owned_begin(unit), owned_elements(unit));
}

Tensor ParamStore::owned_masters(int unit) const {
  check(!at(unit).copy, "a copy has weights only");
  if (memory_.compute == DType::kF32) return owned_weights(unit);
  return flat_in(masters_, DType::kF32, owned_offset(unit), owned_elements(unit));
}

Tensor ParamStore::owned_gradients(int unit) const {
  check(!at(unit).copy, "a copy has weights only");
  if (memory_.sharding.gradients) {
    return flat_in(gradients_, memory_.gradients, owned_offset(unit), owned_elements(unit));
  }
  const Tensor whole = unit_gradients(unit);
  return whole.defined() ? whole.slice(0, owned_begin(unit), owned_elements(unit)) : Tensor();
}

std::vector<OwnedSlice> ParamStore::owned_slices(int unit) const {
  std::vector<OwnedSlice> slices;
  if (at(unit).copy) return slices;
  const std::int64_t begin = at(unit).begin + owned_begin(unit);
  const std::int64_t end = begin + owned_elements(unit);
  for (const Param& param : params_) {
    const std::int64_t first = std::max(begin, param.offset);
    const std::int64_t last = std::min(end, param.offset + param.numel());
    if (param.unit != unit || first >= last) continue;
    const auto part = [&](const Tensor& owned) {
      return owned.defined() ? owned.slice(0, first - begin, last - first) : Tensor();
    };
    slices.push_back({.param = &param,
                      .first = first - param.offset,
                      .count = last - first,
                      .offset = owned_offset(unit) + first - begin,
                      .master = part(owned_masters(unit)),
                      .gradient = part(owned_gradients(unit)),
                      .weight = part(owned_weights(unit))});
  }
  return slices;
}

Tensor ParamStore::weight(const Param& param) const {
  return view_at(unit_weights(param.unit), param.offset - at(param.unit).begin, param.decl.shape);
}

Tensor ParamStore::master(const Param& param) const {
  if (memory_.compute == DType::kF32) return weight(param);
  check(memory_.sharding.parts == 1, "the master of a parameter that several ranks own");
  return view_at(owned_masters(param.unit), param.offset - at(param.unit).begin, param.decl.shape);
}

Tensor ParamStore::gradient(const Param& param) const {
  return view_at(unit_gradients(param.unit), param.offset - at(param.unit).begin, param.decl.shape);
}

}  // namespace meshtrain
