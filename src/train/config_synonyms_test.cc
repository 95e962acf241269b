#include "train/config_synonyms.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "train/config_fields.h"
#include "train/config_unknown.h"

namespace meshtrain {
namespace {

std::set<std::string> all_keys() {
  std::set<std::string> keys;
  for (const ConfigField& field : config_fields()) keys.insert(field.full_name());
  return keys;
}

// Every "section.key" of an advice is a key.
TEST(ConfigSynonyms, TargetsExist) {
  const std::set<std::string> keys = all_keys();
  std::set<std::string> sections;
  for (const ConfigField& field : config_fields()) sections.insert(std::string(field.section));
  static const std::regex kName(R"((\w+)\.(\w+))");
  int seen = 0;
  for (const ConfigSynonym& synonym : config_synonyms()) {
    const std::string advice(synonym.advice);
    EXPECT_FALSE(advice.ends_with('.')) << advice;
    EXPECT_TRUE(!is_one_key(advice) || keys.contains(advice)) << advice;
    for (std::sregex_iterator name(advice.begin(), advice.end(), kName), end; name != end; ++name) {
      if (!sections.contains((*name)[1])) continue;  // metrics.jsonl, 0.95
      ++seen;
      EXPECT_TRUE(keys.contains(name->str())) << advice;
    }
  }
  EXPECT_GT(seen, 60);
}

// A name stands for one thing, and a key for itself.
TEST(ConfigSynonyms, NamesAreUnambiguous) {
  const std::set<std::string> keys = all_keys();
  std::map<std::string_view, std::string_view> seen;
  for (const ConfigSynonym& synonym : config_synonyms()) {
    for (const std::string_view name : synonym.names) {
      EXPECT_TRUE(seen.emplace(name, synonym.advice).second) << name;
      EXPECT_FALSE(keys.contains(std::string(name))) << name;
      EXPECT_TRUE(std::regex_match(std::string(name), std::regex("[a-z0-9_.]+"))) << name;
      for (const ConfigField& field : config_fields()) EXPECT_NE(field.key, name) << "never looked up";
    }
  }
}

// The names are those of configs that others publish: nanoGPT's config/train_gpt2.py, transformers'
// TrainingArguments and model configs, Megatron-LM's arguments.py, DeepSpeed's JSON, torchtitan's TOML.
TEST(ConfigSynonyms, NamesOfOtherProgramsHaveAKey) {
  const std::map<std::string, std::vector<std::string>> expected = {
      {"train.steps", {"max_iters", "max_steps", "num_steps", "train_iters", "Max-Iters"}},
      {"train.micro_batch",
       {"per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu"}},
      {"train.global_batch", {"global_batch_size", "train_batch_size"}},
      {"train.grad_clip", {"max_grad_norm", "clip_grad", "gradient_clipping"}},
      {"train.eval_every", {"eval_interval", "eval_steps"}},
      {"optimizer.lr", {"learning_rate", "LEARNING_RATE"}},
      {"optimizer.warmup", {"warmup_steps", "warmup_iters", "lr_warmup_iters"}},
      {"optimizer.schedule", {"lr_scheduler_type", "lr_decay_style", "decay_lr"}},
      {"optimizer.eps", {"adam_eps", "adam_epsilon"}},
      {"model.layers", {"n_layer", "num_hidden_layers", "num_layers"}},
      {"model.heads", {"n_head", "num_attention_heads"}},
      {"model.kv_heads", {"num_key_value_heads", "num_query_groups"}},
      {"model.hidden", {"n_embd", "hidden_size", "d_model", "dim"}},
      {"model.ffn_hidden", {"intermediate_size", "ffn_hidden_size"}},
      {"model.vocab", {"vocab_size"}},
      {"model.init_std", {"initializer_range", "init_method_std"}},
      {"checkpoint.every", {"save_interval", "save_steps"}},
      {"checkpoint.keep", {"save_total_limit"}},
      {"output.dir", {"out_dir", "output_dir"}},
      {"mesh.tp", {"tensor_model_parallel_size", "tensor_parallel", "tensor_parallel_degree", "tp_size"}},
      {"mesh.pp", {"pipeline_model_parallel_size", "pipeline_parallel_degree"}},
      {"mesh.dp", {"data_parallel_size", "data_parallel_replicate_degree"}},
      {"mesh.cp", {"context_parallel_size"}},
      {"mesh.ep", {"expert_model_parallel_size"}},
      {"mesh.zero", {"zero_stage", "zero_optimization"}},
      {"precision.compute", {"dtype", "fp16", "bf16", "mixed_precision", "torch_dtype"}},
      {"recompute.policy", {"activation_checkpointing", "gradient_checkpointing", "recompute_granularity"}},
  };
  for (const auto& [key, names] : expected) {
    for (const std::string& name : names) EXPECT_EQ(meaning_of_name(name), key) << name;
  }
  for (const char* name :
       {"batch_size", "epochs", "gradient_accumulation_steps", "grad_accum", "block_size",
        "max_position_embeddings", "beta2", "dropout", "resid_pdrop", "device", "warmup_ratio"}) {
    const std::string meaning = meaning_of_name(name);
    EXPECT_FALSE(meaning.empty() || is_one_key(meaning)) << name << ": " << meaning;
  }
  EXPECT_EQ(meaning_of_name("banana"), "");
}

TEST(ConfigSynonyms, WhatASentenceIsAbout) {
  EXPECT_EQ(subject_of("train.norm_spike_window is above train.steps"), "train.norm_spike_window");
  EXPECT_EQ(subject_of("the key is mesh.deadline, in seconds"), "mesh.deadline");
  EXPECT_EQ(subject_of("there are checkpoint.dir and output.dir"), "checkpoint.dir");
  EXPECT_EQ(subject_of("optimizer.lr"), "optimizer.lr");
  EXPECT_EQ(subject_of("dropout is not in this version"), "");
  EXPECT_EQ(subject_of("the activation follows from model.arch"), "");
  EXPECT_EQ(subject_of(""), "");
}

TEST(ConfigSynonyms, KeysOfOtherSectionsAreThemselves) {
  EXPECT_EQ(meaning_of_name("lr"), "optimizer.lr");
  EXPECT_EQ(meaning_of_name("seq-len"), "data.seq_len");
  EXPECT_EQ(meaning_of_name("mesh.tp"), "mesh.tp");
  EXPECT_EQ(meaning_of_name("dir"), "there are checkpoint.dir and output.dir");
}

TEST(ConfigSynonyms, MisspeltNamesAreFoundToo) {
  EXPECT_EQ(nearest_config_advice("learning_rat"), "optimizer.lr");
  EXPECT_EQ(nearest_config_advice("num_hiden_layers"), "model.layers");
  EXPECT_EQ(nearest_config_advice("banana"), "");
  EXPECT_EQ(nearest_config_advice("mbx"), "");
}

// What run folders and checkpoints of earlier versions say is passed over; of a person it is refused.
TEST(Config, AKeyOfAnEarlierVersionIsReadOnlyWhereARunWroteIt) {
  const std::string text = "[model]\npreset = \"llama-tiny\"\n[train]\nsteps = 7\neval_batches = 20\n";
  EXPECT_EQ(parse_config(text, "x/config.toml", {}, ConfigWriter::kRun),
            parse_config("[model]\npreset = \"llama-tiny\"\n[train]\nsteps = 7\n", "x", {}));
  for (const auto& [document, overrides] : {std::pair(text, std::vector<std::string>{}),
                                            std::pair(std::string("[model]\npreset = \"llama-tiny\"\n"),
                                                      std::vector<std::string>{"train.eval_batches=2"})}) {
    try {
      parse_config(document, "a.toml", overrides);
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("train.eval_tokens"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace meshtrain
