// The state of a run on any mesh, as checkpoints hold it and as other meshes take it up.
#include "train/whole_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/philox.h"
#include "comm_ranks.h"
#include "train/checkpointing.h"
#include "train/memory_plan.h"
#include "train/mesh.h"
#include "train/step.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSeq = 12;
constexpr std::int64_t kBatch = 4;

// Four heads, two of keys and values: with tp = 4 two ranks hold each of these. 97 ids divide by nothing.
Config config_for(Architecture arch, const MeshConfig& mesh) {
  Config config;
  config.model = {.arch = arch,
                  .layers = 4,
                  .hidden = 24,
                  .heads = 4,
                  .kv_heads = arch == Architecture::kGpt2 ? 4 : 2,
                  .head_dim = 6,
                  .ffn_hidden = 52,
                  .vocab = 97,
                  .context = 16,
                  .tie_embeddings = arch == Architecture::kGpt2};
  config.data.train = "text";  // a checkpoint has its config, which must be a possible one
  config.checkpoint.dir = "checkpoints";
  config.data.seq_len = kSeq;
  config.train.micro_batch = 1;
  config.train.global_batch = kBatch;
  config.precision.compute = DType::kF32;
  config.optimizer.schedule = "constant";
  config.reduction = "tree";
  config.mesh = mesh;
  config.machine.threads = 1;
  return config;
}

MeshConfig mesh_of(std::int64_t dp, std::int64_t zero, std::int64_t tp, std::int64_t pp) {
  MeshConfig mesh;
  mesh.dp = dp;
  mesh.zero = zero;
  mesh.tp = tp;
  mesh.pp = pp;
  return mesh;
}

std::string name_of_mesh(const MeshConfig& mesh) {
  return fmt::format("dp={} zero={} tp={} pp={} {}", mesh.dp, mesh.zero, mesh.tp, mesh.pp, mesh.schedule);
}

std::vector<MeshConfig> meshes() {
  std::vector<MeshConfig> result = {mesh_of(2, 0, 1, 1), mesh_of(2, 3, 1, 1), mesh_of(1, 0, 2, 1),
                                    mesh_of(1, 0, 1, 2), mesh_of(1, 0, 4, 1), mesh_of(1, 0, 4, 2),
                                    mesh_of(2, 0, 2, 2), mesh_of(2, 1, 2, 2), mesh_of(2, 3, 2, 2),
                                    mesh_of(4, 2, 1, 2), mesh_of(1, 0, 1, 6)};
  MeshConfig chunks = mesh_of(1, 0, 2, 2);
  chunks.schedule = "interleaved";
  chunks.virtual_stages = 2;
  result.push_back(chunks);
  return result;
}

std::vector<std::int32_t> samples(const Assembly& assembly, std::string_view what) {
  const RandomStream random(7, what);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < assembly.micro_steps(); ++i) {
    for (std::int64_t j = 0; j < kSeq; ++j) {
      const std::int64_t token = assembly.micro_batch_index(i) * kSeq + j;
      ids.push_back(static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(token)) % 97));
    }
  }
  return ids;
}

double train(Assembly& assembly, std::int64_t update) {
  const auto tokens = samples(assembly, "tokens");
  const auto targets = samples(assembly, "targets");
  return train_step(assembly, {.tokens = tokens, .targets = targets}, 1e-3, update).loss;
}

struct Result {
  std::map<std::string, std::vector<float>> state;  // as rank 0 gets it
  double loss = 0.0;                                // of the last step
};

void keep_state(const WholeState& state, Result& result) {
  for (const std::vector<NamedTensor>* tensors : {&state.model(), &state.optimizer()}) {
    for (const NamedTensor& tensor : *tensors) {
      const auto* values = reinterpret_cast<const float*>(tensor.get().data());
      result.state[tensor.name].assign(values, values + tensor.shape.numel());
    }
  }
}

// Runs `body(assembly, rank)` on every rank of a mesh.
template <class Body>
void on_mesh(const Config& config, const Body& body) {
  const auto ranks = static_cast<int>(ranks_of(config.mesh));
  const auto failures = testing::run_threads(ranks, {}, [&](World& world) {
    const std::unique_ptr<Device> device = world.make_device();
    Assembly assembly(config, *device, world, measure_arenas(config, world.rank()));
    body(assembly);
    return std::vector<std::string>{};
  });
  for (const auto& of_rank : failures) {
    for (const std::string& failure : of_rank) ADD_FAILURE() << name_of_mesh(config.mesh) << ": " << failure;
  }
}

// After the initial weights and `steps` steps; written as a checkpoint too where a directory is given.
Result run(const Config& config, int steps, const std::string& directory = "") {
  Result result;
  on_mesh(config, [&](Assembly& assembly) {
    assembly.initialize();
    double loss = 0.0;
    for (int step = 1; step <= steps; ++step) loss = train(assembly, step);
    {
      WholeState state(assembly, Copies::kCompare);
      if (assembly.leads()) keep_state(state, result), result.loss = loss;
    }
    if (directory.empty()) return;
    WholeState state(assembly);
    if (!assembly.leads()) return;
    write_checkpoint(directory, checkpoint_contents(assembly, state, {.step = steps, .updates = steps}));
  });
  return result;
}

// What a checkpoint becomes on a mesh, and the loss of the step after it.
Result restored(const Config& config, const std::string& directory) {
  Result result;
  const Checkpoint checkpoint(newest_checkpoint(directory)->path);
  on_mesh(config, [&](Assembly& assembly) {
    const RunPosition position = restore(assembly, checkpoint);
    {
      WholeState state(assembly, Copies::kCompare);
      if (assembly.leads()) keep_state(state, result);
    }
    const double loss = train(assembly, position.updates + 1);
    if (assembly.leads()) result.loss = loss;
  });
  return result;
}

class WholeStateTest : public ::testing::TestWithParam<Architecture> {
 protected:
  WholeStateTest() { fs::remove_all(directory_); }
  ~WholeStateTest() override { fs::remove_all(directory_); }
  Config config(const MeshConfig& mesh) const { return config_for(GetParam(), mesh); }
  static MeshConfig one_rank() { return mesh_of(1, 0, 1, 1); }

  std::string directory_ =
      (fs::temp_directory_path() / fmt::format("meshtrain_whole_state_{}", getpid())).string();
};

TEST_P(WholeStateTest, InitialWeightsAreTheSameOnEveryMesh) {
  const Result expected = run(config(one_rank()), 0);
  EXPECT_EQ(expected.state.at("embed.tokens").size(), 97 * 24);
  for (const MeshConfig& mesh : meshes()) {
    const Result found = run(config(mesh), 0);
    EXPECT_TRUE(found.state == expected.state) << name_of_mesh(mesh);
  }
}

TEST_P(WholeStateTest, ACheckpointIsTheSameStateOnEveryMesh) {
  const Result saved = run(config(one_rank()), 2, directory_);
  const double next = restored(config(one_rank()), directory_).loss;
  EXPECT_LT(next, saved.loss);
  for (const MeshConfig& mesh : meshes()) {
    const Result found = restored(config(mesh), directory_);
    EXPECT_TRUE(found.state == saved.state) << name_of_mesh(mesh);
    if (mesh.tp == 1) {
      EXPECT_EQ(found.loss, next) << name_of_mesh(mesh);
    } else {
      EXPECT_NEAR(found.loss, next, 1e-6 * next) << name_of_mesh(mesh);
    }
  }
}

TEST_P(WholeStateTest, EveryMeshSavesWhatOthersLoad) {
  for (const MeshConfig& mesh : meshes()) {
    fs::remove_all(directory_);
    const Result saved = run(config(mesh), 2, directory_);
    for (const MeshConfig& other : {one_rank(), mesh_of(1, 0, 2, 3)}) {
      EXPECT_TRUE(restored(config(other), directory_).state == saved.state)
          << name_of_mesh(mesh) << " to " << name_of_mesh(other);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WholeStateTest, ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& test) {
                           return std::string(test.param == Architecture::kGpt2 ? "Gpt2" : "Llama");
                         });

}  // namespace
}  // namespace meshtrain
