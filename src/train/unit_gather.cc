#include "train/unit_gather.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace meshtrain {
namespace {

std::int64_t elements_of(const ParamStore& store, int unit) {
  return store.units()[static_cast<std::size_t>(unit)].elements;
}

// A parameter's place in its unit.
std::int64_t offset_in_unit(const ParamStore& store, const Param& param) {
  return param.offset - store.units()[static_cast<std::size_t>(param.unit)].begin;
}

// `count` values that a copy has and the first one.
void check_copies(const Param& param, int tensor_rank, const SliceRun& run, const float* first,
                  const float* copy) {
  if (std::memcmp(first, copy, static_cast<std::size_t>(run.count) * sizeof(float)) == 0) return;
  std::int64_t i = 0;
  while (std::memcmp(first + i, copy + i, sizeof(float)) == 0) ++i;
  throw_run_error(
      "copies of {} differ between tensor-parallel ranks {} and {}, first at element {}: {} and {}. They must "
      "stay "
      "equal to the bit: this is an error of the program or of the machine; please report it with the config.",
      param.decl.name, tensor_rank - tensor_rank % param.decl.copies.ranks, tensor_rank, run.global + i,
      first[i], copy[i]);
}

}  // namespace

UnitGather::UnitGather(const MeshLayout& layout, const ParamStore& store, Communicator& everyone, Owned owned,
                       Copies copies)
    : layout_(layout), store_(store), everyone_(everyone), owned_(std::move(owned)), copies_(copies) {
  if (everyone.rank() == 0) staging_.resize(static_cast<std::size_t>(staging_elements(layout)));
}

bool UnitGather::is_here(const MeshLayout& layout, int parts, int model_unit) {
  return parts == 1 && layout.mesh().tp == 1 && layout.place_of(model_unit).stage == 0;
}

std::int64_t UnitGather::staging_elements(const MeshLayout& layout) {
  std::int64_t elements = 0;
  for (int stage = 0; stage < layout.mesh().pp && layout.mesh().tp > 1; ++stage) {
    elements = std::max(elements, layout.held(0, stage).largest_unit());
  }
  return elements;
}

void UnitGather::fetch(int model_unit, std::size_t index, std::vector<float>& whole) {
  if (everyone_.rank() != 0) return send(model_unit, index);
  const MeshLayout::UnitPlace place = layout_.place_of(model_unit);
  whole.resize(static_cast<std::size_t>(elements_of(layout_.model(), model_unit)));
  if (layout_.mesh().tp == 1) return receive(0, place, index, whole.data());  // laid out in the same way
  for (int tensor_rank = 0; tensor_rank < layout_.mesh().tp; ++tensor_rank) {
    receive(tensor_rank, place, index, staging_.data());
    put_in_place(tensor_rank, place, model_unit, whole);
  }
}

void UnitGather::send(int model_unit, std::size_t index) {
  const bool sends =
      store_.sharding().parts > 1 || everyone_.rank() / layout_.mesh().tp % layout_.mesh().dp == 0;
  if (!sends) return;
  const std::string& name = layout_.model().units()[static_cast<std::size_t>(model_unit)].name;
  for (std::size_t unit = 0; unit < store_.units().size(); ++unit) {
    if (store_.units()[unit].copy || store_.units()[unit].name != name) continue;
    everyone_.send(owned_(static_cast<int>(unit), index), 0, Traffic::kOther);
  }
}

void UnitGather::receive(int tensor_rank, const MeshLayout::UnitPlace& place, std::size_t index, float* to) {
  const int parts = store_.sharding().parts;
  const std::int64_t elements = elements_of(layout_.held(tensor_rank, place.stage), place.unit) / parts;
  std::vector<Transfer> receives;
  std::vector<Transfer> sends;
  for (int part = 0; part < parts; ++part) {
    const int peer = layout_.world_rank(tensor_rank, part, place.stage);
    receives.push_back({.peer = peer, .data = Tensor(to + part * elements, DType::kF32, {elements})});
    if (peer == 0) sends.push_back({.peer = 0, .data = owned_(place.unit, index)});
  }
  everyone_.exchange(sends, receives, Traffic::kOther);
}

void UnitGather::put_in_place(int tensor_rank, const MeshLayout::UnitPlace& place, int model_unit,
                              std::vector<float>& whole) {
  const ParamStore& held = layout_.held(tensor_rank, place.stage);
  for (const Param& param : held.params()) {
    if (param.unit != place.unit) continue;
    const Param& in_model = layout_.param(param.decl.name);
    check(in_model.unit == model_unit, "a parameter lies in another unit than in the whole model");
    float* to = whole.data() + offset_in_unit(layout_.model(), in_model);
    const float* from = staging_.data() + offset_in_unit(held, param);
    for_each_run(param.decl.shape, param.decl.slice, 0, param.numel(), [&](const SliceRun& run) {
      if (param.decl.copies.first) {
        std::memcpy(to + run.global, from + run.local, static_cast<std::size_t>(run.count) * sizeof(float));
      } else if (copies_ == Copies::kCompare) {
        check_copies(param, tensor_rank, run, to + run.global, from + run.local);
      }
    });
  }
}

}  // namespace meshtrain
