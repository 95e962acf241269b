// Meshes of up to eight ranks: a fixed selection of every combination of data, tensor, sequence and pipeline
// parallelism with ZeRO, recompute and precision, each compared with a simpler mesh that must give the same
// bits.
#include <gtest/gtest.h>

#include "comm/engines.h"
#include "program.h"

namespace meshtrain {
namespace {

using Words = std::vector<std::string>;

// `suffixes` after `prefix`, as in "pp=2 " and {"schedule=gpipe", ..}.
Words each(const std::string& prefix, const Words& suffixes) {
  Words result;
  for (const std::string& suffix : suffixes) result.push_back(prefix + suffix);
  return result;
}

Words join(const std::vector<Words>& parts) {
  Words result;
  for (const Words& part : parts) result.insert(result.end(), part.begin(), part.end());
  return result;
}

// The first mesh is the reference.
struct Group {
  Words keys;
  Words meshes;
  Words archs = {"gpt2", "llama"};
};

class Meshes : public ProgramTest {
 protected:
  // `keys` of the config, for one micro-batch a forward pass.
  Outcome verify(const std::string& arch, const Group& group, const Words& keys, const Arguments& words) const {
    write_config("a.toml", arch + "-tiny");
    Arguments command = Arguments{"verify", "a.toml"} +
                        set({"train.micro_batch=1", "data.seq_len=8", "optimizer.warmup=0"}) + set(group.keys) +
                        set(keys) + words;
    for (const std::string& mesh : group.meshes) command = command + Arguments{"--mesh", mesh};
    return run(command);
  }

  void expect_equal(const Group& group, const Words& keys = {}) const {
    for (const std::string& arch : group.archs) {
      const Outcome outcome = verify(arch, group, keys, {"--steps", "2"});
      EXPECT_EQ(outcome.status, 0) << arch << ' ' << testing::PrintToString(group.keys) << ' '
                                   << testing::PrintToString(keys) << '\n'
                                   << outcome;
      std::istringstream lines(outcome.out);
      std::size_t equal = 0;
      for (std::string line; std::getline(lines, line);) equal += line.ends_with("  equal") ? 1 : 0;
      EXPECT_EQ(equal, group.meshes.size() - 1) << outcome;
    }
  }

  // Losses and gradient norms of 20 steps. In a config in which rounding does not grow: with a learning rate
  // ten times as high two splits of a batch differ by as much.
  void expect_close(const Group& group) const {
    for (const std::string& arch : group.archs) {
      const Outcome outcome =
          verify(arch, group, {"optimizer.lr=3e-4", "optimizer.warmup=4", "precision.compute=fp32"},
                 {"--steps", "20", "--tolerance", "1e-5"});
      EXPECT_EQ(outcome.status, 0) << arch << ' ' << testing::PrintToString(group.keys) << '\n' << outcome;
    }
  }
};

const Words kSchedules = {"schedule=gpipe", "schedule=1f1b", "schedule=interleaved", "schedule=zb-h1"};
const Words kPrecisions = {"precision.compute=fp32", "precision.compute=bf16", "precision.compute=fp16"};

TEST_F(Meshes, SchedulesChangeNoBit) {
  const Group group = {
      .keys = {"model.layers=6", "train.global_batch=8"},
      .meshes =
          join({{"pp=1"},
                each("pp=2 ", kSchedules),
                each("pp=3 ", kSchedules),
                each("pp=4 ", kSchedules),
                each("pp=8 ", kSchedules),
                each("schedule=interleaved ", {"pp=2 virtual_stages=2", "pp=2 virtual_stages=3",
                                               "pp=2 virtual_stages=4", "pp=4 virtual_stages=2"}),
                each("pp=4 ", {"overlap=false", "schedule=zb-h1 overlap=false",
                               "schedule=interleaved virtual_stages=2 overlap=false", "machine.threads=2"})})};
  for (const std::string& precision : kPrecisions) expect_equal(group, {precision});
}

// Fewer than stages, one, and a number that stages do not divide.
TEST_F(Meshes, AnyNumberOfMicroBatches) {
  for (const std::string micro_batches : {"1", "2", "3", "5"}) {
    const Group group = {
        .keys = {"model.layers=6", "train.global_batch=" + micro_batches, "precision.compute=bf16"},
        .meshes = join({{"pp=1"},
                        each("pp=2 ", kSchedules),
                        each("pp=4 ", kSchedules),
                        {"pp=4 schedule=interleaved virtual_stages=2",
                         "pp=2 schedule=interleaved virtual_stages=4", "pp=8 schedule=zb-h1"}})};
    expect_equal(group);
  }
}

// More than a plan looks at one by one. Units that are gathered ahead lie in other places every time.
TEST_F(Meshes, ManyMicroBatches) {
  expect_equal({.keys = {"model.layers=6", "model.hidden=96", "model.vocab=288", "train.global_batch=27"},
                .meshes = {"pp=1 zero=3", "pp=2 zero=3 prefetch=3", "pp=2 zero=2 schedule=zb-h1",
                           "pp=3 zero=3 prefetch=3", "pp=4 zero=3 prefetch=2"}});
  expect_equal({.keys = {"model.layers=3", "model.hidden=96", "model.vocab=257", "train.global_batch=57",
                         "model.tie_embeddings=false"},
                .meshes = {"pp=1 zero=2", "pp=2 zero=3 prefetch=1 schedule=interleaved virtual_stages=2",
                           "pp=3 zero=3 prefetch=2", "pp=1 zero=3 prefetch=4"}});
}

// Layers that stages do not divide; stages of the embedding or the head alone; both ways to tie them.
TEST_F(Meshes, AnySplitOfLayers) {
  for (const std::string tied : {"true", "false"}) {
    const std::string tie = "model.tie_embeddings=" + tied;
    expect_equal({.keys = {"model.layers=5", tie, "train.global_batch=4"},
                  .meshes = join({{"pp=1", "pp=4", "pp=7"},
                                  each("pp=4 stage_layers=", {"[0,2,3,0]", "[2,1,1,1]", "[1,1,1,2]"}),
                                  each("pp=2 stage_layers=", {"[5,0] schedule=zb-h1", "[0,5] schedule=zb-h1"}),
                                  {"pp=3 schedule=interleaved virtual_stages=2 stage_layers=[0,1,2,1,1,0]",
                                   "pp=2 schedule=interleaved virtual_stages=2 stage_layers=[2,1,2,0]"}})});
    expect_equal({.keys = {"model.layers=3", tie, "train.global_batch=4", "precision.compute=fp16"},
                  .meshes = join({{"pp=1"}, each("pp=4 ", kSchedules), each("pp=5 ", kSchedules)})});
    expect_equal({.keys = {"model.layers=1", tie, "train.global_batch=3"},
                  .meshes = {"pp=1", "pp=2", "pp=3", "pp=3 schedule=zb-h1 zero=1"}});
  }
}

TEST_F(Meshes, RecomputeChangesNoBitOfASplitBackwardPass) {
  Words meshes = {"pp=1"};
  for (const std::string policy : {"none", "selective", "full"}) {
    const std::string recompute = " recompute.policy=" + policy;
    for (const std::string& schedule : kSchedules) meshes.push_back("pp=4 " + schedule + recompute);
    meshes.push_back("pp=2 schedule=interleaved virtual_stages=3" + recompute);
    meshes.push_back("pp=3 schedule=zb-h1 zero=1" + recompute);
  }
  for (const std::string& precision : kPrecisions) {
    expect_equal({.keys = {"model.layers=4", "train.global_batch=6", precision}, .meshes = meshes});
  }
}

// 2 and 3 reduce at each micro-step, 0 and 1 once.
TEST_F(Meshes, FastReductionsOnStagesAreThoseOfOneStage) {
  for (const auto& [first, second] : {std::pair{"0", "1"}, std::pair{"2", "3"}}) {
    for (const std::string tp : {"", "tp=2 "}) {
      const std::string gradients = tp.empty() == (first[0] == '0') ? "fp32" : "bf16";
      const auto on = [&](const std::string& zero) { return tp + "dp=2 zero=" + zero; };
      Words meshes = {on(first), on(second)};
      for (const std::string& pp : tp.empty() ? Words{"2", "4"} : Words{"2"}) {
        for (const char* zero : {first, second}) {
          for (const std::string& schedule : kSchedules) {
            meshes.push_back(on(zero) + " pp=" + pp + ' ' + schedule);
          }
          meshes.push_back(on(zero) + " pp=" + pp + " schedule=interleaved virtual_stages=2");
          meshes.push_back(on(zero) + " pp=" + pp + " bucket_mb=0.02 prefetch=0 overlap=false");
          meshes.push_back(on(zero) + " pp=" + pp + " schedule=zb-h1 prefetch=3 recompute.policy=full");
        }
      }
      expect_equal({.keys = {"model.layers=6", "train.global_batch=8", "precision.compute=bf16",
                             "precision.gradients=" + gradients},
                    .meshes = meshes});
    }
  }
}

// Every split of the batch, every stage of ZeRO, every schedule: one set of bits, with tensor parallelism too.
TEST_F(Meshes, TheTreeGivesEveryMeshOfATensorGroupTheSameBits) {
  const std::vector<std::pair<std::string, Words>> groups = {
      {"tp=1", kPrecisions},
      {"tp=2", {"precision.compute=fp16"}},
      {"tp=2 sequence_parallel=false", {"precision.compute=fp32"}},
      {"tp=4", {"precision.compute=bf16"}}};
  for (const auto& [tp, precisions] : groups) {
    const std::int64_t others = tp == "tp=1" ? 8 : (tp == "tp=4" ? 2 : 4);
    Words meshes = {tp};
    std::size_t next = 0;  // of the schedules, one after the other
    for (const std::int64_t pp : {1, 2, 4, 8}) {
      for (std::int64_t dp = 1; dp * pp <= others; dp *= 2) {
        for (const std::string zero : {"0", "1", "2", "3"}) {
          std::string mesh = tp + " dp=" + std::to_string(dp) + " zero=" + zero;
          if (pp > 1) mesh += " pp=" + std::to_string(pp) + ' ' + kSchedules[next % 4];
          if (next % 3 == 0) mesh += " recompute.policy=full";
          meshes.push_back(mesh);
          ++next;
        }
      }
    }
    for (const std::string& precision : precisions) {
      expect_equal({.keys = {"numerics.reduction=tree", "model.layers=6", "train.global_batch=8", precision},
                    .meshes = meshes});
    }
  }
}

// The scale is halved until nothing overflows: the same steps are skipped everywhere.
TEST_F(Meshes, OverflowsAreSkippedAlike) {
  for (const std::string tp : {"tp=1", "tp=2"}) {
    expect_equal(
        {.keys = {"numerics.reduction=tree", "model.layers=4", "train.global_batch=4", "precision.compute=fp16",
                  "precision.loss_scale=16777216.0", "precision.loss_scale_window=2"},
         .meshes = {tp, tp + " pp=2", tp + " pp=4 schedule=zb-h1", tp + " dp=2 pp=2 zero=3",
                    tp + " dp=2 zero=1", tp + " pp=2 schedule=interleaved virtual_stages=3"}});
  }
}

TEST_F(Meshes, TensorParallelismIsCloseOverTwentySteps) {
  const Words meshes = {"tp=1",
                        "tp=2",
                        "tp=4",
                        "tp=8",
                        "tp=2 sequence_parallel=false",
                        "tp=4 sequence_parallel=false",
                        "tp=8 sequence_parallel=false",
                        "tp=2 pp=2 dp=2 zero=3",
                        "tp=2 pp=4 schedule=zb-h1 recompute.policy=full",
                        "tp=4 dp=2 zero=1 recompute.policy=selective",
                        "tp=4 pp=2 schedule=interleaved virtual_stages=2"};
  // Vocabularies that no number of ranks divides; the bytes tokenizer needs 257.
  for (const auto& [vocab, tied] :
       {std::pair{"257", "true"}, std::pair{"259", "false"}, std::pair{"301", "true"}}) {
    expect_close({.keys = {"numerics.reduction=tree", "model.layers=3", "model.heads=8", "train.global_batch=4",
                           std::string("model.vocab=") + vocab, std::string("model.tie_embeddings=") + tied},
                  .meshes = meshes});
  }
}

// Fewer key-value heads than ranks: copies of them, whose gradients are summed. What llama's relatives add.
TEST_F(Meshes, AnyNumberOfKeyValueHeads) {
  for (const std::string kv_heads : {"1", "2", "4", "8"}) {
    for (const std::string extra : {"false", "true"}) {
      const Words keys = {"numerics.reduction=tree",    "model.layers=2",         "model.heads=8",
                          "model.kv_heads=" + kv_heads, "model.qk_norm=" + extra, "model.qkv_bias=" + extra,
                          "train.global_batch=4"};
      expect_close({.keys = keys,
                    .meshes = {"tp=1", "tp=2", "tp=4", "tp=8", "tp=8 sequence_parallel=false"},
                    .archs = {"llama"}});
      expect_equal({.keys = join({keys, {"precision.compute=bf16"}}),
                    .meshes = {"tp=4", "tp=4 pp=2 zero=3", "tp=4 dp=2 zero=2 recompute.policy=full"},
                    .archs = {"llama"}});
      expect_equal(
          {.keys = keys,
           .meshes = {"tp=2", "tp=2 pp=2 dp=2 zero=3 schedule=zb-h1", "tp=2 pp=4 zero=1", "tp=2 dp=4 zero=3"},
           .archs = {"llama"}});
    }
  }
}

// Whole runs, evaluations and checkpoints included.
class MeshRuns : public ProgramTest {
 protected:
  // What `folder` holds at the end is equal for runs that gave the same bits.
  static Arguments train(const std::string& folder, const Words& keys) {
    return Arguments{"train", "a.toml"} +
           set({"train.steps=4", "train.global_batch=4", "train.micro_batch=1", "data.seq_len=16",
                "model.layers=4", "numerics.reduction=tree", "data.valid=text.txt", "train.eval_every=2",
                "train.eval_tokens=80", "precision.compute=bf16", "output.dir=" + folder}) +
           set(keys);
  }

  void expect_same_bits(const std::string& folder, const std::string& expected) const {
    ASSERT_EQ(metrics(expected).size(), 6U) << "four steps and two evaluations";
    EXPECT_EQ(bits_of_metrics(folder), bits_of_metrics(expected)) << folder;
    const std::string name = "/checkpoints/step-00000004";
    EXPECT_EQ(tensors_of(folder + name), tensors_of(expected + name)) << folder;
  }
};

TEST_F(MeshRuns, ProcessesAndThreadsGiveTheBitsOfOneStage) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_config("a.toml", preset);
    int number = 0;
    for (const std::string tp : {"mesh.tp=1", "mesh.tp=2"}) {
      const std::string expected = preset + tp;
      succeed(train(expected, {tp}));
      std::vector<Words> meshes = {
          {"mesh.pp=2"},
          {"mesh.pp=2", "mesh.dp=2", "mesh.zero=3", "mesh.schedule=zb-h1"},
          {"mesh.pp=2", "mesh.schedule=interleaved", "mesh.virtual_stages=3", "checkpoint.async=true"},
      };
      if (tp == "mesh.tp=1") meshes.push_back({"mesh.pp=6", "mesh.schedule=gpipe"});
      for (const Words& mesh : meshes) {
        for (const std::string ranks_as : {"processes", "threads"}) {
          SCOPED_TRACE(preset + testing::PrintToString(mesh) + ranks_as);
          const std::string folder = preset + std::to_string(++number);
          succeed(train(folder, join({mesh, {tp}})) + Arguments{"--ranks-as", ranks_as});
          expect_same_bits(folder, expected);
        }
      }
    }
  }
}

TEST_F(MeshRuns, MpiGivesTheSameBits) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI library";
  const std::string mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "mpirun is not in PATH (Debian: openmpi-bin)";
  prepare_mpirun(dir_);
  setenv("ASAN_OPTIONS", "detect_leaks=0", 0);  // what the library itself does is not the matter here
  write_config("a.toml", "gpt2-tiny");
  for (const Words& mesh : {Words{"mesh.pp=4", "mesh.schedule=1f1b"},
                            Words{"mesh.tp=2", "mesh.pp=2", "mesh.schedule=zb-h1", "mesh.zero=3"}}) {
    fs::remove_all(path("local"));
    fs::remove_all(path("mpi"));
    succeed(train("local", mesh));
    const Outcome outcome =
        Process(mpirun, Arguments{"-n", "4", "--oversubscribe", MESHTRAIN_BINARY} + train("mpi", mesh), dir_)
            .finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    EXPECT_EQ(read_json("mpi/summary.json")["engine"], "mpi");
    expect_same_bits("mpi", "local");
  }
}

}  // namespace
}  // namespace meshtrain
