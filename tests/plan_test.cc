// `meshtrain plan` against `meshtrain train`: the forecast is the run, to the byte.
#include <gtest/gtest.h>

#include <cctype>
#include <map>

#include "program.h"

namespace meshtrain {
namespace {

constexpr double kMB = 1e6;

class Plan : public ProgramTest {
 protected:
  void write_model(const std::string& arch) const {
    write_config("a.toml", arch == "gpt2" ? "gpt2-tiny" : "llama-tiny");
  }

  // The plan of a run and what the run then measured.
  std::pair<nlohmann::json, nlohmann::json> plan_and_train(const std::vector<std::string>& keys) const {
    const nlohmann::json plan = succeed_with_json(Arguments{"plan", "a.toml", "--json"} + set(keys));
    fs::remove_all(path("run"));
    succeed(Arguments{"train", "a.toml"} + set(keys) + set({"train.steps=2", "optimizer.warmup=0"}));
    return {plan, read_json("run/summary.json")};
  }

  void expect_exact(const std::vector<std::string>& keys) const {
    const auto [plan, summary] = plan_and_train(keys);
    std::int64_t sum = 0;
    for (const char* category : {"parameters", "gradients", "master", "optimizer", "activations", "workspace",
                                 "communication", "total"}) {
      ASSERT_TRUE(plan["memory"].contains(category)) << category;
      EXPECT_EQ(plan["memory"][category], summary["memory"][category]) << category;
      if (std::string_view(category) != "total") sum += plan["memory"][category].get<std::int64_t>();
    }
    EXPECT_EQ(plan["memory"], summary["memory"]);  // nor a category that only one of them has
    EXPECT_EQ(plan["memory"]["total"], sum);
    EXPECT_EQ(plan["parameters"], summary["parameters"]);
  }
};

void expect_layers_add_up(const nlohmann::json& plan) {
  std::int64_t parameters = 0;
  for (const nlohmann::json& layer : plan["layers"]) parameters += layer["parameters"].get<std::int64_t>();
  EXPECT_EQ(plan["parameters"], parameters);
}

TEST_F(Plan, MemoryIsThatOfTheRunToTheByte) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::string compute : {"fp32", "bf16"}) {
      for (const std::string recompute : {"none", "selective", "full"}) {
        for (const std::string micro_batch : {"1", "3"}) {
          SCOPED_TRACE(arch + ' ' + compute + ' ' + recompute + ' ' + micro_batch);
          expect_exact({"precision.compute=" + compute, "recompute.policy=" + recompute,
                        "train.micro_batch=" + micro_batch, "train.global_batch=6"});
        }
      }
    }
  }
}

TEST_F(Plan, MemoryIsExactForWhatElseChangesIt) {
  write_model("llama");
  const std::vector<std::vector<std::string>> variations = {
      {"precision.compute=fp16"},
      {"checkpoint.async=true", "precision.compute=bf16", "checkpoint.every=1"},
      {"optimizer.name=sgd"},
      {"optimizer.name=momentum", "checkpoint.async=true"},
      {"model.qk_norm=true", "model.qkv_bias=true", "model.tie_embeddings=false"},
      {"data.valid=text.txt", "train.eval_every=1"},
      {"data.seq_len=7", "train.micro_batch=1", "train.global_batch=1"},
      {"machine.threads=2"},
  };
  for (const auto& variation : variations) {
    SCOPED_TRACE(testing::PrintToString(variation));
    expect_exact(variation);
  }
}

TEST_F(Plan, RecomputeKeepsLessAndComputesMore) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    std::int64_t activations = std::numeric_limits<std::int64_t>::max();
    std::int64_t flops = 0;
    for (const std::string recompute : {"none", "selective", "full"}) {
      const nlohmann::json plan =
          succeed_with_json({"plan", "a.toml", "--json", "-s", "recompute.policy=" + recompute});
      EXPECT_LT(plan["memory"]["activations"], activations) << arch << ' ' << recompute;
      EXPECT_GT(plan["step_flops"], flops) << arch << ' ' << recompute;
      activations = plan["memory"]["activations"];
      flops = plan["step_flops"];
    }
  }
}

TEST_F(Plan, RecomputeChangesNoBitOfTheRun) {
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::string compute : {"fp32", "bf16", "fp16"}) {
      for (const std::string recompute : {"none", "selective", "full"}) {
        fs::remove_all(path(recompute));
        succeed({"train", "a.toml", "-s", "train.steps=5", "-s", "recompute.policy=" + recompute, "-s",
                 "precision.compute=" + compute, "-s", "output.dir=" + recompute});
        EXPECT_EQ(bits_of_metrics(recompute), bits_of_metrics("none"))
            << arch << ' ' << compute << ' ' << recompute;
      }
    }
  }
}

TEST_F(Plan, ResidentMemoryStaysWithinThePlanAnd200MB) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory is not in the plan";
#endif
  const std::vector<std::vector<std::string>> runs = {
      {"model.preset=gpt2-tiny", "model.hidden=512", "model.layers=3", "model.vocab=16384", "model.heads=8"},
      {"model.preset=llama-tiny", "model.hidden=512", "model.layers=3", "model.vocab=16384", "model.heads=8",
       "precision.compute=bf16", "optimizer.name=sgd", "data.seq_len=256", "train.micro_batch=4"},
      {"model.preset=llama-tiny", "model.hidden=512", "model.layers=2", "model.vocab=8192", "model.heads=8",
       "precision.compute=bf16", "checkpoint.async=true", "machine.threads=2"},
  };
  write_model("gpt2");
  for (const auto& keys : runs) {
    const nlohmann::json plan = succeed_with_json(Arguments{"plan", "a.toml", "--json"} + set(keys));
    const auto total = plan["memory"]["total"].get<double>();
    ASSERT_GT(total, 100 * kMB);
    const Outcome outcome = run(Arguments{"train", "a.toml"} + set(keys) +
                                set({"train.steps=2", "optimizer.warmup=0", "output.dir=" + keys[1]}));
    EXPECT_EQ(outcome.status, 0) << outcome;
    EXPECT_LE(static_cast<double>(outcome.peak_resident_bytes), total + 200 * kMB)
        << testing::PrintToString(keys);
    // All of it is touched, or the plan would count what is never used.
    EXPECT_GE(static_cast<double>(outcome.peak_resident_bytes), 0.8 * total) << testing::PrintToString(keys);
    fs::remove_all(path(keys[1]));
  }
}

TEST_F(Plan, ALargeModelIsPlannedInNoTimeAndNoMemory) {
  const std::string config = MESHTRAIN_SOURCE_DIR "/configs/llama-3.1-405b.toml";
  const Outcome outcome = succeed({"plan", config});
  expect_contains(outcome.out, {"405853388800 parameters", "layers.0 .. layers.125"});
  EXPECT_LT(outcome.cpu_seconds, 2.0);
  EXPECT_LT(static_cast<double>(outcome.peak_resident_bytes), 200 * kMB);

  const nlohmann::json plan = succeed_with_json({"plan", config, "--json"});
  EXPECT_EQ(plan["parameters"], 405853388800);
  EXPECT_EQ(plan["layers"].size(), 128U);
  expect_layers_add_up(plan);
  // bf16 weights, fp32 masters, gradients and two states of AdamW.
  EXPECT_EQ(plan["memory"]["parameters"], 2 * 405853388800);
  EXPECT_EQ(plan["memory"]["master"], 4 * 405853388800);
  EXPECT_EQ(plan["memory"]["gradients"], 4 * 405853388800);
  EXPECT_EQ(plan["memory"]["optimizer"], 8 * 405853388800);
}

TEST_F(Plan, EveryPresetIsPlanned) {
  write("a.toml", "[data]\nseq_len = 64\n");
  for (const std::string preset : {"gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1558m", "smollm2-135m",
                                   "qwen2.5-0.5b", "qwen3-0.6b", "llama-3.2-1b", "llama-3-8b", "llama-3-70b",
                                   "llama-3.1-8b", "llama-3.1-70b", "gpt2-tiny", "llama-tiny", "llama-small"}) {
    expect_layers_add_up(succeed_with_json({"plan", "a.toml", "--json", "-s", "model.preset=" + preset}));
  }
}

// Products of [M, K] by [K, N] take 2·M·N·K; causal attention half of the square, so B·heads·T²·D for each
// of its products: two forward, four backward.
struct BlockFlops {
  std::int64_t matmuls = 0;
  std::int64_t down_projection = 0;
  std::int64_t attention = 0;
};

void expect_flops(const nlohmann::json& plan, const BlockFlops& block, std::int64_t head,
                  const std::string& recompute) {
  ASSERT_EQ(plan["layers"].size(), 4U);
  const nlohmann::json& layers = plan["layers"];
  EXPECT_EQ(layers[0]["forward_flops"], 0);
  EXPECT_EQ(layers[0]["backward_flops"], 0);
  std::int64_t again = 0;
  if (recompute == "selective") again = block.attention;
  if (recompute == "full") again = block.attention + block.matmuls - block.down_projection;
  for (const int i : {1, 2}) {
    EXPECT_EQ(layers[i]["forward_flops"], block.matmuls + block.attention);
    EXPECT_EQ(layers[i]["backward_flops"], 2 * (block.matmuls + block.attention) + again);
  }
  // Its forward pass is part of its backward pass, chunk by chunk.
  EXPECT_EQ(layers[3]["forward_flops"], 0);
  EXPECT_EQ(layers[3]["backward_flops"], 3 * head);
  EXPECT_EQ(plan["step_flops"], 2 * (2 * (3 * (block.matmuls + block.attention) + again) + 3 * head));
}

TEST_F(Plan, FlopsOfEachLayerAreTheClosedForms) {
  constexpr std::int64_t kB = 3;
  constexpr std::int64_t kT = 24;
  constexpr std::int64_t kM = kB * kT;
  const std::vector<std::string> shape = {"data.seq_len=24", "train.micro_batch=3", "train.global_batch=6",
                                          "model.vocab=500"};
  for (const std::string recompute : {"none", "selective", "full"}) {
    SCOPED_TRACE(recompute);
    const Arguments plan =
        Arguments{"plan", "a.toml", "--json", "-s", "recompute.policy=" + recompute} + set(shape);
    // hidden 64, 4 heads of 16, MLP of 256.
    write_config("a.toml", "gpt2-tiny");
    expect_flops(succeed_with_json(plan),
                 {.matmuls = 2 * kM * (64 * 192 + 64 * 64 + 2 * 64 * 256),
                  .down_projection = 2 * kM * 64 * 256,
                  .attention = 2 * kB * 4 * kT * kT * 16},
                 2 * kM * 64 * 500, recompute);
    // hidden 64, 4 query heads and 2 key-value heads of 16, SwiGLU of 192.
    write_config("a.toml", "llama-tiny");
    expect_flops(succeed_with_json(plan),
                 {.matmuls = 2 * kM * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 192),
                  .down_projection = 2 * kM * 64 * 192,
                  .attention = 2 * kB * 4 * kT * kT * 16},
                 2 * kM * 64 * 500, recompute);
  }
}

TEST_F(Plan, WhatMfuCountsIsTheStepWithoutRecompute) {
  write_model("llama");
  const nlohmann::json plan = succeed_with_json({"plan", "a.toml", "--json"});
  EXPECT_EQ(plan["tokens_per_step"], 4 * 32);
  EXPECT_EQ(plan["step_flops"], plan["model_flops_per_token"].get<std::int64_t>() * 4 * 32);
}

TEST_F(Plan, NeedsNoDataAndWritesNothing) {
  write_model("gpt2");
  fs::remove(path("text.txt"));
  const Outcome outcome = succeed({"plan", "a.toml"});
  expect_contains(outcome.out,
                  {"132928 parameters", "activations", "optimizer", "total", "layers.0 .. layers.1"});
  EXPECT_FALSE(exists("run"));
}

// --- Meshes. ---

TEST_F(Plan, SixteenThousandRanksArePlannedInNoTime) {
  const std::string config = MESHTRAIN_SOURCE_DIR "/configs/llama-3.1-405b-16k.toml";
  const Outcome outcome = succeed({"plan", config});
  expect_contains(outcome.out, {"405853388800 parameters", "embed, layers.0 .. 6", "layers.119 .. 125, head",
                                "layers.0 .. layers.125 (111 of them)", "pp  activations to the next stage"});
  EXPECT_LT(outcome.cpu_seconds, 5.0);

  const Outcome for_programs = succeed({"plan", config, "--json"});
  EXPECT_LT(for_programs.cpu_seconds, 5.0);
  const nlohmann::json plan = nlohmann::json::parse(for_programs.out);
  expect_layers_add_up(plan);
  ASSERT_EQ(plan["ranks"].size(), 16'384U);
  ASSERT_EQ(plan["stages"].size(), 16U);
  double flops = 0;
  for (std::size_t stage = 0; stage < 16; ++stage) {
    const nlohmann::json& own = plan["stages"][stage];
    EXPECT_EQ(own["stage"], stage);
    EXPECT_EQ(own["pieces"][0]["live_micro_batches"], 16 - stage);
    flops += own["flops_per_step"].get<double>() * 1024;
    for (const std::size_t rank : {stage * 1024, stage * 1024 + 1, stage * 1024 + 1023}) {
      EXPECT_EQ(plan["ranks"][rank]["rank"], rank);
      EXPECT_EQ(plan["ranks"][rank]["memory"], rank == 0 ? plan["memory"] : own["memory"]) << rank;
    }
  }
  // More than 64 bits hold. Nothing is recomputed, and the vocabulary divides.
  EXPECT_NEAR(plan["step_flops"].get<double>() / flops, 1.0, 1e-12);
  EXPECT_NEAR(flops / (plan["model_flops_per_token"].get<double>() * plan["tokens_per_step"].get<double>()),
              1.0, 0.01);
  // 16 micro-batches of 8,192 tokens, of which each tensor-parallel rank has an eighth, 16,384 wide in bf16.
  ASSERT_EQ(plan["links"]["pp"].size(), 15U);
  EXPECT_EQ(plan["links"]["pp"][7]["activation_bytes_per_step"], std::int64_t{16} * 8192 / 8 * 16384 * 2);
  // Eight layers, 2 + 2 collectives each way, every one 7/8 of 8,192 x 16,384 in bf16.
  EXPECT_EQ(plan["ranks"][5000]["sent_bytes_per_step_by_axis"]["tp"]["layers"],
            std::int64_t{16} * 8 * 8 * 8192 * 16384 * 2 / 8 * 7);
}

TEST_F(Plan, RanksMayBeMoreThanCanBeStarted) {
  write_model("llama");
  const nlohmann::json plan =
      succeed_with_json({"plan", "a.toml", "--json", "--ranks", "6000", "-s", "train.global_batch=3000", "-s",
                         "train.micro_batch=1", "-s", "mesh.tp=2"});
  EXPECT_EQ(plan["ranks"].size(), 6000U);
  const Outcome refused = run({"plan", "a.toml", "--ranks", "2000000"});
  EXPECT_EQ(refused.status, 2) << refused;
  expect_contains(refused.err, {"mesh.dp = 2000000", "1048576"});
}

TEST_F(Plan, TheTimelineIsDrawn) {
  write_model("llama");
  const Arguments plan = {"plan", "a.toml", "--timeline", "-s", "train.global_batch=8", "-s", "model.layers=6"};
  const Outcome drawn = succeed(plan + set({"mesh.pp=3", "mesh.schedule=zb-h1"}));
  expect_contains(drawn.out, {"zb-h1, 3 stages, 4 micro-batches", "stage 0 | F0 F1 F2", "stage 2 | .. .. F0 B0",
                              "idle 14.3 % of the time (1/7); published (p-1)/(3m+p-1) = 14.3 %",
                              "with the FLOPs of this model's pieces"});
  EXPECT_EQ(drawn.out.find("parameters"), std::string::npos);
  std::istringstream lines(succeed(plan + set({"mesh.pp=2", "train.global_batch=400"})).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
  expect_contains(succeed(plan).out, {"mesh.pp = 1", "no pipeline"});
  const Outcome both = run(plan + Arguments{"--json"});
  EXPECT_EQ(both.status, 2) << both;
}

// The F, B and W events of each rank's compute track, in order; all events are where they may be.
std::map<int, std::vector<std::string>> actions_of(const nlohmann::json& trace) {
  std::map<int, std::string> tracks;
  std::map<int, std::vector<std::string>> actions;
  std::map<int, double> begins;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const int track = event.at("tid");
    const std::string name = event.at("name");
    if (name == "thread_name") tracks[track] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("ts").get<double>(), begins[track]) << name;
    begins[track] = event.at("ts");
    EXPECT_GE(event.at("dur").get<double>(), 0.0) << name;
    const bool is_action = name.size() > 1 && std::string("FBW").find(name[0]) != std::string::npos &&
                           std::isdigit(static_cast<unsigned char>(name[1])) != 0;
    if (is_action) {
      EXPECT_EQ(tracks[track], "compute");
      EXPECT_EQ(event.at("cat"), "compute");
      actions[event.at("pid")].push_back(name);
    }
  }
  return actions;
}

TEST_F(Plan, TracesHaveTheEventsOfARun) {
  const std::vector<std::vector<std::string>> meshes = {
      {"mesh.pp=4", "mesh.schedule=zb-h1"},
      {"mesh.pp=4", "mesh.schedule=gpipe", "mesh.overlap=false"},
      {"mesh.pp=2", "mesh.tp=2"},
      {"mesh.pp=2", "mesh.schedule=interleaved", "mesh.virtual_stages=2", "mesh.dp=2", "mesh.zero=3"},
      {"mesh.tp=2", "mesh.dp=2", "mesh.zero=2"},
      {"mesh.dp=1"},
  };
  for (const std::string arch : {"gpt2", "llama"}) {
    write_model(arch);
    for (const std::vector<std::string>& mesh : meshes) {
      SCOPED_TRACE(arch + ' ' + testing::PrintToString(mesh));
      const Arguments words = Arguments{"a.toml"} +
                              set({"train.global_batch=12", "train.micro_batch=1", "model.layers=4",
                                   "train.steps=1", "optimizer.warmup=0", "data.seq_len=8"}) +
                              set(mesh);
      const Outcome planned = succeed(Arguments{"plan", "--trace", "plan.json"} + words);
      expect_contains(planned.err, {"plan.json", "1 TFLOP/s a rank"});
      expect_contains(planned.out, {" parameters, "});
      fs::remove_all(path("run"));
      succeed(Arguments{"train", "--trace", "--ranks-as", "threads"} + words);
      const auto plan = actions_of(read_json("plan.json"));
      const auto train = actions_of(read_json("run/trace.json"));
      EXPECT_FALSE(plan.empty());
      for (const auto& [rank, actions] : plan) {
        ASSERT_TRUE(train.contains(rank)) << rank;
        EXPECT_EQ(actions, train.at(rank)) << rank;
      }
    }
  }
  const Outcome refused = run({"plan", "a.toml", "--trace", "no/folder/plan.json"});
  EXPECT_EQ(refused.status, 2) << refused;
  expect_contains(refused.err, {"no/folder/plan.json"});
}

// What the times are: FLOPs by the peak that the config says all ranks have together.
TEST_F(Plan, TracesTakeTheTimeOfTheirFlops) {
  write_model("llama");
  const Arguments words = {"plan",
                           "a.toml",
                           "--json",
                           "--trace",
                           "plan.json",
                           "-s",
                           "machine.peak_tflops=0.004",
                           "-s",
                           "mesh.pp=2",
                           "-s",
                           "train.global_batch=8"};
  const nlohmann::json plan = succeed_with_json(words);
  const nlohmann::json trace = read_json("plan.json");
  std::vector<double> computed(2, 0.0);
  double end = 0.0;
  std::vector<double> optimizer(2, 0.0);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    const int rank = event["pid"];
    if (name[0] == 'F' || name[0] == 'B') {
      computed[static_cast<std::size_t>(rank)] += event["dur"].get<double>() * 1e-6;
      end = std::max(end, event["ts"].get<double>() + event["dur"].get<double>());
    }
    if (name == "optimizer") optimizer[static_cast<std::size_t>(rank)] = event["ts"].get<double>();
  }
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_NEAR(computed[rank], plan["stages"][rank]["flops_per_step"].get<double>() / 2e9, 1e-7);
    EXPECT_GE(optimizer[rank], end - 1e-3);  // together
    EXPECT_EQ(optimizer[rank], optimizer[0]);
  }
}

}  // namespace
}  // namespace meshtrain
