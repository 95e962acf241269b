#include "train/whole_state.h"

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

bool is_sharded(const Assembly& assembly) {
  return assembly.params.sharding().parts > 1;
}

}  // namespace

// Every rank's parts of a unit, in order, in `whole` on rank 0.
void WholeState::fetch(int unit, std::size_t index, std::vector<float>& whole) {
  Communicator& ranks = *assembly_.groups.control;
  const Tensor own = owned_part(assembly_, unit, index);
  const std::vector<Transfer> sends = {{.peer = 0, .data = own}};
  std::vector<Transfer> receives;
  if (assembly_.leads()) {
    whole.resize(static_cast<std::size_t>(own.numel() * ranks.size()));
    for (int rank = 0; rank < ranks.size(); ++rank) {
      receives.push_back(
          {.peer = rank, .data = Tensor(whole.data() + rank * own.numel(), DType::kF32, own.shape())});
    }
  }
  ranks.exchange(sends, receives, Traffic::kOther);
}

const void* WholeState::place(const Param& param, std::size_t index) {
  const Unit& unit = assembly_.params.units()[static_cast<std::size_t>(param.unit)];
  const std::int64_t offset = param.offset - unit.begin;
  if (!is_sharded(assembly_)) {
    return owned_part(assembly_, param.unit, index).slice(0, offset, param.numel()).raw();
  }
  Fetched& fetched = index == 0 ? masters_ : states_;
  const std::size_t first = index == 0 ? 0 : 1;
  if (fetched.unit != param.unit) {
    for (std::size_t i = 0; i < fetched.tensors.size(); ++i) fetch(param.unit, first + i, fetched.tensors[i]);
    fetched.unit = param.unit;
  }
  return assembly_.leads() ? fetched.tensors[index - first].data() + offset : nullptr;
}

WholeState::WholeState(Assembly& assembly) : assembly_(assembly) {
  assembly.settle();
  const auto names = assembly.optimizer->state_names();
  masters_.tensors.resize(1);
  states_.tensors.resize(names.size());
  for (const Param& param : assembly.params.params()) {
    model_.push_back({.name = param.decl.name, .shape = param.decl.shape, .fetch = [this, &param] {
                        return place(param, 0);
                      }});
    for (std::size_t i = 0; i < names.size(); ++i) {
      optimizer_.push_back({.name = state_tensor_name(param, names[i]),
                            .shape = param.decl.shape,
                            .fetch = [this, &param, i] { return place(param, i + 1); }});
    }
  }
  if (assembly.leads()) return;
  for (const std::vector<NamedTensor>* tensors : {&model_, &optimizer_}) {
    for (const NamedTensor& tensor : *tensors) {
      if (is_sharded(assembly)) tensor.fetch();
    }
  }
  model_.clear();
  optimizer_.clear();
}

std::int64_t WholeState::buffer_bytes(const ParamStore& params, std::size_t states) {
  if (params.sharding().parts == 1) return 0;
  return params.largest_unit() * size_of(DType::kF32) * static_cast<std::int64_t>(1 + states);
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
