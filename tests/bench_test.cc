// `meshtrain bench`: fields, arguments, Ctrl-C, results. No rate is asserted.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "comm/engines.h"
#include "ops/processor.h"
#include "program.h"

namespace meshtrain {
namespace {

class Bench : public ProgramTest {
 protected:
  static Arguments matmul(const Arguments& more) {
    return Arguments{"bench", "matmul",     "--warmup", "1",         "--repeats",
                     "3",     "--flush-mb", "0.5",      "--threads", "1"} +
           more;
  }
};

std::vector<std::vector<std::int64_t>> shapes_of(const nlohmann::json& json) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const nlohmann::json& row : json["results"]) {
    shapes.push_back({row["shape"]["m"], row["shape"]["n"], row["shape"]["k"]});
  }
  return shapes;
}

TEST_F(Bench, MatmulReportsEveryShapeAndTheBest) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    const Outcome outcome =
        succeed(matmul({"--dtype", dtype, "--m", "8", "16", "--n", "16", "--k", "8:24:8", "--json", "-"}));
    const nlohmann::json json = nlohmann::json::parse(outcome.out);  // the table goes to stderr
    expect_contains(outcome.err, {"TFLOP/s", "mean", "median", "best"});
    EXPECT_EQ(json["dtype"], dtype);
    const std::string products = dtype == "bf16"   ? ops::describe_bf16_products(ops::this_processor())
                                 : dtype == "fp16" ? "fp16 products in fp32"
                                                   : "fp32";
    EXPECT_EQ(json["products"], products);
    expect_contains(outcome.err, {products + ", 1 threads"});
    EXPECT_EQ(json["threads"], 1);
    EXPECT_EQ(json["warmup"], 1);
    EXPECT_EQ(json["repeats"], 3);
    EXPECT_EQ(json["flush_bytes"], 524288);
    EXPECT_EQ(json["interrupted"], false);
    EXPECT_EQ(shapes_of(json),
              (std::vector<std::vector<std::int64_t>>{
                  {8, 16, 8}, {8, 16, 16}, {8, 16, 24}, {16, 16, 8}, {16, 16, 16}, {16, 16, 24}}));
    for (const char* statistic : {"mean", "median", "best"}) {
      const std::string key = std::string(statistic) + "_tflops";
      double highest = 0.0;
      nlohmann::json shape;
      for (const nlohmann::json& row : json["results"]) {
        EXPECT_EQ(row["repeats"], 3);
        EXPECT_GT(row[key], 0.0);
        EXPECT_LE(row["median_tflops"], row["best_tflops"]);
        if (row[key] > highest) {
          highest = row[key];
          shape = row["shape"];
        }
      }
      EXPECT_EQ(json["maximum"][statistic]["tflops"], highest);
      EXPECT_EQ(json["maximum"][statistic]["shape"], shape);
    }
  }
}

TEST_F(Bench, RangesIncludeTheirEnd) {
  const auto ms = [&](const Arguments& sizes) {
    std::vector<std::int64_t> result;
    const Arguments all = matmul({"--json", "-", "--n", "4", "--k", "4", "--m"}) + sizes;
    for (const auto& shape : shapes_of(succeed_with_json(all))) result.push_back(shape[0]);
    return result;
  };
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(ms({"3:9:3"}), (Sizes{3, 6, 9}));
  EXPECT_EQ(ms({"3:8:3"}), (Sizes{3, 6}));
  EXPECT_EQ(ms({"2:6"}), (Sizes{2, 4, 6}));  // steps of BEGIN
  EXPECT_EQ(ms({"5:5:7"}), (Sizes{5}));
  EXPECT_EQ(ms({"7", "1:2:1"}), (Sizes{7, 1, 2}));
}

TEST_F(Bench, MatmulWritesJsonToAFileOrStandardOutput) {
  const Arguments small = matmul({"--m", "4", "--n", "4", "--k", "4"});
  const Outcome to_file = succeed(small + Arguments{"--json", "result.json"});
  EXPECT_EQ(shapes_of(read_json("result.json")).size(), 1U);
  expect_contains(to_file.out, {"maximum achievable bf16 matmul on 1 threads"});
  EXPECT_EQ(shapes_of(succeed_with_json(small + Arguments{"--json"})).size(), 1U);  // "-" is its default
  const Outcome no_folder = run(small + Arguments{"--json", "nowhere/result.json"});
  EXPECT_EQ(no_folder.status, 2) << no_folder;  // before anything is measured
  expect_contains(no_folder.err, {"nowhere/result.json"});
}

TEST_F(Bench, MistakesAreRefused) {
  for (const std::string bad :
       {"10:5", "5:10:0", "a", "", "0", "-3", "1:2:3:4", "4x", "99999999999999999999", ":"}) {
    expect_refused(matmul({"--m=" + bad}), {"--m"});
  }
  expect_refused(matmul({"--dtype", "int8"}), {"--dtype int8", "fp32, bf16 or fp16"});
  expect_refused(matmul({"--repeats", "0"}), {"--repeats"});
  expect_refused(matmul({"--threads", "-1"}), {"--threads"});
  expect_refused(matmul({"--m", "16777216", "--n", "16777216", "--k", "16777216"}), {"memory"});
  expect_refused({"bench", "train", "--preset", "gpt2-125m"}, {"gpt2-125m", "nearest is \"gpt2-124m\""});
  expect_refused({"bench", "train", "--preset", "gpt3"}, {"gpt3", "one of", "gpt2-124m"});
  expect_refused({"bench", "train", "--preset", "gpt2-tiny", "--seq", "512"}, {"data.seq_len", "256"});
  expect_refused({"bench", "train", "--preset", "gpt2-tiny", "--batch", "0"}, {"--batch", "from 1 to"});
  expect_refused({"bench", "train", "--preset", "gpt2-tiny", "--seq", "64", "--peak-tflops", "-3"},
                 {"--peak-tflops"});
  expect_refused({"bench", "train", "--steps", "0"}, {"--steps"});
  const Outcome large = run({"bench", "train", "--preset", "llama-3-70b", "--seq", "64"});
  EXPECT_EQ(large.status, 2);
  expect_contains(large.err, {"memory", "optimizer"});  // a table
}

TEST_F(Bench, CtrlCPrintsTheBestSoFar) {
  Process process(MESHTRAIN_BINARY, matmul({"--m", "64:1000000:1", "--n", "64", "--k", "64", "--json", "-"}),
                  dir_);
  ASSERT_TRUE(process.wait_until([&] {
    return exists(".stderr") && read(".stderr").find("\n     64      64      64") != std::string::npos;
  }));
  process.signal(SIGINT);
  const Outcome outcome = process.finish();
  EXPECT_EQ(outcome.status, 0) << outcome;
  expect_contains(outcome.err, {"interrupted"});
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_GE(json["results"].size(), 1U);
  EXPECT_GT(json["maximum"]["best"]["tflops"], 0.0);
}

TEST_F(Bench, TrainReportsConsistentFigures) {
  for (const std::string compute : {"fp32", "bf16"}) {
    const nlohmann::json json = succeed_with_json(
        {"bench", "train", "--preset", "gpt2-tiny", "--batch", "2", "--seq", "16", "--steps", "3", "--json",
         "--compute", compute, "--peak-tflops", "0.25", "--threads", "1", "--micro-steps", "3"});
    EXPECT_EQ(json["preset"], "gpt2-tiny");
    EXPECT_EQ(json["parameters"], 132928);
    EXPECT_EQ(json["batch"], 2);
    EXPECT_EQ(json["seq_len"], 16);
    EXPECT_EQ(json["micro_steps"], 3);
    EXPECT_EQ(json["compute"], compute);
    EXPECT_EQ(json["threads"], 1);
    EXPECT_EQ(json["steps"], 3);
    EXPECT_EQ(json["peak_tflops"], 0.25);
    const auto number = [&](const char* key) { return json[key].get<double>(); };
    // Blocks 64·192 + 64·64 + 2·64·256 each, head 257·64, attention 6·L·H·S.
    EXPECT_EQ(number("model_flops_per_token"), 6 * (2 * 49152 + 257 * 64) + 6 * 2 * 64 * 16);
    EXPECT_NEAR(number("tokens_per_second"), 96 / number("seconds_per_step"),
                1e-6 * number("tokens_per_second"));
    EXPECT_NEAR(number("mfu"), number("tokens_per_second") * number("model_flops_per_token") / 0.25e12,
                1e-9 * number("mfu"));
    EXPECT_NEAR(number("achieved_tflops"), number("mfu") * 0.25, 1e-12);
    for (const char* phase : {"forward_seconds", "backward_seconds", "optimizer_seconds"}) {
      EXPECT_GT(number(phase), 0.0) << phase;
    }
    expect_contains(json["flop_convention"], {"6*N"});
    EXPECT_GT(json["memory"]["total"], 0);
  }
}

TEST_F(Bench, PhasesOfAStepAddUpToNoMoreThanTheStep) {
  // One step: medians of several need not add up.
  const nlohmann::json json =
      succeed_with_json({"bench", "train", "--preset", "llama-tiny", "--batch", "1", "--seq", "64", "--steps",
                         "1", "--json", "--peak-tflops", "1", "--threads", "1"});
  EXPECT_LE(json["forward_seconds"].get<double>() + json["backward_seconds"].get<double>() +
                json["optimizer_seconds"].get<double>(),
            json["seconds_per_step"].get<double>());
}

TEST_F(Bench, TrainMeasuresItsPeakAndTakesConfigs) {
  write_config("a.toml", "llama-tiny");
  const nlohmann::json json =
      succeed_with_json({"bench", "train", "--config", "a.toml", "--steps", "1", "--json", "-s",
                         "machine.threads=2", "-s", "precision.compute=bf16"});
  EXPECT_GT(json["peak_tflops"], 0.0);
  EXPECT_EQ(json["threads"], 2);
  EXPECT_EQ(json["compute"], "bf16");
  EXPECT_EQ(json["seq_len"], 32);
  EXPECT_EQ(json["micro_steps"], 2);
  EXPECT_GT(json["mfu"], 0.0);
  EXPECT_FALSE(exists("run"));
  const Outcome text = succeed({"bench", "train", "--config", "a.toml", "--steps", "1", "--peak-tflops", "1"});
  expect_contains(text.out, {"llama-tiny", "tokens/s", "forward", "backward", "optimizer", "MFU", "1.0000 TFLOP/s (given)"});
}

// busbw factors as nccl-tests publishes them, on n ranks.
double bus_factor(const std::string& op, double n) {
  if (op == "all_reduce") return 2 * (n - 1) / n;
  return op == "broadcast" || op == "sendrecv" ? 1.0 : (n - 1) / n;
}

// One timing of `bench comm`, of `size` bytes.
void expect_rates(const nlohmann::json& timing, double size, double factor) {
  EXPECT_GT(timing["time"], 0.0);
  const double algorithm = size / timing["time"].get<double>() / 1e3;
  EXPECT_NEAR(timing["alg_bw"], algorithm, 1e-9 * algorithm);
  EXPECT_NEAR(timing["bus_bw"], algorithm * factor, 1e-9 * algorithm);
  EXPECT_EQ(timing["nwrong"], 0);
}

class BenchComm : public Bench {
 protected:
  static Arguments comm(const Arguments& more) {
    return Arguments{"bench", "comm", "--iters", "2", "--warmup", "1", "--json", "-"} + more;
  }

  // What holds for every engine.
  void expect_consistent(const nlohmann::json& json, const std::string& op, int ranks) const {
    EXPECT_EQ(json["config"]["op"], op);
    EXPECT_EQ(json["config"]["ranks"], ranks);
    EXPECT_EQ(json["out_of_bounds"]["count"], 0);
    EXPECT_EQ(json["out_of_bounds"]["okay"], true);
    double sum = 0.0;
    int timings = 0;
    for (const nlohmann::json& row : json["results"]) {
      for (const char* form : {"out_of_place", "in_place"}) {
        if (row[form].is_null()) continue;
        expect_rates(row[form], row["size"], bus_factor(op, ranks));
        sum += row[form]["bus_bw"].get<double>();
        ++timings;
      }
      EXPECT_FALSE(row["out_of_place"].is_null());
      EXPECT_EQ(row["in_place"].is_null(), op == "all_to_all" || op == "sendrecv");
    }
    EXPECT_NEAR(json["average_bus_bandwidth"]["bandwidth"], sum / timings, 1e-9 * sum);
  }
};

TEST_F(BenchComm, EveryOperationOverShm) {
  for (const std::string op :
       {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "sendrecv"}) {
    SCOPED_TRACE(op);
    const Outcome outcome = succeed(comm(
        {"--op", op, "--ranks", "3", "--type", "bfloat16", "--min", "1", "--max", "32K", "--factor", "64"}));
    expect_contains(outcome.err, {"out-of-place", "in-place", "algbw", "busbw", "#wrong", op});
    const nlohmann::json json = nlohmann::json::parse(outcome.out);
    expect_consistent(json, op, 3);
    ASSERT_EQ(json["results"].size(), 3U);  // 1, 64, 4096
    const bool in_pieces = op == "all_gather" || op == "reduce_scatter" || op == "all_to_all";
    EXPECT_EQ(json["results"][2]["size"], in_pieces ? 4092 : 4096);  // whole elements of three ranks
    EXPECT_EQ(json["results"][2]["count"], in_pieces ? 682 : 2048);
    EXPECT_EQ(json["results"][0]["count"], 1);
    EXPECT_EQ(json["results"][0]["type"], "bfloat16");
    EXPECT_EQ(json["results"][0]["redop"], op == "all_reduce" || op == "reduce_scatter" ? "sum" : "none");
    EXPECT_EQ(json["results"][0]["root"], op == "broadcast" ? 0 : -1);
  }
}

TEST_F(BenchComm, EveryTypeAndReduction) {
  for (const std::string type : {"float", "bfloat16", "half", "double", "int32", "int64", "uint8"}) {
    for (const std::string redop : {"sum", "avg", "min", "max"}) {
      SCOPED_TRACE(type + " " + redop);
      // 18 ranks: sums of uint8 wrap.
      const nlohmann::json json =
          succeed_with_json(comm({"--type", type, "--redop", redop, "--ranks", type == "uint8" ? "18" : "2",
                                  "--ranks-as", "threads", "--min", "600", "--max", "600"}));
      expect_consistent(json, "all_reduce", type == "uint8" ? 18 : 2);
      EXPECT_EQ(json["results"][0]["type"], type);
      EXPECT_EQ(json["results"][0]["redop"], redop);
    }
  }
  const nlohmann::json ours = succeed_with_json(comm({"--type", "fp16", "--min", "64", "--max", "64"}));
  EXPECT_EQ(ours["results"][0]["type"], "half");
}

TEST_F(BenchComm, OverMpiItStartsTheLauncher) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI library";
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is not in PATH";
  prepare_mpirun(dir_);
  for (const std::string engine : {"mpi", "mpi-native"}) {
    for (const std::string op : {"all_reduce", "reduce_scatter"}) {
      SCOPED_TRACE(engine + " " + op);
      const nlohmann::json json = succeed_with_json(comm(
          {"--engine", engine, "--op", op, "--ranks", "3", "--min", "64", "--max", "64K", "--factor", "1024"}));
      expect_consistent(json, op, 3);
      EXPECT_EQ(json["config"]["engine"], engine);
    }
  }
  expect_refused({"bench", "comm", "--engine", "mpi-native", "--type", "half"}, {"--type half", "16-bit"});
}

TEST_F(BenchComm, TheCostModelAsATable) {
  // Gradients of 1e9 parameters in bf16, 8 ranks: published.
  const Outcome outcome = succeed({"bench", "comm", "--engine", "sim", "--ranks", "8", "--min", "2000000000",
                                   "--max", "2000000000", "--latency-us", "10", "--gbps", "50", "--json"});
  expect_contains(outcome.err, {"server", "ring", "tree", "halving-doubling", "cheapest"});
  const nlohmann::json json = nlohmann::json::parse(outcome.out);
  const nlohmann::json& row = json["results"][0];
  EXPECT_EQ(row["algorithms"]["ring"]["sent_bytes"], 3'500'000'000);
  EXPECT_EQ(row["algorithms"]["server"]["link_bytes"], 28'000'000'000);
  EXPECT_NEAR(row["algorithms"]["ring"]["time"], 14 * (10 + 250e6 / 50e3), 1e-6);
  EXPECT_NEAR(row["algorithms"]["halving-doubling"]["time"], 6 * 10 + 3.5e9 / 50e3, 1e-6);
  EXPECT_EQ(row["cheapest"], "halving-doubling");
  EXPECT_EQ(json["config"]["latency_us"], 10.0);
}

TEST_F(BenchComm, MistakesAreRefused) {
  expect_refused(comm({"--op", "all_reduced"}), {"--op all_reduced", "nearest is all_reduce", "sendrecv"});
  expect_refused(comm({"--type", "floaf"}), {"--type floaf", "nearest is float"});
  expect_refused(comm({"--redop", "prod"}), {"--redop prod", "sum, avg, min, max"});
  expect_refused(comm({"--engine", "mpy"}), {"--engine mpy", "nearest is mpi"});
  expect_refused(comm({"--ranks-as", "thread"}), {"--ranks-as thread", "nearest is threads"});
  expect_refused(comm({"--ranks", "0"}), {"--ranks"});
  expect_refused(comm({"--ranks", "-3"}), {"--ranks"});
  expect_refused(comm({"--iters", "0"}), {"--iters"});
  expect_refused(comm({"--factor", "1"}), {"--factor"});
  expect_refused(comm({"--root", "2", "--op", "broadcast"}), {"--root 2", "2 ranks"});
  for (const std::string bad : {"0", "", "-1", "K", "1KB", "1.5M", "64X", "99999T", "99999999999999999999"}) {
    expect_refused(comm({"--min=" + bad}), {"--min"});
  }
  expect_refused(comm({"--min", "2M", "--max", "1M"}), {"--min 2M", "--max 1M"});
  expect_refused(comm({"--min", "1024T", "--max", "1024T"}), {"memory"});
  expect_refused({"bench", "comm", "--json", "nowhere/result.json"}, {"nowhere/result.json"});
  expect_refused(comm({"--engine", "sim", "--op", "sendrecv"}), {"sendrecv", "cost model"});
  expect_refused(comm({"--engine", "sim", "--gbps", "0"}), {"--gbps 0"});
  expect_refused(comm({"--engine", "sim", "--latency-us", "-1"}), {"--latency-us -1"});
  expect_refused(comm({"--engine", "sim", "--link", "lokal"}), {"--link lokal", "nearest is local"});
}

}  // namespace
}  // namespace meshtrain
