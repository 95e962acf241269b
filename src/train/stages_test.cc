#include "train/stages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/flops.h"

namespace meshtrain {
namespace {

using Blocks = std::vector<std::int64_t>;

Config config_of(const std::string& preset, const std::vector<std::string>& said) {
  return parse_config(fmt::format("[model]\npreset = \"{}\"\n", preset), "test", said);
}

Blocks blocks_of(const std::vector<ModelPiece>& pieces) {
  Blocks blocks;
  for (const ModelPiece& piece : pieces) blocks.push_back(piece.blocks);
  return blocks;
}

void expect_whole_model(const Config& config) {
  const std::vector<ModelPiece> pieces = pieces_of(config);
  ASSERT_EQ(static_cast<std::int64_t>(pieces.size()), piece_count(config.mesh));
  std::int64_t next = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const bool first = i == 0;
    const bool last = i + 1 == pieces.size();
    EXPECT_EQ(pieces[i].first_block, next);
    EXPECT_EQ(pieces[i].embedding, first);
    EXPECT_EQ(pieces[i].head, last);
    EXPECT_GE(pieces[i].blocks, first || last ? 0 : 1);
    next += pieces[i].blocks;
  }
  EXPECT_EQ(next, config.model.layers);
  for (std::int64_t stage = 0; stage < config.mesh.pp; ++stage) {
    const std::vector<ModelPiece> own = pieces_of_stage(config, stage);
    ASSERT_EQ(static_cast<std::int64_t>(own.size()), config.mesh.virtual_stages);
    for (std::size_t chunk = 0; chunk < own.size(); ++chunk) {
      EXPECT_EQ(own[chunk],
                pieces[chunk * static_cast<std::size_t>(config.mesh.pp) + static_cast<std::size_t>(stage)]);
    }
  }
}

TEST(Stages, OneStageHasTheWholeModel) {
  const std::vector<ModelPiece> pieces = pieces_of(config_of("gpt2-124m", {}));
  EXPECT_EQ(pieces,
            (std::vector<ModelPiece>{{.first_block = 0, .blocks = 12, .embedding = true, .head = true}}));
}

TEST(Stages, PiecesTileTheModelInOrder) {
  for (const std::string layers : {"1", "2", "7", "12", "61"}) {
    for (const std::string pp : {"1", "2", "3", "4", "8"}) {
      for (const std::string chunks : {"1", "2", "4"}) {
        const std::int64_t count = std::stoll(pp) * std::stoll(chunks);
        if (count > std::stoll(layers) + 2 || (pp == "1" && chunks != "1")) continue;
        SCOPED_TRACE(layers + " layers, " + pp + " stages of " + chunks);
        expect_whole_model(
            config_of("gpt2-124m", {"model.layers=" + layers, "mesh.pp=" + pp, "mesh.virtual_stages=" + chunks,
                                    "mesh.schedule=interleaved"}));
      }
    }
  }
}

// The head of gpt2-124m multiplies 50257·768 weights, as many as 5.3 blocks with attention over 256 tokens: 9
// on the stage without it against 3 + 5.3.
TEST(Stages, TheHeadCountsInTheBalance) {
  EXPECT_EQ(blocks_of(pieces_of(config_of("gpt2-124m", {"mesh.pp=2"}))), (Blocks{9, 3}));
  EXPECT_EQ(blocks_of(pieces_of(config_of("gpt2-124m", {"mesh.pp=2", "data.seq_len=512"}))), (Blocks{9, 3}));
  // A vocabulary that is not known yet has no weight.
  EXPECT_EQ(blocks_of(pieces_of(config_of("llama-small", {"mesh.pp=2"}))), (Blocks{3, 3}));
  // The head is two thirds of a block.
  const Config large = config_of("llama-3.1-405b", {"mesh.pp=16", "data.seq_len=8192"});
  expect_whole_model(large);
  for (const std::int64_t blocks : blocks_of(pieces_of(large)))
    EXPECT_TRUE(blocks == 7 || blocks == 8) << blocks;
}

TEST(Stages, UnevenCountsKeepEveryLayer) {
  const Config config = config_of("llama-small", {"model.layers=61", "mesh.pp=4"});
  expect_whole_model(config);
  EXPECT_EQ(blocks_of(pieces_of(config)), (Blocks{15, 16, 15, 15}));
}

TEST(Stages, AnExplicitSplitIsTaken) {
  const Config uneven = config_of("gpt2-124m", {"mesh.pp=3", "mesh.stage_layers=[1, 11, 0]"});
  EXPECT_EQ(blocks_of(pieces_of(uneven)), (Blocks{1, 11, 0}));
  expect_whole_model(uneven);
  const Config chunks = config_of("gpt2-124m", {"mesh.pp=2", "mesh.virtual_stages=2",
                                                "mesh.schedule=interleaved", "mesh.stage_layers=[0, 3, 4, 5]"});
  EXPECT_EQ(pieces_of_stage(chunks, 1),
            (std::vector<ModelPiece>{{.first_block = 0, .blocks = 3, .embedding = false, .head = false},
                                     {.first_block = 7, .blocks = 5, .embedding = false, .head = true}}));
  expect_whole_model(chunks);
}

TEST(Stages, FlopsOfLayersAddUpToThoseOfTheModel) {
  for (const std::string& name : preset_names()) {
    const ModelSpec& spec = preset(name);
    const LayerFlops layer = layer_flops_per_token(spec, 512);
    EXPECT_EQ(spec.layers * layer.block + layer.head, model_flops_per_token(spec, 512)) << name;
  }
  // gpt2-124m: 12·768² weights a block and 768·512 for attention; 50257·768 of the head.
  const LayerFlops gpt2 = layer_flops_per_token(preset("gpt2-124m"), 512);
  EXPECT_EQ(gpt2.block, 6 * (12 * 768 * 768 + 768 * 512));
  EXPECT_EQ(gpt2.head, 6 * 50257 * 768);
}

}  // namespace
}  // namespace meshtrain
