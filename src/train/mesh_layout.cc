#include "train/mesh_layout.h"

#include "base/error.h"
#include "model/transformer.h"
#include "train/mesh.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

MeshLayout::Declare declare_model(const Config& config, bool whole) {
  return [=](ParamStore& store, Device& device, int tensor_rank, int stage) {
    TransformerOptions options{.positions = 1};
    if (!whole) {
      options.tensor = {.ranks = static_cast<int>(config.mesh.tp),
                        .rank = tensor_rank,
                        .sequence_parallel = config.mesh.sequence_parallel && config.mesh.tp > 1};
      options.pieces = pieces_of_stage(config, stage);
    }
    const Transformer model(config.model, store, device, options);
  };
}

}  // namespace

MeshLayout::MeshLayout(const Config& config)
    : MeshLayout(config.mesh, declare_model(config, true), declare_model(config, false)) {}

MeshLayout::MeshLayout(const MeshConfig& mesh, const Declare& whole, Declare held)
    : mesh_(mesh), declare_held_(std::move(held)), device_(make_sim_device()), model_(declared(whole, 0, 0)) {
  for (const Unit& unit : model_->units()) units_.emplace(unit.name, static_cast<int>(units_.size()));
  for (const Param& param : model_->params()) params_.emplace(param.decl.name, &param);
}

std::unique_ptr<ParamStore> MeshLayout::declared(const Declare& declare, int tensor_rank, int stage) const {
  auto store = std::make_unique<ParamStore>(static_cast<int>(mesh_.dp));
  declare(*store, *device_, tensor_rank, stage);
  store->allocate(*device_, {.training = false});  // closes the last unit
  return store;
}

const Param& MeshLayout::param(const std::string& name) const {
  return *params_.at(name);
}

int MeshLayout::unit(const std::string& name) const {
  return units_.at(name);
}

const ParamStore& MeshLayout::held(int tensor_rank, int stage) const {
  std::unique_ptr<ParamStore>& store = held_[{tensor_rank, stage}];
  if (!store) store = declared(declare_held_, tensor_rank, stage);
  return *store;
}

MeshLayout::UnitPlace MeshLayout::place_of(int model_unit) const {
  if (places_.empty()) {
    places_.resize(model_->units().size());
    for (int stage = 0; stage < static_cast<int>(mesh_.pp); ++stage) {
      int index = 0;
      for (const Unit& here : held(0, stage).units()) {
        if (!here.copy) places_[static_cast<std::size_t>(unit(here.name))] = {.stage = stage, .unit = index};
        ++index;
      }
    }
  }
  return places_[static_cast<std::size_t>(model_unit)];
}

int MeshLayout::world_rank(int tensor_rank, int data_rank, int stage) const {
  return static_cast<int>(rank_at(mesh_, tensor_rank, data_rank, stage));
}

NormPlace norm_place_of(const MeshLayout& layout, const ParamStore& store, int tensor_rank, int data_rank) {
  NormPlace place = {.tensor_ranks = static_cast<int>(layout.mesh().tp),
                     .tensor_rank = tensor_rank,
                     .counts = data_rank == 0,
                     .model_units = layout.model().units().size()};
  for (const Unit& unit : store.units()) place.unit.push_back(unit.copy ? -1 : layout.unit(unit.name));
  return place;
}

}  // namespace meshtrain
