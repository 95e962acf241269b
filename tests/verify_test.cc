// `meshtrain verify`: which meshes train to the same bits, and what it says where they do not.
#include <gtest/gtest.h>

#include "program.h"

namespace meshtrain {
namespace {

class Verify : public ProgramTest {
 protected:
  // Eight micro-batches a step, for up to eight ranks.
  void write_model(const std::string& arch) const {
    write_config("a.toml", arch + "-tiny");
    batch_ = set({"train.global_batch=8", "train.micro_batch=1", "data.seq_len=16", "optimizer.warmup=0"});
  }

  Arguments command(const std::vector<std::string>& meshes, const std::vector<std::string>& keys) const {
    Arguments words = Arguments{"verify", "a.toml"} + batch_ + set(keys);
    for (const std::string& mesh : meshes) words = words + Arguments{"--mesh", mesh};
    return words + Arguments{"--steps", "3"};
  }

  void expect_equal(const std::vector<std::string>& meshes, const std::vector<std::string>& keys) const {
    const Outcome outcome = run(command(meshes, keys));
    EXPECT_EQ(outcome.status, 0) << testing::PrintToString(keys) << '\n' << outcome;
    EXPECT_EQ(outcome.out.find("DIFFERS"), std::string::npos) << outcome;
  }

  mutable Arguments batch_;
};

std::vector<std::string> every_stage(const std::string& dp) {
  std::vector<std::string> meshes;
  for (const std::string zero : {"0", "1", "2", "3"}) meshes.push_back("dp=" + dp + " zero=" + zero);
  return meshes;
}

// dp from 1 to 8 is also 8 to 1 micro-steps.
TEST_F(Verify, TheTreeGivesEveryMeshTheSameBits) {
  std::vector<std::string> meshes = {"dp=1"};
  for (const std::string dp : {"1", "2", "4", "8"}) {
    for (const std::string& mesh : every_stage(dp)) meshes.push_back(mesh);
  }
  meshes.emplace_back("dp=2 zero=3 recompute.policy=full");
  meshes.emplace_back("dp=4 zero=2 recompute.policy=selective");
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::string compute : {"fp32", "bf16", "fp16"}) {
      expect_equal(meshes, {"numerics.reduction=tree", "precision.compute=" + compute});
    }
  }
}

TEST_F(Verify, TheTreeTakesAnyNumberOfRanks) {
  write_model("gpt2");
  batch_ = batch_ + set({"train.global_batch=60"});
  expect_equal({"dp=1", "dp=3", "dp=3 zero=1", "dp=5 zero=2", "dp=6 zero=3", "dp=10", "dp=4"},
               {"numerics.reduction=tree", "data.seq_len=4"});
}

TEST_F(Verify, FastReductionsAgreeAsPromised) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::string compute : {"fp32", "bf16"}) {
      for (const std::string dp : {"2", "3", "4"}) {
        const std::vector<std::string> keys = {"precision.compute=" + compute, "train.global_batch=24"};
        expect_equal({"dp=" + dp, "dp=" + dp + " zero=1"}, keys);
        expect_equal({"dp=" + dp + " zero=2", "dp=" + dp + " zero=3"}, keys);
      }
      for (const std::string dp : {"1", "2", "8"}) {  // one micro-step
        expect_equal(every_stage(dp), {"precision.compute=" + compute,
                                       "train.micro_batch=" + std::to_string(8 / std::stoi(dp))});
      }
    }
  }
}

TEST_F(Verify, StagesAndSchedulesChangeNoBit) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::string compute : {"fp32", "bf16"}) {
      expect_equal({"dp=1", "pp=2", "pp=2 schedule=gpipe", "pp=2 schedule=zb-h1",
                    "pp=2 schedule=interleaved virtual_stages=2", "pp=2 dp=2 zero=3", "pp=2 dp=4 zero=1"},
                   {"numerics.reduction=tree", "precision.compute=" + compute});
      expect_equal({"tp=2", "tp=2 pp=2", "tp=2 pp=2 dp=2 zero=2"},
                   {"numerics.reduction=tree", "precision.compute=" + compute});
    }
  }
}

TEST_F(Verify, TensorParallelismRoundsOtherwise) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    const std::vector<std::string> meshes = {"dp=1", "tp=2", "tp=2 sequence_parallel=false",
                                             "tp=2 pp=2 dp=2 zero=3"};
    const Arguments words = command(meshes, {"numerics.reduction=tree", "precision.compute=fp32"});
    const Outcome close = run(words + Arguments{"--tolerance", "1e-5"});
    EXPECT_EQ(close.status, 0) << close;
    expect_contains(close.out, {"within: loss and norm differ by 1e-05 at most"});
    const Outcome bits = run(words);
    EXPECT_EQ(bits.status, 1) << bits;
    expect_contains(bits.err, {"\"tp=2\" differs", "Tensor parallelism", "--tolerance"});
  }
}

TEST_F(Verify, OverlapBucketsPrefetchAndRecomputeChangeNoBit) {
  write_model("llama");
  for (const std::string reduction : {"fast", "tree"}) {
    for (const std::string zero : {"0", "1", "2", "3"}) {
      const std::string mesh = "dp=4 zero=" + zero;
      expect_equal({mesh, mesh + " overlap=false", mesh + " bucket_mb=0", mesh + " bucket_mb=0.05",
                    mesh + " bucket_mb=1000", mesh + " prefetch=0", mesh + " prefetch=3 overlap=false",
                    mesh + " prefetch=100", mesh + " recompute.policy=full", mesh + " machine.threads=2"},
                   {"numerics.reduction=" + reduction, "precision.compute=bf16"});
    }
  }
}

TEST_F(Verify, OptimizersKnowNothingOfShards) {
  write_model("gpt2");
  for (const std::string name : {"sgd", "momentum", "adagrad", "rmsprop", "adam"}) {
    expect_equal({"dp=1", "dp=4 zero=1", "dp=2 zero=3"},
                 {"numerics.reduction=tree", "optimizer.name=" + name, "optimizer.weight_decay=0.1"});
  }
}

TEST_F(Verify, SixteenBitGradientsAgreeBetweenStages) {
  write_model("llama");
  const std::vector<std::string> keys = {"precision.compute=bf16", "precision.gradients=bf16",
                                         "train.micro_batch=2"};
  expect_equal(every_stage("4"), keys);
  expect_equal({"dp=2", "dp=2 zero=1"}, keys);
  expect_equal({"dp=2 zero=2", "dp=2 zero=3"}, keys);
}

TEST_F(Verify, NamesTheFirstDifference) {
  write_model("gpt2");
  const Outcome outcome = run(command({"dp=1", "dp=2"}, {}));
  EXPECT_EQ(outcome.status, 1) << outcome;
  // The losses of the first step do not depend on reductions; its gradients do.
  expect_contains(outcome.err,
                  {"\"dp=2\" differs from \"dp=1\"", "step 1", "instead of", "tolerance 0", "tree"});
  expect_contains(outcome.out, {"reference", "DIFFERS"});
  // (Adam turns the rounding of a gradient near zero into a step of its own.)
  const Arguments close = command({"dp=1", "dp=2"}, {"optimizer.name=sgd"}) + Arguments{"--tolerance"};
  const Outcome within = run(close + Arguments{"1e-4"});
  EXPECT_EQ(within.status, 0);
  expect_contains(within.out, {"within: loss and norm differ by 0.0001 at most"});
  EXPECT_EQ(run(close + Arguments{"1e-4", "--state-tolerance", "1e-4"}).status, 0);
  const Outcome states = run(close + Arguments{"1e-4", "--state-tolerance", "1e-12"});
  EXPECT_EQ(states.status, 1) << states;
  expect_contains(states.err, {"element", "tolerance 1e-12"});
  EXPECT_EQ(run(close + Arguments{"1e-12"}).status, 1);

  const Outcome weights = run(command({"dp=1", "dp=1 optimizer.eps=1e-7"}, {"numerics.reduction=tree"}));
  EXPECT_EQ(weights.status, 1) << weights;
  expect_contains(weights.err, {"step 1", "embed.tokens", "element 0"});
}

TEST_F(Verify, RefusesWhatItCannotCompare) {
  write_model("gpt2");
  const auto refused = [&](const std::vector<std::string>& meshes,
                           std::initializer_list<std::string_view> parts) {
    const Outcome outcome = run(command(meshes, {}));
    EXPECT_EQ(outcome.status, 2) << outcome;
    expect_contains(outcome.err, parts);
  };
  refused({"dp=1"}, {"at least two"});
  refused({"dp=1", "dp"}, {"--mesh \"dp\"", "key=value"});
  refused({"dp=1", "dp=3"}, {"--mesh \"dp=3\"", "mesh.dp = 3", "mesh.dp = 2 or 4"});
  refused({"dp=1", "dq=2"}, {"--mesh \"dq=2\"", "dq", "dp"});
  refused({"dp=1", "dp=2 zero=4"}, {"mesh.zero = 4"});
  EXPECT_EQ(run(command({"dp=1", "dp=2"}, {}) + Arguments{"--tolerance", "-1"}).status, 2);
  EXPECT_EQ(run(command({"dp=1", "dp=2"}, {}) + Arguments{"--state-tolerance", "-1"}).status, 2);
}

}  // namespace
}  // namespace meshtrain
