// `meshtrain train --ranks N`: the same run on any number of ranks, as processes or threads.
#include <gtest/gtest.h>

#include <tuple>

#include "program.h"

namespace meshtrain {
namespace {

class Ranks : public ProgramTest {
 protected:
  void write_model(const std::string& preset) const { write_config("a.toml", preset); }

  // Trains into `folder` and returns its last checkpoint's tensors.
  Digests train(const std::string& folder, const Arguments& words) const {
    succeed(Arguments{"train", "a.toml"} +
            set({"train.global_batch=8", "train.micro_batch=1", "train.steps=6", "output.dir=" + folder}) +
            words);
    return tensors(folder, 6);
  }
  Digests tensors(const std::string& folder, int step) const {
    return tensors_of(folder + "/checkpoints/step-0000000" + std::to_string(step));
  }

  // Every rank of a run of two steps needs the memory and sends the bytes that the plan says.
  void expect_planned(const Arguments& words) const {
    SCOPED_TRACE(read("a.toml").substr(0, 32) + ' ' + testing::PrintToString(words));
    Arguments plan_words = words;
    if (const auto threads = std::find(plan_words.begin(), plan_words.end(), "--ranks-as");
        threads != plan_words.end()) {
      plan_words.erase(threads, threads + 2);
    }
    const nlohmann::json plan = succeed_with_json(Arguments{"plan", "a.toml", "--json"} + plan_words);
    fs::remove_all(path("run"));
    succeed(Arguments{"train", "a.toml"} + words + set({"train.steps=2", "optimizer.warmup=0"}));
    const nlohmann::json summary = read_json("run/summary.json");
    ASSERT_EQ(summary["ranks"].size(), plan["ranks"].size());
    for (std::size_t rank = 0; rank < plan["ranks"].size(); ++rank) {
      SCOPED_TRACE(rank);
      const nlohmann::json& planned = plan["ranks"][rank];
      const nlohmann::json& ran = summary["ranks"][rank];
      EXPECT_EQ(planned["rank"], rank);
      EXPECT_EQ(planned["memory"], ran["memory"]);
      for (const char* traffic : {"gradients", "parameters", "tensor", "pipeline", "control"}) {
        EXPECT_EQ(2 * planned["sent_bytes_per_step"][traffic].get<std::int64_t>(), ran["sent_bytes"][traffic])
            << traffic;
      }
      std::int64_t sum = 0;
      for (const auto& [axis, kinds] : planned["sent_bytes_per_step_by_axis"].items()) {
        for (const auto& [kind, bytes] : kinds.items()) {
          EXPECT_EQ(2 * bytes.get<std::int64_t>(), ran["sent_bytes_by_axis"][axis][kind])
              << axis << ' ' << kind;
          sum += bytes.get<std::int64_t>();
        }
      }
      for (const char* traffic : {"gradients", "parameters", "tensor", "pipeline"}) {
        sum -= planned["sent_bytes_per_step"][traffic].get<std::int64_t>();
      }
      EXPECT_EQ(sum, 0) << "what goes along the axes is not all that is sent";
    }
  }
};

TEST_F(Ranks, ProcessesAndThreadsGiveTheBitsOfOneRank) {
  write_model("gpt2-tiny");
  const Arguments keys = set({"numerics.reduction=tree", "data.valid=text.txt", "train.eval_every=3"});
  const Digests expected = train("one", keys);
  const auto metrics = bits_of_metrics("one");
  int run = 0;
  for (const std::string ranks : {"2", "4", "8"}) {
    for (const std::string ranks_as : {"processes", "threads"}) {
      for (const std::string zero : {"0", "1", "2", "3"}) {
        const std::string folder = "run" + std::to_string(++run);
        const Digests got = train(
            folder, keys + Arguments{"--ranks", ranks, "--ranks-as", ranks_as, "-s", "mesh.zero=" + zero});
        EXPECT_TRUE(got == expected) << ranks << ' ' << ranks_as << ' ' << zero;
        EXPECT_EQ(bits_of_metrics(folder), metrics) << ranks << ' ' << ranks_as << ' ' << zero;
      }
    }
  }
}

TEST_F(Ranks, StopsAndGoesOnOnAnotherMesh) {
  write_model("llama-tiny");
  const Arguments keys = set({"numerics.reduction=tree", "precision.compute=fp16", "train.global_batch=8",
                              "train.micro_batch=1", "train.steps=6"});
  succeed(Arguments{"train", "a.toml", "-s", "output.dir=one"} + keys);
  const auto go = [&](const Arguments& words) {
    succeed(Arguments{"train", "a.toml", "-s", "output.dir=two", "--resume"} + keys + words);
  };
  go({"--ranks", "4", "-s", "mesh.zero=3", "--stop-at-step", "1"});
  go({"--ranks", "2", "-s", "mesh.zero=1", "--stop-at-step", "2", "-s", "checkpoint.async=true"});
  go({"--stop-at-step", "3"});
  go({"--ranks", "8", "-s", "mesh.zero=2", "--stop-at-step", "4"});
  go({"--ranks", "2"});
  EXPECT_TRUE(tensors("one", 6) == tensors("two", 6));
  EXPECT_EQ(bits_of_metrics("one"), bits_of_metrics("two"));
}

// A run folder's config says how many ranks it had.
TEST_F(Ranks, ARunFolderGoesOnOnAsManyRanksAsOneLikes) {
  write_model("gpt2-tiny");
  const Arguments keys = set({"numerics.reduction=tree", "train.global_batch=8", "train.micro_batch=1"});
  succeed(Arguments{"train", "a.toml", "--ranks", "4", "--stop-at-step", "2"} + keys);
  succeed({"train", "run", "--resume", "--ranks", "2", "--stop-at-step", "4"});
  EXPECT_EQ(read_json("run/summary.json")["ranks"].size(), 2);
  succeed({"train", "run", "--resume", "--stop-at-step", "5"});
  EXPECT_EQ(read_json("run/summary.json")["ranks"].size(), 2);
  succeed({"train", "run", "--resume", "-s", "mesh.dp=8"});
  succeed(Arguments{"train", "a.toml", "-s", "output.dir=one"} + keys);
  EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("one"));
  EXPECT_EQ(succeed_with_json({"plan", "run", "--json"})["ranks"].size(), 8);
  EXPECT_EQ(succeed_with_json({"plan", "run", "--json", "--ranks", "2"})["ranks"].size(), 2);
}

TEST_F(Ranks, TheMeshStartsAsManyRanksAsItHas) {
  write_model("gpt2-tiny");
  train("run", set({"mesh.dp=2"}));
  EXPECT_EQ(read_json("run/summary.json")["ranks"].size(), 2);
  EXPECT_NE(read("run/config.toml").find("dp = 2"), std::string::npos);
}

// 28,672 fp32 parameters on 4 ranks, 40 steps.
TEST_F(Ranks, ThePublishedExampleSendsItsBytes) {
  write("example.toml", R"(
[model]
arch = "llama"
layers = 1
hidden = 64
heads = 4
kv_heads = 1
ffn_hidden = 8
vocab = 261
context = 64
tie_embeddings = true

[data]
train = "text.txt"
seq_len = 16

[train]
steps = 40
global_batch = 4
micro_batch = 1

[precision]
compute = "fp32"

[output]
dir = "run"

[machine]
peak_tflops = "off"
)");
  write_text("text.txt");
  const std::int64_t expected = 6'881'280;
  for (const auto& [zero, sent, adam] :
       {std::tuple{"0", expected, 229'376}, std::tuple{"1", expected, 57'344},
        std::tuple{"2", expected, 57'344}, std::tuple{"3", expected * 3 / 2, 57'344}}) {
    const Arguments words = Arguments{"-s", std::string("mesh.zero=") + zero, "--ranks", "4"};
    const nlohmann::json plan = succeed_with_json(Arguments{"plan", "example.toml", "--json"} + words);
    succeed(Arguments{"train", "example.toml"} + words);
    const nlohmann::json summary = read_json("run/summary.json");
    EXPECT_EQ(summary["parameters"], 28'672);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const nlohmann::json& bytes = summary["ranks"][rank]["sent_bytes"];
      EXPECT_EQ(bytes["gradients"].get<std::int64_t>() + bytes["parameters"].get<std::int64_t>(), sent) << zero;
      EXPECT_EQ(summary["ranks"][rank]["memory"]["optimizer"], adam) << zero;
      const nlohmann::json& planned = plan["ranks"][rank]["sent_bytes_per_step"];
      for (const char* traffic : {"gradients", "parameters", "control"}) {
        EXPECT_EQ(planned[traffic].get<std::int64_t>() * 40, bytes[traffic]) << zero << ' ' << traffic;
      }
    }
  }
}

TEST_F(Ranks, PlansAreTheRunOnEveryRankToTheByte) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_model(preset);
    int run = 0;
    for (const std::string reduction : {"fast", "tree"}) {
      for (const std::string zero : {"0", "1", "2", "3"}) {
        for (const std::string global_batch : {"3", "12", "15"}) {
          expect_planned(set({"mesh.zero=" + zero, "numerics.reduction=" + reduction, "train.micro_batch=1",
                              "train.global_batch=" + global_batch, "data.seq_len=8",
                              ++run % 2 == 0 ? "precision.compute=bf16" : "precision.compute=fp32",
                              run % 3 == 0 ? "checkpoint.async=true" : "mesh.prefetch=2",
                              run % 5 == 0 ? "mesh.overlap=false" : "mesh.bucket_mb=0.1"}) +
                         Arguments{"--ranks", "3"});
        }
      }
    }
  }
}

// Meshes of up to 8 ranks; each row is as different from its neighbours as it can be.
TEST_F(Ranks, PlansAreTheRunOnEveryMeshToTheByte) {
  const std::vector<std::vector<std::string>> meshes = {
      // --- tp ---
      {"tp=2"},
      {"tp=2", "sequence_parallel=false"},
      {"tp=4", "dp=2", "zero=1", "vocab=263"},
      {"tp=4", "sequence_parallel=false", "dp=2", "zero=2", "recompute=full", "compute=bf16"},
      {"tp=2", "dp=2", "zero=3", "recompute=selective", "evaluates", "overlap=false", "reduction=tree",
       "batch=6"},
      {"tp=2", "dp=3", "zero=0", "recompute=selective", "compute=fp16", "tie=other", "batch=3"},
      {"tp=4", "kv_heads=1", "vocab=261", "recompute=selective", "compute=bf16", "async"},
      // --- pp ---
      {"pp=2"},
      {"pp=4", "batch=2", "evaluates"},
      {"pp=4", "schedule=gpipe", "batch=5", "tie=other", "recompute=selective"},
      {"pp=2", "schedule=zb-h1", "batch=7", "compute=bf16", "recompute=full", "evaluates"},
      {"pp=4", "schedule=zb-h1", "batch=3", "tie=other"},
      {"pp=2", "schedule=interleaved", "virtual_stages=2", "batch=6"},
      {"pp=2", "schedule=interleaved", "virtual_stages=3", "batch=4", "stage_layers=[0,1,2,1,1,1]",
       "recompute=full"},
      {"pp=2", "schedule=interleaved", "virtual_stages=3", "batch=12", "stage_layers=[1,1,2,1,1,0]",
       "evaluates"},
      {"pp=3", "schedule=interleaved", "virtual_stages=2", "batch=9", "recompute=selective", "tie=other"},
      {"pp=4", "schedule=zb-h1", "batch=9", "recompute=full", "stage_layers=[1,2,2,1]"},
      {"pp=3", "stage_layers=[1,4,1]", "batch=5", "tie=other", "async", "compute=bf16"},
      {"pp=8", "batch=3", "evaluates"},
      {"pp=2", "dp=2", "zero=1", "batch=12", "reduction=tree"},
      {"pp=2", "dp=2", "zero=2", "batch=12", "tie=other", "compute=fp16"},
      {"pp=2", "dp=2", "zero=3", "batch=20", "schedule=gpipe", "recompute=selective", "evaluates"},
      {"pp=2", "dp=4", "zero=3", "batch=20", "schedule=zb-h1", "reduction=tree", "compute=bf16"},
      {"pp=2", "dp=2", "zero=3", "batch=16", "schedule=interleaved", "virtual_stages=2", "prefetch=3"},
      {"pp=2", "dp=3", "zero=2", "batch=15", "schedule=zb-h1", "recompute=full", "overlap=false"},
      // --- all ---
      {"tp=2", "pp=2", "dp=2", "zero=0", "batch=6"},
      {"tp=2", "pp=2", "dp=2", "zero=1", "batch=16", "schedule=interleaved", "virtual_stages=2", "compute=bf16",
       "vocab=259"},
      {"tp=2", "pp=2", "dp=2", "zero=2", "batch=10", "schedule=zb-h1", "recompute=selective"},
      {"tp=2", "pp=2", "dp=2", "zero=3", "batch=10", "schedule=gpipe", "recompute=full", "tie=other", "async"},
      {"tp=2", "pp=4", "batch=3", "sequence_parallel=false", "schedule=zb-h1", "recompute=full"},
      {"tp=4", "pp=2", "batch=9", "evaluates", "kv_heads=2", "tie=other", "compute=fp16", "stage_layers=[4,2]"},
      {"tp=4", "pp=2", "batch=1", "overlap=false", "reduction=tree", "recompute=selective"},
  };
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_model(preset);
    const bool tied = preset == "gpt2-tiny";
    for (const std::vector<std::string>& mesh : meshes) {
      std::vector<std::string> keys = {"model.layers=6", "train.micro_batch=1", "train.global_batch=4",
                                       "data.seq_len=8", "model.vocab=262"};
      for (const std::string& key : mesh) {
        const std::string value = key.substr(key.find('=') + 1);
        if (key == "async") {
          keys.emplace_back("checkpoint.async=true");
        } else if (key == "evaluates") {
          keys.insert(keys.end(), {"data.valid=text.txt", "train.eval_every=1", "train.eval_tokens=24"});
        } else if (key == "tie=other") {
          keys.push_back(std::string("model.tie_embeddings=") + (tied ? "false" : "true"));
        } else if (key.starts_with("batch=")) {
          keys.push_back("train.global_batch=" + value);
        } else if (key.starts_with("compute=")) {
          keys.push_back("precision." + key);
        } else if (key.starts_with("recompute=")) {
          keys.push_back("recompute.policy=" + value);
        } else if (key.starts_with("reduction=")) {
          keys.push_back("numerics." + key);
        } else if (key.starts_with("vocab=") || (key.starts_with("kv_heads=") && !tied)) {
          keys.push_back("model." + key);
        } else if (!key.starts_with("kv_heads=")) {
          keys.push_back("mesh." + key);
        }
      }
      expect_planned(set(keys) + Arguments{"--ranks-as", "threads"});
    }
  }
}

// Rajbhandari et al. 2020, figure 1: 7.5e9 parameters, 64 ranks, 16 bytes a parameter.
TEST_F(Ranks, PlansThePublishedZeroStates) {
  write("b.toml", R"(
[model]
arch = "gpt2"
layers = 36
hidden = 4096
heads = 32
vocab = 60087
context = 1024

[data]
seq_len = 1024

[train]
global_batch = 64
micro_batch = 1

[precision]
compute = "bf16"
gradients = "bf16"

[mesh]
dp = 64
)");
  const nlohmann::json plan = succeed_with_json({"plan", "b.toml", "--json"});
  EXPECT_NEAR(plan["parameters"].get<double>(), 7.5e9, 1e7);
  const double expected[] = {120.0, 31.4, 16.6, 1.875};
  for (std::size_t zero = 0; zero < 4; ++zero) {
    EXPECT_NEAR(plan["zero_stages"][zero]["states_bytes"].get<double>() * 1e-9, expected[zero],
                expected[zero] * 0.005)
        << zero;
  }
  // With fp32 gradients the plan says what 16-bit ones would take.
  const nlohmann::json wide = succeed_with_json({"plan", "b.toml", "--json", "-s", "precision.gradients=fp32"});
  for (std::size_t zero = 0; zero < 4; ++zero) {
    EXPECT_EQ(wide["zero_stages"][zero]["states_bytes_16_bit_gradients"],
              plan["zero_stages"][zero]["states_bytes"]);
  }
  EXPECT_NEAR(wide["zero_stages"][0]["states_bytes"].get<double>(), 18 * 7.5e9, 18e7);
  const double sent = plan["zero_stages"][0]["sent_bytes_per_step"].get<double>();
  EXPECT_NEAR(plan["zero_stages"][3]["sent_bytes_per_step"].get<double>() / sent, 1.5, 1e-3);
}

}  // namespace
}  // namespace meshtrain
