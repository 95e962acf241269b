#include "train/mesh_rules.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

using Overrides = std::vector<std::string>;

Overrides operator+(Overrides a, const Overrides& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// "" where the config is accepted.
std::string complaint(const Overrides& said) {
  try {
    parse_config("[model]\npreset = \"gpt2-124m\"\n", "run.toml", said);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

struct Refused {
  Overrides said;
  Overrides parts;             // of the message
  std::vector<Overrides> use;  // what the message offers; each must be accepted in place of what was said
};

// Of gpt2-124m: 12 heads, 12 blocks, 3072 inner, unless said; 8 micro-batches of 4 sequences.
const std::vector<Refused> kRefused = {
    {{"mesh.tp=0"}, {"mesh.tp = 0", "between 1 and 1048576"}, {{"mesh.tp=1"}}},
    {{"mesh.pp=-1"}, {"mesh.pp = -1", "between 1 and"}, {{"mesh.pp=1"}}},
    {{"mesh.pp=9223372036854775807"}, {"mesh.pp = 9223372036854775807", "between 1 and"}, {}},
    {{"mesh.virtual_stages=0"}, {"mesh.virtual_stages = 0", "between 1 and"}, {}},
    {{"mesh.cp=2"}, {"-s mesh.cp=2: mesh.cp = 2", "not in this version", "set it to 1"}, {{"mesh.cp=1"}}},
    {{"mesh.ep=2"}, {"mesh.ep = 2", "not in this version"}, {{"mesh.ep=1"}}},
    {{"mesh.zero=4"}, {"mesh.zero = 4", "between 0 and 3"}, {{"mesh.zero=3"}}},

    {{"mesh.tp=5"},
     {"-s mesh.tp=5: mesh.tp = 5 does not divide model.heads = 12", "Use mesh.tp = 4;",
      "works with 1, 2, 4; with mesh.sequence_parallel = false also with 3, 6, 12."},
     {{"mesh.tp=4"}, {"mesh.tp=6", "mesh.sequence_parallel=false"}}},
    {{"mesh.tp=5", "data.seq_len=240"},
     {"Use mesh.tp = 4 or 6;", "works with 1, 2, 3, 4, 6, 12."},
     {{"mesh.tp=4"}, {"mesh.tp=6"}}},
    {{"mesh.tp=100"}, {"Use mesh.tp = 4;"}, {{"mesh.tp=4"}}},
    {{"mesh.tp=6", "model.ffn_hidden=1000", "mesh.sequence_parallel=false"},
     {"mesh.tp = 6 does not divide model.ffn_hidden = 1000", "Use mesh.tp = 4;", "works with 1, 2, 4."},
     {{"mesh.tp=4"}}},
    {{"model.preset=llama-3-8b", "model.heads=12", "model.kv_heads=4", "model.head_dim=64",
      "model.ffn_hidden=96", "mesh.tp=6", "data.seq_len=96"},
     {"mesh.tp = 6 is neither a divisor nor a multiple of model.kv_heads = 4", "Use mesh.tp = 4 or 12;",
      "works with 1, 2, 4, 12."},
     {{"mesh.tp=4"}, {"mesh.tp=12"}}},

    {{"mesh.tp=4", "data.seq_len=1001"},
     {"data.seq_len = 1001 is not a multiple of mesh.tp = 4", "a data.seq_len of 1000 or 1004, or",
      "mesh.sequence_parallel = false"},
     {{"data.seq_len=1000"}, {"data.seq_len=1004"}, {"mesh.sequence_parallel=false"}}},
    {{"mesh.tp=4", "data.seq_len=1023", "model.context=1023"},
     {"Use a data.seq_len of 1020, or mesh.sequence_parallel = false"},
     {{"data.seq_len=1020"}, {"mesh.sequence_parallel=false"}}},
    {{"mesh.tp=4", "data.seq_len=3"}, {"Use a data.seq_len of 4, or"}, {{"data.seq_len=4"}}},
    {{"mesh.tp=4", "data.seq_len=3", "model.context=3"},
     {"Use mesh.sequence_parallel = false."},
     {{"mesh.sequence_parallel=false"}}},

    {{"mesh.pp=15"},
     {"mesh.pp = 15 x virtual_stages = 1 makes 15 pieces", "model.layers = 12 is enough for 14",
      "Use at most mesh.pp = 14."},
     {{"mesh.pp=14"}}},
    {{"mesh.pp=5", "mesh.virtual_stages=3", "mesh.schedule=interleaved"},
     {"makes 15 pieces", "Use at most mesh.pp = 4, or mesh.virtual_stages = 2."},
     {{"mesh.pp=4"}, {"mesh.virtual_stages=2"}}},
    {{"mesh.pp=20", "mesh.virtual_stages=10", "mesh.schedule=interleaved"},
     {"makes 200 pieces", "Use at most mesh.pp = 14 and mesh.virtual_stages = 1."},
     {{"mesh.pp=14", "mesh.virtual_stages=1"}}},
    {{"mesh.pp=20", "mesh.stage_layers=[6, 6]"},
     {"Use at most mesh.pp = 14, without mesh.stage_layers."},
     {{"mesh.pp=14", "mesh.stage_layers=[]"}}},
    {{"mesh.virtual_stages=2", "mesh.schedule=interleaved"},
     {"mesh.virtual_stages = 2 with mesh.pp = 1", "Use mesh.virtual_stages = 1"},
     {{"mesh.virtual_stages=1"}}},
    {{"mesh.virtual_stages=2", "mesh.pp=2"},
     {"mesh.virtual_stages = 2 with mesh.schedule = \"1f1b\"", "mesh.schedule = \"interleaved\""},
     {{"mesh.virtual_stages=1"}, {"mesh.schedule=interleaved"}}},
    {{"mesh.schedule=1f2b"}, {"mesh.schedule", "found the string \"1f2b\"", "the nearest is \"1f1b\""}, {}},

    {{"mesh.pp=3", "mesh.stage_layers=[6, 6]"},
     {"-s mesh.stage_layers=[6, 6]: mesh.stage_layers has 2 numbers", "virtual_stages = 1 makes 3 pieces"},
     {{"mesh.stage_layers=[]"}}},
    {{"mesh.stage_layers=[6, 6]"},
     {"mesh.stage_layers has 2 numbers", "makes 1 piece.", "the balanced one, [12]"},
     {{"mesh.stage_layers=[12]"}}},
    {{"mesh.pp=2", "mesh.stage_layers=[6, 7]"},
     {"mesh.stage_layers adds up to 13 blocks, but model.layers = 12", "the balanced one, [9, 3]"},
     {{"mesh.stage_layers=[9, 3]"}}},
    {{"mesh.pp=3", "mesh.stage_layers=[6, 0, 6]"},
     {"gives piece 2 of 3 0 blocks", "between 1 and 12"},
     {{"mesh.stage_layers=[6, 1, 5]"}}},
    {{"mesh.pp=2", "mesh.stage_layers=[-1, 13]"}, {"gives piece 1 of 2 -1 blocks", "between 0 and 12"}, {}},
    {{"mesh.pp=2", "mesh.stage_layers=[9223372036854775807, 9223372036854775807]"}, {"piece 1 of 2"}, {}},

    {{"mesh.dp=3"},
     {"train.global_batch = 32 in micro-batches of train.micro_batch = 4 makes 8", "mesh.dp = 2 or 4",
      "global_batch of 24 or 36"},
     {{"mesh.dp=2"}, {"mesh.dp=4"}, {"train.global_batch=24"}, {"train.global_batch=36"}}},
    {{"mesh.dp=1048576", "train.global_batch=1048576", "train.micro_batch=1", "mesh.pp=2", "mesh.tp=4"},
     {"makes 8388608 ranks", "Use at most mesh.dp = 131072."},
     {{"mesh.dp=131072"}}},
};

TEST(MeshRules, RefusalsNameTheKeyAndValuesThatWork) {
  for (const Refused& row : kRefused) {
    const std::string message = complaint(row.said);
    SCOPED_TRACE(fmt::format("{}", fmt::join(row.said, " ")) + ": " + message);
    EXPECT_NE(message, "");
    for (const std::string& part : row.parts) EXPECT_NE(message.find(part), std::string::npos) << part;
    for (const Overrides& use : row.use) EXPECT_EQ(complaint(row.said + use), "");
  }
}

std::vector<std::int64_t> accepted_tp(const std::string& preset, std::int64_t most) {
  std::vector<std::int64_t> accepted;
  for (std::int64_t tp = 1; tp <= most; ++tp) {
    const Overrides said = {"model.preset=" + preset, "mesh.sequence_parallel=false",
                            fmt::format("mesh.tp={}", tp)};
    if (complaint(said).empty()) accepted.push_back(tp);
  }
  return accepted;
}

TEST(MeshRules, TensorParallelSizesOfPublishedModels) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(accepted_tp("gpt2-124m", 64), (Sizes{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(accepted_tp("gpt2-774m", 64), (Sizes{1, 2, 4, 5, 10, 20}));
  EXPECT_EQ(accepted_tp("gpt2-1558m", 64), (Sizes{1, 5, 25}));
  EXPECT_EQ(accepted_tp("smollm2-135m", 64), (Sizes{1, 3}));  // 9 heads, but 1536 inner
  EXPECT_EQ(accepted_tp("qwen2.5-0.5b", 64), (Sizes{1, 2}));  // 14 heads, 2 key-value heads, 4864 inner
  // 8 key-value heads: each is on two or four ranks of 16 or 32.
  EXPECT_EQ(accepted_tp("llama-3-8b", 64), (Sizes{1, 2, 4, 8, 16, 32}));
  EXPECT_EQ(accepted_tp("llama-3.1-405b", 200), (Sizes{1, 2, 4, 8, 16, 32, 64, 128}));
}

// Every "mesh.KEY = A or B" after "Use " in a message.
std::vector<Overrides> offers_of(const std::string& message) {
  std::vector<Overrides> offers;
  const std::string advice = message.substr(std::min(message.find("Use "), message.size()));
  static const std::regex kBoth(R"((mesh\.\w+) = (\w+) and (mesh\.\w+) = (\w+))");
  static const std::regex kOffer(R"re((mesh\.\w+) = "?(\w+)"?(?: or (\d+))?)re");
  std::smatch both;
  if (std::regex_search(advice, both, kBoth)) {
    return {{both[1].str() + "=" + both[2].str(), both[3].str() + "=" + both[4].str()}};
  }
  for (std::sregex_iterator it(advice.begin(), advice.end(), kOffer), end; it != end; ++it) {
    for (const std::size_t value : {2, 3}) {
      if ((*it)[value].matched) offers.push_back({(*it)[1].str() + "=" + (*it)[value].str()});
    }
  }
  return offers;
}

TEST(MeshRules, WhateverAMessageOffersIsAccepted) {
  int offered = 0;
  const auto expect_offers_to_pass = [&](const Overrides& said) {
    const std::string message = complaint(said);
    if (message.empty()) return;
    const std::vector<Overrides> offers = offers_of(message);
    EXPECT_FALSE(offers.empty()) << message;
    for (const Overrides& offer : offers) {
      // A value for sequence_parallel = false comes with that.
      if (message.find("also with") != std::string::npos && offer[0] == "mesh.sequence_parallel=false")
        continue;
      ++offered;
      EXPECT_EQ(complaint(said + offer), "") << message;
    }
  };
  for (const char* preset : {"gpt2-124m", "gpt2-1558m", "smollm2-135m", "qwen3-0.6b", "llama-3-8b"}) {
    for (const char* sequences : {"true", "false"}) {
      for (int tp = 1; tp <= 40; ++tp) {
        expect_offers_to_pass({fmt::format("model.preset={}", preset), fmt::format("mesh.tp={}", tp),
                               fmt::format("mesh.sequence_parallel={}", sequences)});
      }
    }
  }
  for (int layers = 1; layers <= 6; ++layers) {
    for (int pp = 1; pp <= 10; ++pp) {
      for (int chunks = 1; chunks <= 5; ++chunks) {
        for (const char* schedule : {"1f1b", "interleaved"}) {
          expect_offers_to_pass({fmt::format("model.layers={}", layers), fmt::format("mesh.pp={}", pp),
                                 fmt::format("mesh.virtual_stages={}", chunks),
                                 fmt::format("mesh.schedule={}", schedule)});
        }
      }
    }
  }
  EXPECT_GT(offered, 300);
}

TEST(MeshRules, AcceptsAllThatMakesSense) {
  for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1"}) {
    for (int pp = 1; pp <= 8; ++pp) {
      for (int micro_batches = 1; micro_batches <= 16; ++micro_batches) {
        const Overrides said = {fmt::format("mesh.schedule={}", schedule),
                                fmt::format("mesh.pp={}", pp),
                                "train.micro_batch=1",
                                fmt::format("train.global_batch={}", micro_batches),
                                "mesh.tp=2",
                                "mesh.zero=3"};
        EXPECT_EQ(complaint(said), "");
      }
    }
  }
  EXPECT_EQ(complaint({"mesh.pp=14"}), "");  // the embedding alone, 12 blocks, the head alone
  EXPECT_EQ(complaint({"mesh.pp=2", "mesh.stage_layers=[0, 12]"}), "");
  EXPECT_EQ(complaint({"mesh.pp=2", "mesh.stage_layers=[12, 0]"}), "");
  EXPECT_EQ(complaint({"mesh.pp=2", "mesh.virtual_stages=7", "mesh.schedule=interleaved"}), "");
  EXPECT_EQ(complaint({"mesh.pp=4", "model.layers=61", "mesh.stage_layers=[16, 15, 15, 15]"}), "");
  // Any vocabulary, sequences of any length without sequence parallelism.
  EXPECT_EQ(complaint({"mesh.tp=4", "model.vocab=50259", "data.seq_len=1001", "mesh.sequence_parallel=false"}),
            "");
  EXPECT_EQ(complaint({"data.seq_len=1001"}), "");
}

}  // namespace
}  // namespace meshtrain
