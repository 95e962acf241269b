#include "train/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"
#include "train/config_fields.h"

namespace meshtrain {
namespace {

constexpr std::string_view kMinimal = "[model]\npreset = \"llama-tiny\"\n";

Config parse(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return parse_config(text, "run.toml", overrides);
}

std::string complaint(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    parse(text, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_complaint(std::string_view text, const std::vector<std::string>& overrides,
                      std::initializer_list<std::string_view> parts) {
  const std::string message = complaint(text, overrides);
  ASSERT_FALSE(message.empty()) << "accepted: " << text;
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

// --- Reading --------------------------------------------------------------------------------------

TEST(Config, ReadsEverySection) {
  const Config config = parse(R"(
[model]
arch = "llama"
layers = 4
hidden = 128
heads = 4
kv_heads = 2
vocab = 1000
context = 512
tie_embeddings = true
norm_eps = 1e-6
rope_theta = 500000
rope_scaling_factor = 8.0
rope_low_freq_factor = 1.5
rope_high_freq_factor = 3
rope_original_context = 256
qkv_bias = true
qk_norm = true
init_std = 0.01
[data]
train = "corpus"
valid = "corpus_valid"
tokenizer = "sentencepiece:tok.model"
seq_len = 128
[train]
steps = 50
global_batch = 8
micro_batch = 2
seed = 7
grad_clip = 0.5
eval_every = 10
eval_tokens = 3
[optimizer]
name = "adam"
lr = 1e-3
betas = [0.8, 0.9]
eps = 1e-6
weight_decay = 0.2
decay_all = true
momentum = 0.5
alpha = 0.9
schedule = "wsd"
warmup = 5
min_lr = 1e-4
decay_fraction = 0.3
[precision]
compute = "fp16"
loss_scale = 1024
loss_scale_window = 100
[mesh]
zero = 3
tp = 2
sequence_parallel = false
pp = 2
schedule = "interleaved"
virtual_stages = 2
stage_layers = [0, 1, 2, 1]
[recompute]
policy = "selective"
[numerics]
reduction = "fast"
[checkpoint]
dir = "ckpt"
every = 10
keep = 2
async = true
[output]
dir = "out"
[machine]
peak_tflops = 1.5
threads = 2
)");
  EXPECT_EQ(config.model.arch, Architecture::kLlama);
  EXPECT_EQ(config.model.layers, 4);
  EXPECT_EQ(config.model.hidden, 128);
  EXPECT_EQ(config.model.heads, 4);
  EXPECT_EQ(config.model.kv_heads, 2);
  EXPECT_EQ(config.model.head_dim, 32);
  EXPECT_EQ(config.model.ffn_hidden, 384);  // 341.3 rounded up to a multiple of 64
  EXPECT_EQ(config.model.vocab, 1000);
  EXPECT_EQ(config.model.context, 512);
  EXPECT_TRUE(config.model.tie_embeddings);
  EXPECT_EQ(config.model.norm_eps, 1e-6);
  EXPECT_EQ(config.model.rope_theta, 500000.0);
  EXPECT_EQ(config.model.rope_scaling, (RopeScaling{8.0, 1.5, 3.0, 256}));
  EXPECT_TRUE(config.model.qkv_bias);
  EXPECT_TRUE(config.model.qk_norm);
  EXPECT_EQ(config.model.init_std, 0.01);
  EXPECT_EQ(config.data, (DataConfig{"corpus", "corpus_valid", "sentencepiece:tok.model", 128}));
  EXPECT_EQ(config.train, (TrainConfig{50, 8, 2, 7, 0.5, 10, 3}));
  EXPECT_EQ(config.optimizer,
            (OptimizerConfig{"adam", 1e-3, {0.8, 0.9}, 1e-6, 0.2, true, 0.5, 0.9, "wsd", 5, 1e-4, 0.3}));
  EXPECT_EQ(config.precision, (PrecisionConfig{DType::kF16, 1024.0, 100}));
  EXPECT_EQ(config.mesh.zero, 3);
  EXPECT_EQ(config.mesh.tp, 2);
  EXPECT_EQ(config.mesh.pp, 2);
  EXPECT_EQ(config.mesh.schedule, "interleaved");
  EXPECT_EQ(config.mesh.virtual_stages, 2);
  EXPECT_EQ(config.mesh.stage_layers, (std::vector<std::int64_t>{0, 1, 2, 1}));
  EXPECT_FALSE(config.mesh.sequence_parallel);
  EXPECT_EQ(config.recompute, RecomputePolicy::kSelective);
  EXPECT_EQ(config.checkpoint, (CheckpointConfig{"ckpt", 10, 2, true}));
  EXPECT_EQ(config.output.dir, "out");
  EXPECT_EQ(config.machine, (MachineConfig{1.5, 2}));
}

TEST(Config, DerivedDefaults) {
  const Config gpt2 = parse("[model]\narch = \"gpt2\"\nlayers = 2\nhidden = 64\nheads = 4\n");
  EXPECT_EQ(gpt2.model.kv_heads, 4);
  EXPECT_EQ(gpt2.model.head_dim, 16);
  EXPECT_EQ(gpt2.model.ffn_hidden, 256);
  EXPECT_TRUE(gpt2.model.tie_embeddings);
  EXPECT_EQ(gpt2.model.context, 256);  // data.seq_len
  EXPECT_EQ(gpt2.model.vocab, 0);      // the tokenizer's
  EXPECT_EQ(gpt2.checkpoint.dir, "runs/default/checkpoints");

  const Config llama = parse("[model]\nlayers = 2\nhidden = 4096\nheads = 32\n[output]\ndir = \"runs/x\"\n");
  EXPECT_EQ(llama.model.arch, Architecture::kLlama);
  EXPECT_EQ(llama.model.kv_heads, 32);
  EXPECT_EQ(llama.model.ffn_hidden, 10944);  // 10922.67 rounded up to a multiple of 64
  EXPECT_FALSE(llama.model.tie_embeddings);
  EXPECT_EQ(llama.checkpoint.dir, "runs/x/checkpoints");

  EXPECT_EQ(parse(kMinimal).optimizer.weight_decay, 0.1);
  EXPECT_EQ(parse(kMinimal, {"optimizer.name=sgd"}).optimizer.weight_decay, 0.0);
  EXPECT_EQ(parse(kMinimal, {"optimizer.name=nesterov"}).optimizer.momentum, 0.9);
  EXPECT_EQ(parse(kMinimal, {"optimizer.name=rmsprop"}).optimizer.momentum, 0.0);
}

TEST(Config, PresetFirstThenTheOtherKeys) {
  // Keys that stand before the preset change it too.
  const Config config = parse("[model]\nlayers = 3\npreset = \"gpt2-124m\"\n");
  EXPECT_EQ(config.preset, "gpt2-124m");
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.hidden, 768);
  EXPECT_EQ(config.model.vocab, 50257);
  EXPECT_EQ(config.model.context, 1024);

  // Derived sizes follow what they are derived from, unless the preset has its own.
  const Config wider = parse("[model]\npreset = \"gpt2-124m\"\nhidden = 384\nheads = 6\n");
  EXPECT_EQ(wider.model.head_dim, 64);
  EXPECT_EQ(wider.model.kv_heads, 6);
  EXPECT_EQ(wider.model.ffn_hidden, 1536);
  const Config llama = parse("[model]\npreset = \"llama-3-8b\"\nhidden = 2048\n");
  EXPECT_EQ(llama.model.head_dim, 64);
  EXPECT_EQ(llama.model.kv_heads, 8);
  EXPECT_EQ(llama.model.ffn_hidden, 14336);
  const Config qwen3 = parse("[model]\npreset = \"qwen3-0.6b\"\nhidden = 512\n");
  EXPECT_EQ(qwen3.model.head_dim, 128);

  expect_complaint("[model]\npreset = \"gpt2-124\"\n", {}, {"run.toml, line 2", "nearest is \"gpt2-124m\""});
  expect_complaint("[model]\npreset = \"gpt2-124m\"\narch = \"llama\"\n", {},
                   {"model.arch", "contradicts", "line 3"});
}

// --- Overrides ------------------------------------------------------------------------------------

TEST(Config, Overrides) {
  const Config config = parse(
      kMinimal, {"optimizer.name=sgd", "data.train=foo/bar", "optimizer.betas=[0.9,0.99]", "train.steps=1_000",
                 "train.steps=7", "data.valid=\"a b\"", "data.tokenizer=sentencepiece:a=b.model",
                 "output.dir=2024", "machine.peak_tflops=off", "precision.compute=fp32",
                 "checkpoint.async=true", "optimizer.lr=1e-2", "recompute.policy=full"});
  EXPECT_EQ(config.optimizer.name, "sgd");
  EXPECT_EQ(config.data.train, "foo/bar");
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.9, 0.99}));
  EXPECT_EQ(config.train.steps, 7);  // the last one wins
  EXPECT_EQ(config.data.valid, "a b");
  EXPECT_EQ(config.data.tokenizer, "sentencepiece:a=b.model");
  EXPECT_EQ(config.output.dir, "2024");
  EXPECT_EQ(config.machine.peak_tflops, 0.0);
  EXPECT_EQ(config.precision.compute, DType::kF32);
  EXPECT_TRUE(config.checkpoint.async);
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.recompute, RecomputePolicy::kFull);
  EXPECT_EQ(parse(kMinimal, {"model.preset=gpt2-tiny"}).model.arch, Architecture::kGpt2);
  EXPECT_EQ(parse(kMinimal, {"machine.peak_tflops=2"}).machine.peak_tflops, 2.0);
  EXPECT_EQ(parse(kMinimal, {"checkpoint.every=auto"}).checkpoint.every, CheckpointConfig::kAuto);
  EXPECT_EQ(parse(kMinimal, {"checkpoint.every=0"}).checkpoint.every, 0);
}

TEST(Config, BadOverrides) {
  expect_complaint(kMinimal, {"model.heds=4"}, {"-s model.heds=4", "unknown key model.heds", "model.heads"});
  expect_complaint(kMinimal, {"modle.heads=4"}, {"-s modle.heads=4", "unknown section [modle]", "[model]"});
  expect_complaint(kMinimal, {"model.heads=four"},
                   {"-s model.heads=four", "model.heads expects an integer, found four"});
  expect_complaint(kMinimal, {"model.heads=4.0"}, {"expects an integer, found the number 4.0"});
  expect_complaint(kMinimal, {"model.heads="}, {"-s model.heads=", "the value is missing", "an integer"});
  expect_complaint(kMinimal, {"optimizer.name=adamx"}, {"-s optimizer.name=adamx", "nearest is \"adam\""});
  expect_complaint(kMinimal, {"optimizer.lr=fast"}, {"optimizer.lr expects a number, found fast"});
  expect_complaint(kMinimal, {"model.heads= \t"}, {"the value is missing", "`-s model.heads=VALUE`"});
  expect_complaint(kMinimal, {"mesh.overlap="}, {"-s mesh.overlap=", "missing", "true or false"});
  expect_complaint(kMinimal, {"optimizer.betas="}, {"the value is missing", "[number, number]"});
  expect_complaint(kMinimal, {"optimizer.schedule="}, {"the value is missing", "one of", "\"cosine\""});
  expect_complaint(kMinimal, {"checkpoint.every="}, {"the value is missing", "an integer or \"auto\""});
  expect_complaint(kMinimal, {"output.dir="}, {"the value is missing", "`-s output.dir=VALUE`", "a string"});
  expect_complaint(kMinimal, {"data.seq_len"}, {"-s data.seq_len:", "the value is missing", "an integer"});
  expect_complaint(kMinimal, {"seq_len=8"}, {"the section is missing", "`-s data.seq_len=8`"});
  expect_complaint(kMinimal, {"Learning-Rate=8"}, {"the section is missing", "`-s optimizer.lr=8`"});
  expect_complaint(kMinimal, {"grad_clip"}, {"the section is missing", "`-s train.grad_clip=VALUE`"});
  expect_complaint(kMinimal, {"nonsense=8"}, {"-s nonsense=8", "section.key=value"});
  EXPECT_EQ(parse(kMinimal, {"data.valid=x", "data.valid="}).data.valid, "");
  EXPECT_EQ(parse(kMinimal, {"data.tokenizer=\"\""}).data.tokenizer, "");
  expect_complaint(kMinimal, {"train.steps=1\ntrain.seed=2"}, {"one line"});
  expect_complaint(kMinimal, {"data.train=\xff"}, {"UTF-8"});
  for (const char* text : {"", "=", "heads=4", "model=4", "heads", "model.heads", ".=", "a=b.c"}) {
    EXPECT_NE(complaint(kMinimal, {text}), "") << text;
  }
}

// --- Mistakes in the file -------------------------------------------------------------------------

TEST(Config, UnknownKeysNameTheNearest) {
  expect_complaint("[model]\npreset = \"llama-tiny\"\nheds = 4\n", {},
                   {"run.toml, line 3", "unknown key model.heds", "model.heads"});
  expect_complaint("[train]\nlr = 1e-3\n", {}, {"line 2", "train.lr", "optimizer.lr"});
  expect_complaint("[optimiser]\nlr = 1e-3\n", {}, {"line 1", "[optimiser]", "[optimizer]"});
  expect_complaint("layers = 2\n", {}, {"line 1", "layers", "model.layers"});
  expect_complaint("[optimizer]\nsteps = 3\n", {},
                   {"line 2", "unknown key optimizer.steps", "the key is train.steps"});
  expect_complaint("[data]\nschedule = \"1f1b\"\n", {},
                   {"data.schedule", "there are optimizer.schedule and mesh.schedule"});
  expect_complaint("[parallel]\ntp = 2\n", {}, {"line 1", "unknown section [parallel]", "the key is mesh.tp"});
  expect_complaint("[train]\nbanana = 2\n", {},
                   {"unknown key train.banana", "[train] has steps, global_batch"});
  expect_complaint("num_layers = 2\n", {}, {"line 1", "outside of any section", "model.layers"});
  expect_complaint("train = 2\n", {}, {"line 1", "train"});
  expect_complaint("[[model]]\nlayers = 2\n", {}, {"line 1", "[model]"});
  expect_complaint("[model.heads]\nlayers = 2\n", {}, {"model.heads", "a table"});
}

TEST(Config, WrongTypesNameKeyExpectedAndFound) {
  expect_complaint("[model]\nheads = \"four\"\n", {},
                   {"run.toml, line 2", "model.heads expects an integer", "the string \"four\""});
  expect_complaint("[optimizer]\nbetas = 0.9\n", {},
                   {"line 2", "optimizer.betas", "[0.9, 0.95]", "the number 0.9"});
  expect_complaint("[optimizer]\nbetas = [0.9]\n", {}, {"an array of 1"});
  expect_complaint("[optimizer]\nbetas = [0.9, \"x\"]\n", {}, {"optimizer.betas", "the string \"x\""});
  expect_complaint("[mesh]\nstage_layers = 6\n", {},
                   {"line 2", "mesh.stage_layers", "[6, 6]", "the integer 6"});
  expect_complaint("[mesh]\nstage_layers = [6, 6.0]\n", {}, {"expects integers only, found the number 6.0"});
  expect_complaint("[mesh]\nstage_layers = [[6], 6]\n", {}, {"expects integers only, found an array of 1"});
  expect_complaint("[checkpoint]\nasync = 1\n", {}, {"expects true or false, found the integer 1"});
  expect_complaint("[data]\ntrain = 3\n", {}, {"expects a string in quotes, found the integer 3"});
  expect_complaint("[data]\ntrain = 2024-01-01\n", {}, {"a date or time"});
  expect_complaint("[data]\ntrain = \"a\\u0000b\"\n", {}, {"NUL"});
  expect_complaint("[train]\nseed = -1\n", {}, {"train.seed", "0 or above"});
  expect_complaint("[machine]\npeak_tflops = -3\n", {}, {"machine.peak_tflops", "\"measure\", \"off\""});
  expect_complaint("[checkpoint]\nevery = \"often\"\n", {},
                   {"checkpoint.every", "a number of steps, 0 or \"auto\"", "the string \"often\""});
  expect_complaint("[checkpoint]\nevery = -1\n", {}, {"checkpoint.every", "the integer -1"});
  expect_complaint("[checkpoint]\nevery = 2.5\n", {}, {"checkpoint.every", "the number 2.5"});
  expect_complaint("[machine]\npeak_tflops = inf\n", {}, {"machine.peak_tflops"});
  expect_complaint("[precision]\ncompute = \"fp8\"\n", {}, {"fp32, bf16, fp16", "found the string \"fp8\""});
}

TEST(Config, NotToml) {
  expect_complaint("[model\n", {}, {"run.toml, line 1", "not TOML"});
  expect_complaint("[train]\nsteps = 1\nsteps = 2\n", {}, {"line 3"});
  expect_complaint("a = \xff", {}, {"not TOML"});
}

TEST(Config, MissingSizes) {
  expect_complaint("", {}, {"run.toml", "model.layers is missing", "model.preset"});
  expect_complaint("[model]\nlayers = 1\nhidden = 8\n", {}, {"model.heads is missing"});
}

TEST(Config, KeysWithoutEffectAreRefused) {
  expect_complaint("[model]\npreset = \"gpt2-tiny\"\nrope_theta = 1e4\n", {},
                   {"line 3", "model.rope_theta", "gpt2"});
}

// --- Validation -----------------------------------------------------------------------------------

TEST(Config, ComplaintsAboutValuesSayWhere) {
  expect_complaint("[model]\npreset = \"llama-tiny\"\nheads = 5\nkv_heads = 5\n", {},
                   {"run.toml, line 3: model.heads = 5", "4 or 8"});
  expect_complaint(kMinimal, {"data.seq_len=257"},
                   {"-s data.seq_len=257: data.seq_len = 257", "model.context = 256"});
}

TEST(Config, RefusesImpossibleValues) {
  const std::pair<std::string_view, std::string_view> bad[] = {
      {"data.seq_len=0", "data.seq_len = 0"},
      {"train.steps=0", "train.steps = 0"},
      {"train.micro_batch=5", "multiple of train.micro_batch = 5"},
      {"train.global_batch=-4", "train.global_batch = -4"},
      {"train.grad_clip=-1", "train.grad_clip = -1"},
      {"train.grad_clip=nan", "train.grad_clip = nan"},
      {"train.eval_every=-1", "train.eval_every"},
      {"train.eval_tokens=-1", "train.eval_tokens"},
      {"train.on_bad_step=skip", "train.on_bad_step"},
      {"train.norm_spike=1", "train.norm_spike"},
      {"train.norm_spike=-2", "train.norm_spike"},
      {"train.norm_spike=inf", "train.norm_spike"},
      {"train.norm_spike_window=0", "train.norm_spike_window"},
      {"train.norm_spike_window=1001", "train.norm_spike_window"},
      {"train.max_rollbacks=-1", "train.max_rollbacks"},
      {"optimizer.lr=-1e-3", "optimizer.lr = -0.001"},
      {"optimizer.lr=inf", "optimizer.lr = inf"},
      {"optimizer.lr=1e39", "optimizer.lr"},  // not a float
      {"optimizer.betas=[1.0, 0.9]", "optimizer.betas = 1"},
      {"optimizer.betas=[0.9, nan]", "optimizer.betas = nan"},
      {"optimizer.eps=-1", "optimizer.eps"},
      {"optimizer.weight_decay=-0.1", "optimizer.weight_decay"},
      {"optimizer.momentum=1", "optimizer.momentum"},
      {"optimizer.alpha=2", "optimizer.alpha"},
      {"optimizer.warmup=201", "optimizer.warmup = 201"},
      {"optimizer.min_lr=1", "optimizer.min_lr = 1"},
      {"optimizer.decay_fraction=1.5", "optimizer.decay_fraction"},
      {"precision.loss_scale=0", "precision.loss_scale"},
      {"precision.loss_scale_window=0", "precision.loss_scale_window"},
      {"precision.gradients=fp16", "precision.gradients = \"fp16\""},
      {"mesh.dp=-1", "mesh.dp = -1"},
      {"mesh.dp=3", "mesh.dp = 2 or 4"},
      {"mesh.bucket_mb=-1", "mesh.bucket_mb"},
      {"mesh.prefetch=-1", "mesh.prefetch"},
      {"mesh.deadline=0", "mesh.deadline"},
      {"mesh.deadline=nan", "mesh.deadline"},
      {"checkpoint.every=-1", "checkpoint.every"},
      {"checkpoint.every=1000000000001", "checkpoint.every"},
      {"checkpoint.mtbf_hours=-1", "checkpoint.mtbf_hours"},
      {"checkpoint.mtbf_hours=inf", "checkpoint.mtbf_hours"},
      {"checkpoint.keep=-1", "checkpoint.keep"},
      {"machine.threads=-1", "machine.threads"},
      {"output.dir=", "output.dir"},
      {"checkpoint.dir=", "checkpoint.dir"},
  };
  for (const auto& [override_text, part] : bad)
    expect_complaint(kMinimal, {std::string(override_text)}, {part});
  expect_complaint(kMinimal,
                   {"train.steps=1000000000000", "train.global_batch=1073741824", "train.micro_batch=1"},
                   {"64-bit"});
  expect_complaint(kMinimal, {"train.micro_batch=5"}, {"30 or 35", "4 or 8"});
  expect_complaint(kMinimal, {"numerics.reduction=tree", "precision.gradients=bf16"},
                   {"numerics.reduction = \"tree\"", "precision.gradients = \"fp32\""});
}

TEST(Config, VocabularyIsCheckedOnceItIsKnown) {
  Config config = parse(kMinimal);
  EXPECT_THROW(validate(config), UserError);
  config.model.vocab = 256;
  EXPECT_NO_THROW(validate(config));
  config.train.seed = std::uint64_t{1} << 63U;
  EXPECT_THROW(validate(config), UserError);
  expect_complaint(kMinimal, {"model.vocab=-1"}, {"model.vocab = -1"});
}

// --- Writing --------------------------------------------------------------------------------------

TEST(Config, WrittenConfigReadsBackEqual) {
  for (const std::string& name : preset_names()) {
    Config config = parse(fmt::format("[model]\npreset = \"{}\"\n", name));
    EXPECT_EQ(parse(to_toml(config)), config) << name;
    config.model.vocab = 777;
    EXPECT_EQ(parse(to_toml(config)), config) << name;
  }
  const Config odd =
      parse(kMinimal, {"optimizer.lr=0.1", "optimizer.eps=4.9406564584124654e-324",
                       "optimizer.weight_decay=1e22", "optimizer.min_lr=0.030000000000000002",
                       "train.seed=9223372036854775807", "machine.peak_tflops=3", "mesh.tp=2", "mesh.pp=2",
                       "mesh.stage_layers=[2, 0]", "checkpoint.every=auto", "checkpoint.mtbf_hours=0.1"});
  EXPECT_EQ(parse(to_toml(odd)), odd);
}

TEST(Config, WrittenStringsAreEscaped) {
  Config config = parse(kMinimal);
  config.data.train = "a \"quoted\" \\path\\ with\ttab\nline \x01\x7f ünï";
  EXPECT_EQ(parse(to_toml(config)), config);
}

// --- Files ----------------------------------------------------------------------------------------

TEST(Config, LoadsAFile) {
  const auto path = std::filesystem::temp_directory_path() / "meshtrain_config_test.toml";
  std::ofstream(path) << kMinimal << "[train]\nsteps = 3\n";
  EXPECT_EQ(load_config(path.string(), {}).train.steps, 3);
  std::filesystem::remove(path);
  for (const std::string& bad : {path.string(), std::string("/"), std::string("/dev/zero"), std::string()}) {
    try {
      load_config(bad, {});
      FAIL() << bad;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(bad), std::string::npos) << error.what();
    }
  }
}

TEST(Config, DocumentationListsEveryKey) {
  std::ifstream file(std::string(MESHTRAIN_SOURCE_DIR) + "/docs/config.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string reference = config_reference();
  EXPECT_NE(text.str().find(reference), std::string::npos) << "docs/config.md should contain:\n" << reference;
  for (const ConfigField& field : config_fields()) {
    EXPECT_NE(reference.find(fmt::format("| `{}` |", field.key)), std::string::npos) << field.full_name();
  }
}

}  // namespace
}  // namespace meshtrain
