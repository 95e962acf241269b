#include "train/config_fields.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer_name.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "pipeline/schedule.h"
#include "train/config_field_kinds.h"
#include "train/config_value.h"

namespace meshtrain {
namespace {

ConfigField peak_tflops() {
  ConfigField result;
  result.section = "machine";
  result.key = "peak_tflops";
  result.type = "\"measure\", \"off\" or a number";
  result.meaning =
      "Peak of the matrix product in TFLOP/s that MFU is a fraction of: measured once on each host that a run "
      "of "
      "more than 20 seconds comes to and kept for later ones ([numerics.md](numerics.md#flops-and-mfu)), not "
      "reported, or given.";
  result.takes_text = true;
  result.set = [](Config& config, const toml::node& node) -> std::string {
    double& out = config.machine.peak_tflops;
    if (const auto* text = node.as_string()) {
      if (text->get() == "measure") return out = -1.0, "";
      if (text->get() == "off") return out = 0.0, "";
    }
    const std::optional<double> value = number(node);
    if (!value || !(*value > 0.0) || !std::isfinite(*value))
      return mismatch("\"measure\", \"off\" or a number above 0", node);
    out = *value;
    return "";
  };
  result.get = [](const Config& config) -> std::string {
    const double value = config.machine.peak_tflops;
    if (value < 0.0) return "\"measure\"";
    return value == 0.0 ? "\"off\"" : to_text(value);
  };
  return result;
}

ConfigField checkpoint_every() {
  ConfigField result;
  result.section = "checkpoint";
  result.key = "every";
  result.type = "integer or \"auto\"";
  result.meaning =
      "Steps between checkpoints; 0 is only at the end. `auto`: what wastes least time, by how long saves and "
      "steps are seen to take.";
  result.takes_text = true;
  result.set = [](Config& config, const toml::node& node) -> std::string {
    std::int64_t& out = config.checkpoint.every;
    if (const auto* text = node.as_string(); text != nullptr && text->get() == "auto") {
      return out = CheckpointConfig::kAuto, "";
    }
    const auto* value = node.as_integer();
    if (value == nullptr || value->get() < 0) return mismatch("a number of steps, 0 or \"auto\"", node);
    out = value->get();
    return "";
  };
  result.get = [](const Config& config) -> std::string {
    const std::int64_t value = config.checkpoint.every;
    return value == CheckpointConfig::kAuto ? "\"auto\"" : to_text(value);
  };
  return result;
}

void add_model(std::vector<ConfigField>& fields) {
  const auto model = [](auto... members) { return at(&Config::model, members...); };
  const auto rope = [](auto member) { return at(&Config::model, &ModelSpec::rope_scaling, member); };
  ConfigField preset = field("model", "preset", at(&Config::preset),
                             "A published shape by name; the section's other keys change it.", "none");
  const auto store_preset = preset.set;
  preset.set = [store_preset](Config& config, const toml::node& node) -> std::string {
    if (node.is_string() && node.as_string()->get().empty()) return "";
    std::string problem = checked_choice(node, preset_names());
    if (problem.empty()) problem = store_preset(config, node);
    if (problem.empty()) config.model = meshtrain::preset(config.preset);
    return problem;
  };
  fields.push_back(
      path_field("model", "from", at(&Config::from),
                 "A Hugging Face folder, a checkpoint or a run folder: where the weights of a new run, "
                 "and the sizes that this section leaves out, come from.",
                 "random weights"));
  fields.push_back(preset);
  fields.push_back(enumeration("model", "arch", std::vector{Architecture::kGpt2, Architecture::kLlama},
                               model(&ModelSpec::arch), "Architecture.", "`\"llama\"`"));
  fields.push_back(field("model", "layers", model(&ModelSpec::layers), "Transformer blocks.", "required"));
  fields.push_back(
      field("model", "hidden", model(&ModelSpec::hidden), "Width of the residual stream.", "required"));
  fields.push_back(field("model", "heads", model(&ModelSpec::heads), "Query heads.", "required"));
  fields.push_back(field("model", "kv_heads", model(&ModelSpec::kv_heads),
                         "Key-value heads; divides heads. gpt2: equal to heads.", "heads"));
  fields.push_back(field("model", "head_dim", model(&ModelSpec::head_dim), "Width of a head; even for llama.",
                         "hidden / heads"));
  fields.push_back(field("model", "ffn_hidden", model(&ModelSpec::ffn_hidden), "Inner width of the MLP.",
                         "gpt2: 4 · hidden; llama: 8/3 · hidden rounded up to a multiple of 64"));
  fields.push_back(field("model", "vocab", model(&ModelSpec::vocab), "Tokens in the vocabulary.",
                         "0: as many as the tokenizer has"));
  fields.push_back(
      field("model", "context", model(&ModelSpec::context), "Longest sequence, in tokens.", "data.seq_len"));
  fields.push_back(field("model", "tie_embeddings", model(&ModelSpec::tie_embeddings),
                         "Whether the output layer is the token embedding.", "gpt2: true; llama: false"));
  fields.push_back(field("model", "norm_eps", model(&ModelSpec::norm_eps), "Added to the variance in norms."));
  fields.push_back(llama_field("rope_theta", model(&ModelSpec::rope_theta), "Base of the rotary frequencies."));
  fields.push_back(llama_field("rope_scaling_factor", rope(&RopeScaling::factor),
                               "Llama 3.1's frequency scaling; 1 is none."));
  fields.push_back(llama_field("rope_low_freq_factor", rope(&RopeScaling::low_freq_factor),
                               "Wavelengths above rope_original_context / this are scaled in full."));
  fields.push_back(llama_field("rope_high_freq_factor", rope(&RopeScaling::high_freq_factor),
                               "Wavelengths below rope_original_context / this are left alone."));
  fields.push_back(llama_field("rope_original_context", rope(&RopeScaling::original_context),
                               "Context before scaling, in tokens."));
  fields.push_back(
      llama_field("qkv_bias", model(&ModelSpec::qkv_bias), "Biases in the QKV projection, as in Qwen2."));
  fields.push_back(
      llama_field("qk_norm", model(&ModelSpec::qk_norm), "RMSNorm of each query and key head, as in Qwen3."));
  fields.push_back(
      field("model", "init_std", model(&ModelSpec::init_std), "Standard deviation of the initial weights."));
}

void add_data_and_train(std::vector<ConfigField>& fields) {
  const auto data = [](auto member) { return at(&Config::data, member); };
  const auto train = [](auto member) { return at(&Config::train, member); };
  fields.push_back(
      path_field("data", "train", data(&DataConfig::train),
                 "Training data: PREFIX of PREFIX.bin and PREFIX.idx, an llm.c .bin, or a text or .jsonl file.",
                 "required to train"));
  fields.push_back(path_field("data", "valid", data(&DataConfig::valid), "The same for evaluation.", "none"));
  fields.push_back(
      path_field("data", "tokenizer", data(&DataConfig::tokenizer),
                 "`bytes`, `sentencepiece:FILE`, the FILE of a Hugging Face tokenizer.json, or `none`: "
                 "only token files are read.",
                 "`\"bytes\"`; with model.from its tokenizer", expand_home_of_tokenizer));
  fields.push_back(field("data", "seq_len", data(&DataConfig::seq_len),
                         "Tokens in a training sequence; at most model.context."));
  fields.push_back(field("train", "steps", train(&TrainConfig::steps),
                         "Optimizer steps in all; a resumed run counts the earlier ones."));
  fields.push_back(field("train", "global_batch", train(&TrainConfig::global_batch),
                         "Sequences an optimizer step; a multiple of micro_batch."));
  fields.push_back(field("train", "micro_batch", train(&TrainConfig::micro_batch),
                         "Sequences a forward and backward pass: what fits in memory."));
  fields.push_back(field("train", "seed", train(&TrainConfig::seed),
                         "Seed of the initial weights and of the order of the data."));
  fields.push_back(field("train", "grad_clip", train(&TrainConfig::grad_clip),
                         "Largest global norm of the gradient; 0 is no clipping."));
  fields.push_back(field("train", "eval_every", train(&TrainConfig::eval_every),
                         "Steps between evaluations; 0 is only at the end."));
  fields.push_back(field("train", "eval_tokens", train(&TrainConfig::eval_tokens),
                         "Tokens per evaluation, from the start of data.valid in file order, rounded up to "
                         "whole sequences; 0 is all of it, and so is more than it has. `meshtrain eval` takes "
                         "the same ones."));
  fields.push_back(choice(
      "train", "on_bad_step", {"stop", "rollback"}, train(&TrainConfig::on_bad_step),
      "What follows a step whose loss or gradient norm is not finite (fp16 skips it instead and halves the "
      "loss "
      "scale), or whose norm is a spike; its update is never applied. `stop`: an error. `rollback`: the run "
      "goes back to its newest checkpoint and on from there without the data of that step."));
  fields.push_back(
      field("train", "norm_spike", train(&TrainConfig::norm_spike),
            "A gradient norm above this many times the mean of the last ones is a spike; 0 is off."));
  fields.push_back(
      field("train", "norm_spike_window", train(&TrainConfig::norm_spike_window),
            "Steps of this mean, skipped ones not counted. While there are fewer, no step is a spike."));
  fields.push_back(field("train", "max_rollbacks", train(&TrainConfig::max_rollbacks),
                         "Most rollbacks of a run, resumed runs included; the next bad step stops it."));
}

void add_optimizer_and_precision(std::vector<ConfigField>& fields) {
  const auto optimizer = [](auto member) { return at(&Config::optimizer, member); };
  const auto precision = [](auto member) { return at(&Config::precision, member); };
  fields.push_back(choice("optimizer", "name", optimizer_names(), optimizer(&OptimizerConfig::name),
                          "Update rule, as torch.optim defines it."));
  fields.push_back(field("optimizer", "lr", optimizer(&OptimizerConfig::lr), "Peak learning rate."));
  fields.push_back(
      field("optimizer", "betas", optimizer(&OptimizerConfig::betas), "adam, adamw: decay rates."));
  fields.push_back(field("optimizer", "eps", optimizer(&OptimizerConfig::eps),
                         "adam, adamw, rmsprop, adagrad: added to the denominator."));
  fields.push_back(field("optimizer", "weight_decay", optimizer(&OptimizerConfig::weight_decay),
                         "adamw: decoupled decay; the others: added to the gradient.",
                         "adamw: 0.1; the others: 0"));
  fields.push_back(field("optimizer", "decay_all", optimizer(&OptimizerConfig::decay_all),
                         "Whether norms and biases decay too."));
  fields.push_back(field("optimizer", "momentum", optimizer(&OptimizerConfig::momentum),
                         "momentum, nesterov, rmsprop.", "rmsprop: 0; else 0.9"));
  fields.push_back(field("optimizer", "alpha", optimizer(&OptimizerConfig::alpha), "rmsprop: decay rate."));
  fields.push_back(choice("optimizer", "schedule", schedule_names(), optimizer(&OptimizerConfig::schedule),
                          "Learning rate after the warm-up. `wsd`: constant, then a last decay."));
  fields.push_back(field("optimizer", "warmup", optimizer(&OptimizerConfig::warmup),
                         "Steps in which the learning rate rises from 0 to lr."));
  fields.push_back(field("optimizer", "min_lr", optimizer(&OptimizerConfig::min_lr),
                         "Learning rate where the schedule ends."));
  fields.push_back(field("optimizer", "decay_fraction", optimizer(&OptimizerConfig::decay_fraction),
                         "wsd: part of the run that decays."));
  fields.push_back(enumeration(
      "precision", "compute", std::vector{DType::kF32, DType::kBF16, DType::kF16},
      precision(&PrecisionConfig::compute),
      "Type of weights and activations in the passes; masters are fp32, and so are reductions inside."));
  fields.push_back(
      enumeration("precision", "gradients", std::vector{DType::kF32, DType::kBF16, DType::kF16},
                  precision(&PrecisionConfig::gradients),
                  "Type that gradients are kept and sent in: fp32, or that of compute, which halves "
                  "both and rounds after each micro-step."));
  fields.push_back(field("precision", "loss_scale", precision(&PrecisionConfig::loss_scale),
                         "fp16: loss scale at the start."));
  fields.push_back(field("precision", "loss_scale_window", precision(&PrecisionConfig::loss_scale_window),
                         "fp16: steps without overflow before the scale doubles."));
}

void add_mesh(std::vector<ConfigField>& fields) {
  const auto mesh = [](auto member) { return at(&Config::mesh, member); };
  fields.push_back(
      field("mesh", "dp", mesh(&MeshConfig::dp),
            "Copies of the model that share out the batch, each on tp · pp ranks; 0 is as many as there are "
            "ranks for.",
            "0"));
  fields.push_back(
      field("mesh", "zero", mesh(&MeshConfig::zero),
            "ZeRO stage: what data-parallel ranks share out instead of keeping a copy each. 1: masters "
            "and optimizer state; 2: gradients too; 3: weights too."));
  fields.push_back(
      field("mesh", "tp", mesh(&MeshConfig::tp),
            "Tensor-parallel ranks: they share every layer. Divides heads and ffn_hidden, and divides "
            "kv_heads or is a multiple of it."));
  fields.push_back(
      field("mesh", "sequence_parallel", mesh(&MeshConfig::sequence_parallel),
            "Whether tensor-parallel ranks share out the tokens between layers, too, instead of all "
            "keeping all of them: the same bytes sent, less memory. No effect with tp = 1."));
  fields.push_back(field("mesh", "pp", mesh(&MeshConfig::pp),
                         "Pipeline stages: each has a run of the layers, and micro-batches pass through them. "
                         "Never changes a bit."));
  fields.push_back(
      choice("mesh", "schedule", pipeline_schedule_names(), mesh(&MeshConfig::schedule),
             "Order of the passes on a stage. `interleaved` is the one for virtual_stages above 1. Never "
             "changes a bit; no effect with pp = 1."));
  fields.push_back(
      field("mesh", "virtual_stages", mesh(&MeshConfig::virtual_stages),
            "Pieces of the model a stage: a smaller bubble for more messages. Never changes a bit."));
  fields.push_back(
      field("mesh", "stage_layers", mesh(&MeshConfig::stage_layers),
            "Blocks of each of the pp · virtual_stages pieces in the order of the model; piece c · pp + r is "
            "piece c of stage r. The first and the last, which have the embedding and the head, may have 0. "
            "Empty: balanced by cost. Never changes a bit."));
  fields.push_back(
      field("mesh", "cp", mesh(&MeshConfig::cp), "Context-parallel ranks. Not in this version: 1."));
  fields.push_back(
      field("mesh", "ep", mesh(&MeshConfig::ep), "Expert-parallel ranks. Not in this version: 1."));
  fields.push_back(field("mesh", "bucket_mb", mesh(&MeshConfig::bucket_mb),
                         "zero 0 and 1: MB of gradients that are reduced together, as soon as they are ready. "
                         "Never changes a bit."));
  fields.push_back(
      field("mesh", "prefetch", mesh(&MeshConfig::prefetch),
            "zero 3: units (an embedding, a block, the head) whose weights are gathered ahead of use. "
            "Never changes a bit."));
  fields.push_back(
      field("mesh", "overlap", mesh(&MeshConfig::overlap),
            "Whether ranks communicate while they compute; messages between stages always do. Never changes "
            "a bit."));
  fields.push_back(choice("mesh", "engine", {"auto", "shm", "mpi"}, mesh(&MeshConfig::engine),
                          "What connects the ranks. `auto`: MPI under mpirun and srun, else shared memory."));
  fields.push_back(field("mesh", "deadline", mesh(&MeshConfig::deadline),
                         "Seconds that an operation may wait for other ranks before it is an error."));
}

void add_rest(std::vector<ConfigField>& fields) {
  const auto checkpoint = [](auto member) { return at(&Config::checkpoint, member); };
  fields.push_back(
      enumeration("recompute", "policy",
                  std::vector{RecomputePolicy::kNone, RecomputePolicy::kSelective, RecomputePolicy::kFull},
                  at(&Config::recompute),
                  "What the backward pass computes again instead of keeping; never changes a bit."));
  fields.push_back(
      choice("numerics", "reduction", {"fast", "tree"}, at(&Config::reduction),
             "Order of sums over the batch. `tree`: the same bits for every dp, zero and number of "
             "micro-steps; takes more memory."));
  fields.push_back(path_field("checkpoint", "dir", checkpoint(&CheckpointConfig::dir),
                              "Folder of the checkpoints.", "output.dir/checkpoints"));
  fields.push_back(checkpoint_every());
  fields.push_back(field(
      "checkpoint", "mtbf_hours", checkpoint(&CheckpointConfig::mtbf_hours),
      "Hours between failures of the whole run, on average, for every = \"auto\" and `plan --checkpoint`; "
      "0 is not known: one failure in 50000 hours of each rank."));
  fields.push_back(
      field("checkpoint", "keep", checkpoint(&CheckpointConfig::keep), "Newest checkpoints kept; 0 is all."));
  fields.push_back(
      field("checkpoint", "async", checkpoint(&CheckpointConfig::async),
            "Whether training continues while a checkpoint is written; needs memory for a copy of it."));
  fields.push_back(path_field("output", "dir", at(&Config::output, &OutputConfig::dir),
                              "Run folder: metrics.jsonl, config.toml and, unless said, the checkpoints."));
  fields.push_back(peak_tflops());
  fields.push_back(field("machine", "threads", at(&Config::machine, &MachineConfig::threads),
                         "Threads of the run; 0 is one for every core it may use. Never changes a bit."));
}

std::vector<ConfigField> make_fields() {
  std::vector<ConfigField> fields;
  add_model(fields);
  add_data_and_train(fields);
  add_optimizer_and_precision(fields);
  add_mesh(fields);
  add_rest(fields);
  for (ConfigField& field : fields) {
    for (const std::string_view name : {"model.from", "model.preset", "data.train", "data.valid"}) {
      if (field.full_name() == name) field.may_be_empty = true;
    }
  }
  return fields;
}

}  // namespace

std::string with_article(const std::string& type) {
  if (type.starts_with("integer")) return "an " + type;
  if (type.starts_with("number") || type.starts_with("string")) return "a " + type;
  if (type.starts_with("[")) return "a list, " + type;
  const bool choice = type.starts_with("\"") && type.find(" or ") == std::string::npos;
  return choice ? "one of " + type : type;
}

std::span<const ConfigField> config_fields() {
  static const std::vector<ConfigField> kFields = make_fields();
  return kFields;
}

}  // namespace meshtrain
