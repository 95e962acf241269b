// A longer sweep over meshes of up to eight ranks: combinations drawn at random, each compared with one stage
// and the same tensor-parallel ranks, which must give the same bits. Carries the label "slow":
//   ./test.sh --slow -R Sweep
// MESHTRAIN_SWEEP_SEED=N draws others.
#include <gtest/gtest.h>

#include <random>

#include "program.h"

namespace meshtrain {
namespace {

constexpr int kGroups = 60;
constexpr int kMeshesOfAGroup = 8;
constexpr std::int64_t kMostRanks = 8;

std::string text(std::int64_t value) {
  return std::to_string(value);
}
std::string text(bool value) {
  return value ? "true" : "false";
}

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  // From 0 on. (Distributions of the standard library differ between libraries.)
  std::int64_t below(std::size_t end) { return static_cast<std::int64_t>(engine_() % end); }
  template <class T>
  T of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(values.size()))];
  }
  std::string word(const std::vector<std::string>& values) { return of(values); }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

std::vector<std::int64_t> those(const std::vector<std::int64_t>& values,
                                const std::function<bool(std::int64_t)>& fits) {
  std::vector<std::int64_t> result;
  std::copy_if(values.begin(), values.end(), std::back_inserter(result), fits);
  return result;
}

// A model, a batch and a precision, and meshes on which they give the same bits.
class Group {
 public:
  explicit Group(Draw& draw) : draw_(draw) {
    draw_model();
    draw_tensor();
    draw_batch();
    meshes_.push_back(common(dp_));
    while (meshes_.size() < kMeshesOfAGroup + 1) meshes_.push_back(draw_mesh());
  }
  const std::vector<std::string>& keys() const { return keys_; }
  const std::vector<std::string>& meshes() const { return meshes_; }

 private:
  void set(const std::string& key, const std::string& value) { keys_.push_back(key + '=' + value); }

  void draw_model() {
    llama_ = draw_.one_in(2);
    heads_ = draw_.of<std::int64_t>({4, 8});
    layers_ = 1 + draw_.below(7);
    kv_heads_ = heads_;
    set("model.preset", llama_ ? "llama-tiny" : "gpt2-tiny");
    set("model.layers", text(layers_));
    set("model.heads", text(heads_));
    set("model.hidden", draw_.word({"32", "64", "96"}));
    set("model.vocab", draw_.word({"257", "263", "288", "521"}));
    set("model.tie_embeddings", text(draw_.one_in(2)));
    if (!llama_) return;
    kv_heads_ = heads_ >> draw_.below(3);
    ffn_hidden_ = draw_.of<std::int64_t>({64, 96, 100, 200});
    set("model.kv_heads", text(kv_heads_));
    set("model.ffn_hidden", text(ffn_hidden_));
    set("model.qkv_bias", text(draw_.one_in(3)));
    set("model.qk_norm", text(draw_.one_in(3)));
  }

  void draw_tensor() {
    seq_len_ = draw_.of<std::int64_t>({4, 8, 9, 16});
    set("data.seq_len", text(seq_len_));
    tp_ = draw_.of(those({1, 1, 2, 2, 4, 8}, [&](std::int64_t tp) {
      return heads_ % tp == 0 && ffn_hidden_ % tp == 0 && (kv_heads_ % tp == 0 || tp % kv_heads_ == 0);
    }));
    sequence_parallel_ = seq_len_ % tp_ == 0 && !draw_.one_in(3);
  }

  void draw_batch() {
    const std::string compute = draw_.word({"fp32", "bf16", "fp16"});
    const bool narrow = compute != "fp32" && draw_.one_in(4);
    tree_ = !narrow && !draw_.one_in(3);
    dp_ = draw_.of(those({1, 2, 3, 4, 8}, [&](std::int64_t dp) { return dp * tp_ <= kMostRanks; }));
    micro_batches_ = dp_ * draw_.of<std::int64_t>({1, 2, 3, 4, 6, 8});
    const std::int64_t sequences = draw_.of<std::int64_t>({1, 1, 2, 3});
    stages_of_zero_ = tree_             ? std::vector<std::string>{"0", "1", "2", "3"}
                      : draw_.one_in(2) ? std::vector<std::string>{"0", "1"}
                                        : std::vector<std::string>{"2", "3"};
    set("precision.compute", compute);
    if (narrow) set("precision.gradients", compute);
    if (compute == "fp16") set("precision.loss_scale", draw_.word({"65536.0", "1e9", "1e12"}));
    set("numerics.reduction", tree_ ? "tree" : "fast");
    set("train.micro_batch", text(sequences));
    set("train.global_batch", text(micro_batches_ * sequences));
    set("train.grad_clip", draw_.word({"0.0", "0.1", "1.0"}));
    set("optimizer.name", draw_.word({"adamw", "adam", "sgd", "momentum", "adagrad"}));
  }

  std::string common(std::int64_t dp) {
    return "dp=" + text(dp) + " zero=" + draw_.of(stages_of_zero_) + " tp=" + text(tp_) +
           " sequence_parallel=" + text(sequence_parallel_);
  }

  std::string draw_mesh() {
    std::int64_t dp = dp_;
    if (tree_ && draw_.one_in(2)) {
      dp = draw_.of(those({1, 2, 3, 4, 6, 8}, [&](std::int64_t value) {
        return value * tp_ <= kMostRanks && micro_batches_ % value == 0;
      }));
    }
    const std::int64_t pp = draw_.of(those({1, 2, 2, 3, 4, 4, 5, 6, 7, 8}, [&](std::int64_t value) {
      return dp * tp_ * value <= kMostRanks && value <= layers_ + 2;
    }));
    std::string mesh = common(dp) + (pp > 1 ? draw_stages(pp) : "");
    mesh += " recompute.policy=" + draw_.word({"none", "selective", "full"});
    if (draw_.one_in(3)) mesh += " overlap=false";
    if (draw_.one_in(3)) mesh += " prefetch=" + draw_.word({"0", "2", "5"});
    if (draw_.one_in(3)) mesh += " bucket_mb=" + draw_.word({"0", "0.01", "0.1"});
    if (draw_.one_in(5)) mesh += " machine.threads=2";
    return mesh;
  }

  std::string draw_stages(std::int64_t pp) {
    const std::string schedule = draw_.word({"gpipe", "1f1b", "interleaved", "zb-h1"});
    std::int64_t chunks = 1;
    if (schedule == "interleaved") {
      chunks = draw_.of(those({1, 2, 3, 4}, [&](std::int64_t v) { return pp * v <= layers_ + 2; }));
    }
    std::string stages = " pp=" + text(pp) + " schedule=" + schedule + " virtual_stages=" + text(chunks);
    if (draw_.one_in(3)) stages += " stage_layers=" + draw_split(static_cast<std::size_t>(pp * chunks));
    return stages;
  }

  // Pieces in the middle have a block at least.
  std::string draw_split(std::size_t pieces) {
    std::vector<std::int64_t> blocks(pieces, 1);
    blocks.front() = blocks.back() = 0;
    for (auto left = layers_ - static_cast<std::int64_t>(pieces) + 2; left > 0; --left) {
      ++blocks[static_cast<std::size_t>(draw_.below(pieces))];
    }
    std::string list;
    for (const std::int64_t count : blocks) list += (list.empty() ? "[" : ",") + text(count);
    return list + "]";
  }

  Draw& draw_;
  bool llama_ = false;
  bool sequence_parallel_ = false;
  bool tree_ = false;
  std::int64_t layers_ = 0, heads_ = 0, kv_heads_ = 0, ffn_hidden_ = 0, seq_len_ = 0;
  std::int64_t tp_ = 1, dp_ = 1, micro_batches_ = 1;
  std::vector<std::string> stages_of_zero_;
  std::vector<std::string> keys_;
  std::vector<std::string> meshes_;
};

class MeshesSweep : public ProgramTest {};

TEST_F(MeshesSweep, MeshesDrawnAtRandomGiveTheBitsOfOneStage) {
  const char* const seed = std::getenv("MESHTRAIN_SWEEP_SEED");
  Draw draw(seed == nullptr ? 1 : std::stoull(seed));
  write_config("a.toml", "gpt2-tiny");
  for (int i = 0; i < kGroups; ++i) {
    const Group group(draw);
    Arguments command = {"verify", "a.toml", "--steps", "3", "-s", "optimizer.warmup=0"};
    command = command + set(group.keys());
    for (const std::string& mesh : group.meshes()) command = command + Arguments{"--mesh", mesh};
    const Outcome outcome = run(command);
    std::string line;  // to run it again
    for (const std::string& word : command) line += " '" + word + '\'';
    EXPECT_EQ(outcome.status, 0) << "group " << i << ": meshtrain" << line << '\n' << outcome;
  }
}

}  // namespace
}  // namespace meshtrain
