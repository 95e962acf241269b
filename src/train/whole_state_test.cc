// Initial weights are the same whatever the mesh, slice by slice.
#include "train/whole_state.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "train/mesh_testing.h"

namespace meshtrain {
namespace {

using testing::config_for;
using testing::mesh_of;
using testing::name_of_mesh;
using testing::on_mesh;
using testing::several_ranks;
using testing::train;

struct Result {
  std::map<std::string, std::vector<float>> state;  // as rank 0 gets it
  double loss = 0.0;                                // of the last step
};

void keep_state(const WholeState& state, Result& result) {
  for (const std::vector<NamedTensor>* tensors : {&state.model(), &state.optimizer()}) {
    for (const NamedTensor& tensor : *tensors) {
      const auto values = tensor.get();
      result.state[tensor.name].assign(values.begin(), values.end());
    }
  }
}

// After the initial weights and `steps` steps.
Result run(const Config& config, int steps) {
  Result result;
  on_mesh(config, [&](Assembly& assembly) {
    assembly.initialize();
    double loss = 0.0;
    for (int step = 1; step <= steps; ++step) loss = train(assembly, step);
    WholeState state(assembly, Copies::kCompare);
    if (assembly.leads()) keep_state(state, result), result.loss = loss;
  });
  return result;
}

class WholeStateTest : public ::testing::TestWithParam<Architecture> {
 protected:
  Config config(const MeshConfig& mesh) const { return config_for(GetParam(), mesh); }
  static MeshConfig one_rank() { return mesh_of(1, 0, 1, 1); }
};

TEST_P(WholeStateTest, InitialWeightsAreTheSameOnEveryMesh) {
  const Result expected = run(config(one_rank()), 0);
  EXPECT_EQ(expected.state.at("embed.tokens").size(), 97 * 24);
  for (const MeshConfig& mesh : several_ranks()) {
    const Result found = run(config(mesh), 0);
    EXPECT_TRUE(found.state == expected.state) << name_of_mesh(mesh);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, WholeStateTest, ::testing::Values(Architecture::kGpt2, Architecture::kLlama),
                         [](const auto& test) {
                           return std::string(test.param == Architecture::kGpt2 ? "Gpt2" : "Llama");
                         });

}  // namespace
}  // namespace meshtrain
