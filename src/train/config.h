// The configuration of a run: what the TOML file and the -s overrides say, checked and with defaults
// filled in. docs/config.md lists every key.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "model/recompute.h"
#include "model/spec.h"

namespace meshtrain {

struct DataConfig {
  std::string train;                // PREFIX of PREFIX.bin/.idx, an llm.c .bin, or a text or .jsonl file
  std::string valid;                // likewise; empty: no evaluation
  std::string tokenizer = "bytes";  // bytes | sentencepiece:FILE | FILE of a Hugging Face tokenizer.json
  std::int64_t seq_len = 256;

  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct TrainConfig {
  std::int64_t steps = 200;           // optimizer steps in all, a resumed run's earlier ones included
  std::int64_t global_batch = 32;     // sequences an optimizer step
  std::int64_t micro_batch = 4;       // sequences a forward pass
  std::uint64_t seed = 1;             // below 2^63
  double grad_clip = 1.0;             // 0: off
  std::int64_t eval_every = 0;        // steps; 0: only at the end
  std::int64_t eval_tokens = 131072;  // an evaluation, from the start of data.valid; 0: all of it
  // A bad step: its loss or gradient norm is not finite (fp16 skips such a step by itself), or the norm is a
  // spike.
  std::string on_bad_step = "stop";     // stop | rollback
  double norm_spike = 0.0;              // times the mean of the last norms; 0: off
  std::int64_t norm_spike_window = 20;  // steps that the mean is of
  std::int64_t max_rollbacks = 10;      // of a run

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

struct OptimizerConfig {
  std::string name = "adamw";  // sgd | momentum | nesterov | adagrad | rmsprop | adam | adamw
  double lr = 3e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;        // adamw's default; 0 for the others
  bool decay_all = false;           // true: norms and biases too
  double momentum = 0.9;            // momentum, nesterov; rmsprop, whose default is 0
  double alpha = 0.99;              // rmsprop
  std::string schedule = "cosine";  // constant | cosine | linear | wsd
  std::int64_t warmup = 0;          // steps
  double min_lr = 0.0;
  double decay_fraction = 0.2;  // wsd: last part of the run that decays

  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct PrecisionConfig {
  DType compute = DType::kBF16;
  double loss_scale = 65536.0;            // fp16: initial
  std::int64_t loss_scale_window = 2000;  // fp16: steps without overflow before the scale doubles
  DType gradients = DType::kF32;          // or that of compute

  friend bool operator==(const PrecisionConfig&, const PrecisionConfig&) = default;
};

// Which meshes are possible is said in train/mesh_rules.h. This version: cp and ep must be 1.
struct MeshConfig {
  std::int64_t dp = 0;    // 0: as many as there are ranks; for_ranks() fills it in
  std::int64_t zero = 0;  // ZeRO stage
  std::int64_t tp = 1;
  bool sequence_parallel = true;  // no effect with tp = 1
  std::int64_t pp = 1;
  std::string schedule = "1f1b";             // no effect with pp = 1
  std::int64_t virtual_stages = 1;           // pieces of the model a stage
  std::vector<std::int64_t> stage_layers{};  // blocks of each piece, in model order; empty: balanced by cost
  std::int64_t cp = 1;
  std::int64_t ep = 1;
  double bucket_mb = 25.0;    // zero 0 and 1: MB of gradients that are reduced together
  std::int64_t prefetch = 1;  // zero 3: units gathered ahead of use
  bool overlap = true;        // whether ranks communicate while they compute
  std::string engine = "auto";
  double deadline = 300.0;  // seconds that an operation may wait for other ranks

  friend bool operator==(const MeshConfig&, const MeshConfig&) = default;
};

struct CheckpointConfig {
  static constexpr std::int64_t kAuto = -1;  // train/checkpoint_rhythm.h

  std::string dir;          // output.dir/checkpoints unless said
  std::int64_t every = 0;   // steps; 0: only at the end; or kAuto
  std::int64_t keep = 3;    // newest kept; 0: all
  bool async = false;       // write in the background; needs memory for one copy
  double mtbf_hours = 0.0;  // between failures of the whole run; 0: one in 50 000 hours of each rank

  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct OutputConfig {
  std::string dir = "runs/default";

  friend bool operator==(const OutputConfig&, const OutputConfig&) = default;
};

struct MachineConfig {
  // Peak matrix-product TFLOP/s that MFU is measured against. Negative: measured when the run starts;
  // 0: MFU is not reported.
  double peak_tflops = -1.0;
  std::int64_t threads = 0;  // 0: all cores that this process may use

  friend bool operator==(const MachineConfig&, const MachineConfig&) = default;
};

struct Config {
  std::string from;    // a Hugging Face folder or checkpoint that a new run's weights come from; empty: random
  std::string preset;  // the name given, if any; the sizes are in `model`
  ModelSpec model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;
  MeshConfig mesh;
  RecomputePolicy recompute = RecomputePolicy::kNone;
  std::string reduction = "fast";
  CheckpointConfig checkpoint;
  OutputConfig output;
  MachineConfig machine;

  friend bool operator==(const Config&, const Config&) = default;
};

// Who wrote a config: a person, or an earlier run (config.toml of its folder, its checkpoints), which may be of
// a version whose keys there are no more; those are passed over.
enum class ConfigWriter : std::uint8_t { kPerson, kRun };

// Reads FILE and applies overrides "section.key=value"; the last one of a key wins. A preset is applied
// first and the other keys of [model] change it; model.from is opened for the sizes that [model] leaves out,
// and not where it gives all of them, as to_toml does. Throws UserError naming file, line, key and the nearest
// known key; checks everything that needs nothing but the config itself. A `model.vocab` left out stays
// 0: the caller fills it in from the tokenizer and calls validate(config).
Config load_config(const std::string& path, const std::vector<std::string>& overrides,
                   ConfigWriter writer = ConfigWriter::kPerson);
// The same from text; `name` stands for the file in messages.
Config parse_config(std::string_view text, const std::string& name, const std::vector<std::string>& overrides,
                    ConfigWriter writer = ConfigWriter::kPerson);

// Everything that can be checked once model.vocab is known. Messages begin with the key.
void validate(const Config& config);

// Every key with its value, as TOML that load_config reads back to an equal Config.
std::string to_toml(const Config& config);

// The tables of docs/config.md: every key with its type, default and meaning.
std::string config_reference();

}  // namespace meshtrain
