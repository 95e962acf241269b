// The references against PyTorch's float64 results (tests/reference/ops_kernels.py).
#include "ops/reference.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/testing.h"

namespace meshtrain::ops::reference {
namespace {

using testing::expect_close;

constexpr double kTight = 1e-12;

class ReferenceTest : public ::testing::Test {
 protected:
  static nlohmann::json load(const char* name) {
    std::ifstream file(MESHTRAIN_TEST_DATA "/ops_kernels.json");
    return nlohmann::json::parse(file).at(name);
  }
  static void expect(const Values& actual, const nlohmann::json& expected) {
    expect_close(actual, expected.get<Values>(), kTight, kTight);
  }
};

TEST_F(ReferenceTest, Gelu) {
  const auto c = load("gelu");
  expect(gelu(c["x"]), c["y"]);
  expect(gelu_backward(c["x"], c["dy"]), c["dx"]);
}

TEST_F(ReferenceTest, Swiglu) {
  const auto c = load("swiglu");
  expect(swiglu(c["x"], c["width"]), c["y"]);
  expect(swiglu_backward(c["x"], c["dy"], c["width"]), c["dx"]);
}

TEST_F(ReferenceTest, LayerNorm) {
  const auto c = load("layer_norm");
  expect(norm(NormKind::kLayerNorm, c["epsilon"], c["x"], c["gamma"], c["beta"]).y, c["y"]);
  expect(norm_backward_input(NormKind::kLayerNorm, c["epsilon"], c["x"], c["gamma"], c["dy"]), c["dx"]);
  const auto d = norm_backward_weight(NormKind::kLayerNorm, c["epsilon"], c["x"], c["dy"], c["gamma"].size());
  expect(d.dgamma, c["dgamma"]);
  expect(d.dbeta, c["dbeta"]);
  expect(column_sum(c["dy"], c["gamma"].size()), c["dbeta"]);
}

TEST_F(ReferenceTest, RmsNorm) {
  const auto c = load("rms_norm");
  expect(norm(NormKind::kRmsNorm, c["epsilon"], c["x"], c["gamma"], {}).y, c["y"]);
  expect(norm_backward_input(NormKind::kRmsNorm, c["epsilon"], c["x"], c["gamma"], c["dy"]), c["dx"]);
  const auto d = norm_backward_weight(NormKind::kRmsNorm, c["epsilon"], c["x"], c["dy"], c["gamma"].size());
  expect(d.dgamma, c["dgamma"]);
}

TEST_F(ReferenceTest, Rope) {
  const auto c = load("rope");
  const auto shape = c["shape"].get<std::vector<std::size_t>>();
  expect(rope(c["x"], c["cos_sin"], shape[2], shape[3], RopeDirection::kForward), c["y"]);
  expect(rope(c["dy"], c["cos_sin"], shape[2], shape[3], RopeDirection::kBackward), c["dx"]);
}

TEST_F(ReferenceTest, Embedding) {
  const auto c = load("embedding");
  const Ids tokens = c["tokens"];
  const std::size_t width = 7;
  const std::size_t seq = 3;
  expect(embedding(tokens, c["table"], c["positions"], width, seq, 0), c["y"]);
  expect(embedding_backward(tokens, c["dy"], Values(c["table"].size()), width), c["dtable"]);
  const Ids position_ids = {0, 1, 2, 0, 1, 2};
  expect(embedding_backward(position_ids, c["dy"], Values(c["positions"].size()), width), c["dpositions"]);
}

TEST_F(ReferenceTest, CrossEntropy) {
  const auto c = load("cross_entropy");
  const auto result = cross_entropy(c["logits"], c["targets"], c["vocab"], c["vocab"], c["scale"]);
  expect(result.losses, c["losses"]);
  expect(result.dlogits, c["dlogits"]);
}

}  // namespace
}  // namespace meshtrain::ops::reference
