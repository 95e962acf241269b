#include "model/cut.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "model/block.h"
#include "model/tensor_ranks_testing.h"

namespace meshtrain {
namespace {

struct Held {
  Shape shape;
  ParamSlice slice;
  ParamCopies copies;
};

// Rank 3 of 4 has query heads 9 … 11 of 12 and the second of two key heads, as rank 2 has.
TEST(Cut, SlicesAndCopiesAreDeclared) {
  ModelSpec spec = testing::small_spec(Architecture::kGpt2, 2);
  spec.qk_norm = true;
  for (const bool sequence_parallel : {false, true}) {
    ParamStore store;
    store.begin_unit("unit");
    const TensorPart part = {.ranks = 4, .rank = 3, .sequence_parallel = sequence_parallel};
    Block(spec, store, "", {}, part);
    store.declare(vocabulary_matrix(spec, "embed", part));
    const ParamCopies pair = {.ranks = 2, .first = false, .partial = true};
    const ParamCopies of_rows = {.ranks = 4, .first = false, .partial = sequence_parallel};
    const ParamCopies of_heads = {.ranks = 4, .first = false, .partial = true};
    const std::map<std::string, Held> expected = {
        {"attn.q.weight", {{12, 20}, {{48, 20}, 0, 36}, {}}},
        {"attn.k.weight", {{4, 20}, {{8, 20}, 0, 4}, pair}},
        {"attn.v.weight", {{4, 20}, {{8, 20}, 0, 4}, pair}},
        {"attn.q.bias", {{12}, {{48}, 0, 36}, {}}},
        {"attn.k.bias", {{4}, {{8}, 0, 4}, pair}},
        {"attn.v.bias", {{4}, {{8}, 0, 4}, pair}},
        {"attn.q_norm.weight", {{4}, {}, of_heads}},
        {"attn.k_norm.weight", {{4}, {}, of_heads}},
        {"attn.o.weight", {{20, 12}, {{20, 48}, 1, 36}, {}}},
        {"attn.o.bias", {{20}, {}, of_rows}},
        {"norm1.weight", {{20}, {}, of_rows}},
        {"norm1.bias", {{20}, {}, of_rows}},
        {"norm2.weight", {{20}, {}, of_rows}},
        {"norm2.bias", {{20}, {}, of_rows}},
        {"mlp.up.weight", {{15, 20}, {{60, 20}, 0, 45}, {}}},
        {"mlp.up.bias", {{15}, {{60}, 0, 45}, {}}},
        {"mlp.down.weight", {{20, 15}, {{20, 60}, 1, 45}, {}}},
        {"mlp.down.bias", {{20}, {}, of_rows}},
        {"embed", {{25, 20}, {{97, 20}, 0, 75}, {}}},
    };
    EXPECT_EQ(store.params().size(), expected.size());
    for (const Param& param : store.params()) {
      ASSERT_TRUE(expected.contains(param.decl.name)) << param.decl.name;
      const Held& held = expected.at(param.decl.name);
      EXPECT_EQ(param.decl.shape, held.shape) << param.decl.name;
      EXPECT_EQ(param.decl.slice, held.slice) << param.decl.name;
      EXPECT_EQ(param.decl.copies, held.copies) << param.decl.name;
    }
  }
}

TEST(Cut, WhatCannotBeCutIsRefused) {
  const auto declare = [](const ModelSpec& spec, int ranks) {
    ParamStore store;
    store.begin_unit("unit");
    Block(spec, store, "", {}, {.ranks = ranks});
  };
  declare(testing::small_spec(Architecture::kGpt2, 12), 4);
  EXPECT_THROW(declare(testing::small_spec(Architecture::kGpt2, 12), 5), std::logic_error);  // heads
  EXPECT_THROW(declare(testing::small_spec(Architecture::kGpt2, 4), 6),
               std::logic_error);  // key and value heads
  ModelSpec spec = testing::small_spec(Architecture::kGpt2, 12);
  spec.ffn_hidden = 62;
  EXPECT_THROW(declare(spec, 4), std::logic_error);
}

}  // namespace
}  // namespace meshtrain
