// The parameters of a model: who they are, and the flat memory that holds them.
//
// Parameters lie one after the other in units (an embedding, a block, the head), in order of use.
// Weights, fp32 masters, gradients and any per-element optimizer state share one layout: element i of
// one belongs to element i of the others, so an update or a reduction runs over flat ranges. A unit's
// length is a multiple of the number of parts that it may be cut into; what fills it up stays zero.
//
// A tensor-parallel rank declares its slices (slice.h): "parameter" below means what the rank holds of one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "device/stream.h"
#include "device/tensor.h"
#include "ops/square_sum.h"
#include "params/slice.h"

namespace meshtrain {

enum class Init : std::uint8_t { kZeros, kOnes, kNormal };

struct ParamDecl {
  std::string name;
  Shape shape;  // of what this rank holds
  Init init = Init::kNormal;
  double deviation = 0.02;  // kNormal
  bool decay = true;        // weight decay applies
  ParamSlice slice{};       // its place in the whole parameter
  ParamCopies copies{};
  const Shape& whole() const { return slice.whole.rank() > 0 ? slice.whole : shape; }
};

struct Param {
  ParamDecl decl;
  int unit = 0;
  std::int64_t offset = 0;  // elements from the start of the flat layout
  std::int64_t numel() const { return decl.shape.numel(); }
  // Without padding of the slice.
  std::int64_t held() const { return held_elements(decl.shape, decl.slice); }
};

// Elements [begin, end) of a unit whose gradients so many tensor-parallel ranks, neighbours, see a part of
// each.
struct CopyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int ranks = 1;
  friend bool operator==(const CopyRange&, const CopyRange&) = default;
};

struct Unit {
  std::string name;
  std::int64_t begin = 0;  // elements from the start of the flat layout
  std::int64_t elements = 0;
  bool copy = false;  // weights only, those of a unit that another pipeline stage trains
  std::int64_t end() const { return begin + elements; }
};

// What of each unit one rank keeps: part `part` of `parts` equal ones. What is not sharded is whole.
struct Sharding {
  int parts = 1;
  int part = 0;
  bool gradients = false;
  bool weights = false;
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
  Tensor gradient() const;  // fp32 or compute dtype

 private:
  friend class ParamStore;
  const ParamStore* store_ = nullptr;
  Shape shape_;
  int unit_ = 0;
  std::int64_t offset_ = 0;  // in the unit
  int tied_use_ = -1;        // where the gradient goes, if not into the unit: the same offset in its buffer
};

// A second use of a weight, in another unit. Its gradient has a buffer of its own, laid out as the owner's.
struct TiedUse {
  int unit = 0;   // that uses it
  int owner = 0;  // that declared it; may be a copy
};

// A piece of one parameter that this rank updates.
struct OwnedSlice {
  const Param* param = nullptr;
  std::int64_t first = 0;  // element of the parameter
  std::int64_t count = 0;
  std::int64_t offset = 0;  // elements from the start of the owned layout, for optimizer state
  Tensor master;            // fp32 [count], as the next ones
  Tensor gradient;          // undefined until gradients have memory
  Tensor weight;            // compute dtype; the same memory as master in fp32
};

class ParamStore {
 public:
  // Elements at which a unit may be cut: also the leaves of the gradient norm's tree.
  static constexpr std::int64_t kCutElements = 16;

  // Units are padded so that they can be cut into this many parts.
  explicit ParamStore(int parts = 1);
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  // --- Declaration, before allocate(). ---
  // Later declarations belong to this unit. Copies come last.
  void begin_unit(std::string name, bool copy = false);
  ParamRef declare(ParamDecl decl);
  // Adjacent in memory and used as one weight, [sum of first dimensions, rest]; names stay apart.
  ParamRef declare_fused(std::vector<ParamDecl> decls);
  // Another use of the weight, in unit `user`.
  ParamRef tie(const ParamRef& first_use, int user);

  // --- Memory. ---
  struct Memory {
    DType compute = DType::kF32;
    DType gradients = DType::kF32;
    bool training = true;    // false: weights only
    Sharding sharding = {};  // of masters and optimizer state too, where parts > 1
  };
  void allocate(Device& device, const Memory& memory);
  // Fills owned masters and weights from (seed, parameter name, element index in the whole parameter): the
  // same model however it is cut. Padding stays zero.
  void initialize(Stream& stream, std::uint64_t seed);
  // Owned weights from owned masters, after masters were loaded.
  void refresh_weights(Stream& stream);

  DType compute_dtype() const { return memory_.compute; }
  DType gradient_dtype() const { return memory_.gradients; }
  const Sharding& sharding() const { return memory_.sharding; }
  const std::vector<Param>& params() const { return params_; }
  const std::vector<Unit>& units() const { return units_; }
  const std::vector<TiedUse>& tied_uses() const { return tied_; }
  // Trained parameters that are held here, without padding.
  std::int64_t count() const;
  // Elements of the flat layout, padding included; and of the units trained here, which come first.
  std::int64_t flat_elements() const { return units_.empty() ? 0 : units_.back().end(); }
  std::int64_t trained_elements() const;
  // Elements of the largest unit, padding included.
  std::int64_t largest_unit() const;
  // Elements of unit `unit`'s parameters, without padding.
  std::int64_t count_of_unit(int unit) const;
  // Elements of unit `unit`, from its begin, that another rank's copy counts for (ParamCopies::first is false).
  std::vector<ops::ElementRange> uncounted(int unit) const;
  // Where its gradients are to be summed over the ranks that hold copies (ParamCopies::partial). Neighbours
  // shared by as many ranks are one range, with the padding between them, which is zero on all.
  std::vector<CopyRange> partial_copies(int unit) const;

  // --- Whole units, as layers see them. ---
  // Flat views of all of a unit; undefined while it has no memory.
  Tensor unit_weights(int unit) const;
  Tensor unit_gradients(int unit) const;
  Tensor tied_gradients(int tied_use) const;
  // Of units first … last, which must not be sharded.
  Tensor gradients_of_units(int first, int last) const;
  // For strategies that keep pieces: where a unit is from now on. Undefined tensors take it away.
  void place_weights(int unit, const Tensor& flat);
  void place_gradients(int unit, const Tensor& flat);
  // Zeroes what lies between a unit's parameters in `flat`, its gradients in new memory.
  void clear_padding(Stream& stream, int unit, const Tensor& flat) const;

  // --- What this rank owns: updates and saves. ---
  std::int64_t owned_begin(int unit) const;  // in the unit
  std::int64_t owned_offset(int unit) const {
    return at(unit).begin / memory_.sharding.parts;
  }  // in the layout
  std::int64_t owned_elements(int unit) const { return at(unit).elements / memory_.sharding.parts; }
  // Elements of all units trained here, the length of the owned layout.
  std::int64_t owned_elements() const { return trained_elements() / memory_.sharding.parts; }
  // Flat pieces [owned_elements(unit)].
  Tensor owned_weights(int unit) const;
  Tensor owned_masters(int unit) const;
  Tensor owned_gradients(int unit) const;
  // The parameters in it, in order; none of a copy.
  std::vector<OwnedSlice> owned_slices(int unit) const;

  // Views in the parameter's shape, of what is whole. The master of an fp32 model is the weight itself.
  Tensor weight(const Param& param) const;
  Tensor master(const Param& param) const;
  Tensor gradient(const Param& param) const;

 private:
  friend class ParamRef;
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  void close_unit();

  std::int64_t unit_multiple_;
  std::vector<Param> params_;
  std::vector<Unit> units_;
  std::vector<TiedUse> tied_;
  Memory memory_;
  Buffer weights_;
  Buffer masters_;
  Buffer gradients_;
  Buffer tied_gradients_;
  std::vector<Tensor> unit_weights_;
  std::vector<Tensor> unit_gradients_;
};

}  // namespace meshtrain
