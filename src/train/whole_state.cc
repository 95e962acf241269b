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

// Elements of the largest unit that is fetched.
std::int64_t largest_fetched(const MeshLayout& layout, int parts) {
  std::int64_t elements = 0;
  for (const Unit& unit : layout.model().units()) {
    if (!UnitGather::is_here(layout, parts, layout.unit(unit.name)))
      elements = std::max(elements, unit.elements);
  }
  return elements;
}

}  // namespace

WholeState::WholeState(Assembly& assembly, Copies copies)
    : assembly_(assembly),
      layout_(assembly.layout),
      gather_(
          layout_, assembly.params, *assembly.groups.control,
          [&assembly](int unit, std::size_t index) { return owned_part(assembly, unit, index); }, copies) {
  assembly.settle();
  const auto names = assembly.optimizer->state_names();
  masters_.tensors.resize(1);
  states_.tensors.resize(names.size());
  if (!assembly.leads()) {
    send_all();
    return;
  }
  const std::int64_t largest = largest_fetched(layout_, assembly.params.sharding().parts);
  for (Fetched* fetched : {&masters_, &states_}) {
    for (std::vector<float>& tensor : fetched->tensors) tensor.reserve(static_cast<std::size_t>(largest));
  }
  for (const Param& param : layout_.model().params()) {
    model_.push_back({.name = param.decl.name, .shape = param.decl.shape, .fetch = [this, &param] {
                        return place(param, 0);
                      }});
    for (std::size_t i = 0; i < names.size(); ++i) {
      optimizer_.push_back({.name = state_tensor_name(param, names[i]),
                            .shape = param.decl.shape,
                            .fetch = [this, &param, i] { return place(param, i + 1); }});
    }
  }
}

const void* WholeState::place(const Param& param, std::size_t index) {
  const std::int64_t offset =
      param.offset - layout_.model().units()[static_cast<std::size_t>(param.unit)].begin;
  if (UnitGather::is_here(layout_, assembly_.params.sharding().parts, param.unit)) {
    const int unit = layout_.place_of(param.unit).unit;
    return owned_part(assembly_, unit, index).slice(0, offset, param.numel()).raw();
  }
  Fetched& fetched = index == 0 ? masters_ : states_;
  const std::size_t first = index == 0 ? 0 : 1;
  if (fetched.unit != param.unit) {
    for (std::size_t i = 0; i < fetched.tensors.size(); ++i) {
      gather_.fetch(param.unit, first + i, fetched.tensors[i]);
    }
    fetched.unit = param.unit;
  }
  return fetched.tensors[index - first].data() + offset;
}

// What rank 0 fetches when it reads all tensors in order.
void WholeState::send_all() {
  const auto units = static_cast<int>(layout_.model().units().size());
  std::vector<float> unused;
  const auto send = [&](int unit, std::size_t index) {
    if (!UnitGather::is_here(layout_, assembly_.params.sharding().parts, unit))
      gather_.fetch(unit, index, unused);
  };
  for (int unit = 0; unit < units; ++unit) send(unit, 0);
  for (int unit = 0; unit < units; ++unit) {
    for (std::size_t i = 0; i < states_.tensors.size(); ++i) send(unit, i + 1);
  }
}

}  // namespace meshtrain
