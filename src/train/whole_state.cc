#include "train/whole_state.h"

#include <algorithm>
#include <string_view>

namespace meshtrain {
namespace {

std::string state_tensor_name(const Param& param, std::string_view state) {
  return fmt::format("{}.{}", param.decl.name, state);
}

// Index 0: masters; i: optimizer state i - 1. Flat, what this rank owns of a unit.
Tensor owned_part(const Assembly& assembly, int unit, std::size_t index) {
  return index == 0 ? assembly.params.owned_masters(unit) : assembly.owned_optimizer_state(unit, index - 1);
}

// Every rank's parts of a unit, in order, in `whole` on rank 0.
void gather_unit(Assembly& assembly, int unit, std::size_t index, float* whole) {
  Communicator& ranks = *assembly.groups.control;
  const Tensor own = owned_part(assembly, unit, index);
  const std::vector<Transfer> sends = {{.peer = 0, .data = own}};
  std::vector<Transfer> receives;
  for (int rank = 0; rank < ranks.size() && ranks.rank() == 0; ++rank) {
    receives.push_back({.peer = rank, .data = Tensor(whole + rank * own.numel(), DType::kF32, own.shape())});
  }
  ranks.exchange(sends, receives, Traffic::kOther);
}

}  // namespace

WholeState::WholeState(Assembly& assembly) {
  assembly.sync->settle();
  const ParamStore& params = assembly.params;
  const auto names = assembly.optimizer->state_names();
  const bool gathered = params.sharding().parts > 1;
  const auto whole = static_cast<std::size_t>(params.flat_elements());
  if (gathered && assembly.leads()) copy_.resize(whole * (1 + names.size()) * sizeof(float));
  auto* const copy = reinterpret_cast<float*>(copy_.data());
  for (const Unit& unit : params.units()) {
    const auto index = static_cast<int>(&unit - params.units().data());
    for (std::size_t i = 0; gathered && i <= names.size(); ++i) {
      gather_unit(assembly, index, i,
                  assembly.leads() ? copy + i * whole + static_cast<std::size_t>(unit.begin) : nullptr);
    }
  }
  if (!assembly.leads()) return;
  const auto place = [&](const Param& param, std::size_t i) -> const void* {
    if (gathered) return copy + i * whole + param.offset;
    const Unit& unit = params.units()[static_cast<std::size_t>(param.unit)];
    return owned_part(assembly, param.unit, i).slice(0, param.offset - unit.begin, param.numel()).raw();
  };
  for (const Param& param : params.params()) {
    model_.push_back({.name = param.decl.name, .shape = param.decl.shape, .data = place(param, 0)});
    for (std::size_t i = 0; i < names.size(); ++i) {
      optimizer_.push_back(
          {.name = state_tensor_name(param, names[i]), .shape = param.decl.shape, .data = place(param, i + 1)});
    }
  }
}

StateDestinations destinations_in(const Assembly& assembly) {
  StateDestinations result;
  const auto names = assembly.optimizer->state_names();
  const std::vector<Param>& params = assembly.params.params();
  std::vector<OwnedSlice> slices;
  for (int unit = 0; unit < static_cast<int>(assembly.params.units().size()); ++unit) {
    for (const OwnedSlice& slice : assembly.params.owned_slices(unit)) slices.push_back(slice);
  }
  auto next = slices.begin();
  for (const Param& param : params) {
    const bool here = next != slices.end() && next->param == &param;
    TensorDestination destination{.name = param.decl.name, .shape = param.decl.shape, .count = 0};
    if (here) {
      destination.first = next->first;
      destination.count = next->count;
      destination.data = next->master.raw();
    }
    result.model.push_back(destination);
    for (std::size_t i = 0; i < names.size(); ++i) {
      destination.name = state_tensor_name(param, names[i]);
      if (here) destination.data = assembly.span_of(*next).states[i].raw();
      result.optimizer.push_back(destination);
    }
    if (here) ++next;
  }
  return result;
}

}  // namespace meshtrain
