// What every rank of a mesh holds of a model, as any of them can tell.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "device/device.h"
#include "gradsync/gradient_norm.h"
#include "params/param_store.h"
#include "train/config.h"

namespace meshtrain {

// Declarations of parameters, without memory. Used by one thread.
class MeshLayout {
 public:
  // Declares what ranks of a tensor-parallel coordinate and pipeline stage hold.
  using Declare = std::function<void(ParamStore& store, Device& device, int tensor_rank, int stage)>;

  // The mesh must be filled in.
  explicit MeshLayout(const Config& config);
  // `whole`: the same model on a mesh of one rank.
  MeshLayout(const MeshConfig& mesh, const Declare& whole, Declare held);

  const MeshConfig& mesh() const { return mesh_; }
  // The whole model: its parameters have the names, the shapes and the order of checkpoints.
  const ParamStore& model() const { return *model_; }
  const Param& param(const std::string& name) const;
  // The unit of the model that has this name.
  int unit(const std::string& name) const;
  // As ranks of this coordinate and stage declare it, whatever their data-parallel coordinate.
  const ParamStore& held(int tensor_rank, int stage) const;
  // The stage that trains a unit of the model, and which of its units it is there.
  struct UnitPlace {
    int stage = 0;
    int unit = 0;
  };
  UnitPlace place_of(int model_unit) const;
  int world_rank(int tensor_rank, int data_rank, int stage) const;

 private:
  std::unique_ptr<ParamStore> declared(const Declare& declare, int tensor_rank, int stage) const;

  MeshConfig mesh_;
  Declare declare_held_;
  std::unique_ptr<Device> device_;  // simulated
  std::unique_ptr<ParamStore> model_;
  std::map<std::string, int> units_;
  std::map<std::string, const Param*> params_;
  mutable std::map<std::pair<int, int>, std::unique_ptr<ParamStore>> held_;
  mutable std::vector<UnitPlace> places_;
};

// Where the sums of squares of `store`'s units belong, on the rank of these coordinates.
NormPlace norm_place_of(const MeshLayout& layout, const ParamStore& store, int tensor_rank, int data_rank);

}  // namespace meshtrain
