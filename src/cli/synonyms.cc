#include "cli/synonyms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/nearest.h"
#include "base/utf8_prefix.h"
#include "train/config_unknown.h"

namespace meshtrain::cli {
namespace {

// "--Max_Tokens=3" is "max-tokens".
std::string plain_name(std::string_view name) {
  name = name.substr(0, name.find('='));
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string plain;
  for (const char c : name) {
    plain += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

// What the name stands for, in all entries of the table that have it.
std::vector<std::string_view> meanings_of(std::span<const Synonym> table, std::string_view name) {
  const std::string plain = plain_name(name);
  std::vector<std::string_view> meanings;
  for (const Synonym& synonym : table) {
    if (std::find(synonym.names.begin(), synonym.names.end(), plain) == synonym.names.end()) continue;
    meanings.insert(meanings.end(), synonym.meanings.begin(), synonym.meanings.end());
  }
  return meanings;
}

// "--resume", "-s", …
std::vector<std::string> options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

bool has_option(const CLI::App& command, std::string_view name) {
  const std::vector<std::string> options = options_of(command);
  return std::find(options.begin(), options.end(), name) != options.end();
}

// The option that is a key of the config here.
std::string key_hint(std::string_view option) {
  const std::size_t equals = option.find('=');
  std::string_view name = option.substr(0, equals);
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  const std::string meaning = meaning_of_name(name);
  const std::string key = subject_of(meaning);
  if (key.empty()) return meaning.empty() ? "" : "; " + meaning;
  if (!is_one_key(meaning)) return fmt::format("; {}: `-s {}=VALUE`", meaning, key);
  return fmt::format("; it is a key of the config: `-s {}={}`", key,
                     equals == std::string_view::npos ? "VALUE" : shortened(option.substr(equals + 1)));
}

}  // namespace

std::span<const Synonym> command_synonyms() {
  static const std::vector<Synonym> kTable = {
      {{"run", "fit", "pretrain", "finetune", "fine-tune", "sft", "training", "learn", "launch"}, {"train"}},
      {{"resume", "continue", "restart"}, {"train RUN --resume"}},
      {{"sample", "inference", "infer", "chat", "complete", "completion", "predict", "prompt", "text"},
       {"generate"}},
      {{"evaluate", "evaluation", "val", "valid", "validate", "validation", "test", "loss", "perplexity"},
       {"eval"}},
      {{"preprocess", "prepare", "prepare-data", "encode", "tokenise", "tokenizer", "data"}, {"tokenize"}},
      {{"estimate", "memory", "cost", "simulate", "sim", "dry-run", "dryrun"}, {"plan"}},
      {{"compare", "check", "equivalence"}, {"verify"}},
      {{"benchmark", "perf", "profile", "measure"}, {"bench"}},
      {{"convert", "hf", "huggingface"}, {"ckpt import", "ckpt export"}},
      {{"import", "from-hf", "load"}, {"ckpt import"}},
      {{"export", "to-hf", "save"}, {"ckpt export"}},
      {{"checkpoint", "checkpoints", "inspect", "show", "info"}, {"ckpt inspect"}},
      {{"digest", "hash", "checksum"}, {"ckpt digest"}},
      {{"help", "usage"}, {"--help"}},
      {{"version"}, {"--version"}},
      // Of bench.
      {{"all-reduce", "allreduce", "collectives", "nccl", "communication", "network", "mpi"}, {"bench comm"}},
      {{"gemm", "matrix", "flops", "mm", "peak"}, {"bench matmul"}},
      {{"disk", "storage", "write"}, {"bench checkpoint"}},
      {{"step", "throughput", "tokens"}, {"bench train"}},
  };
  return kTable;
}

std::span<const Synonym> option_synonyms() {
  static const std::vector<Synonym> kTable = {
      {{"max-new-tokens", "max-tokens", "num-tokens", "max-length", "length", "n", "n-predict", "new-tokens"},
       {"--tokens"}},
      {{"input", "text", "start", "p", "input-text"}, {"--prompt"}},
      {{"nucleus", "p-sampling"}, {"--top-p"}},
      {{"output", "o", "output-dir", "out-dir", "output-prefix", "outdir", "save-dir", "output-file"},
       {"--out"}},
      {{"dataset", "valid", "val-data", "eval-data", "file"}, {"--data"}},
      {{"num-batches", "eval-iters", "limit", "max-batches"}, {"--tokens"}},
      {{"np", "num-ranks", "nproc", "nprocs", "nproc-per-node", "world-size", "processes", "num-processes",
        "n"},
       {"--ranks"}},
      {{"workers", "num-workers", "num-threads", "n-threads", "nthreads", "j", "jobs"}, {"--threads"}},
      {{"vocab-size", "vocabulary"}, {"--vocab"}},
      {{"eos", "eot", "append-eod", "eos-token"}, {"--eod"}},
      {{"text-key", "json-key", "json-keys", "field", "key", "column"}, {"--text-field"}},
      {{"tokenizer-model", "tokenizer-type", "tokenizer-path", "tokenizer-name"}, {"--tokenizer"}},
      {{"iterations", "num-iters", "steps", "rounds"}, {"--iters", "--rounds", "--repeats", "--steps"}},
      {{"minbytes", "min-bytes", "b", "begin"}, {"--min"}},
      {{"maxbytes", "max-bytes", "e", "end"}, {"--max"}},
      {{"stepfactor", "f"}, {"--factor"}},
      {{"datatype", "d", "type"}, {"--type", "--dtype"}},
      {{"precision", "torch-dtype"}, {"--dtype"}},
      {{"atol", "rtol", "tol", "eps"}, {"--tolerance"}},
      {{"mesh-a", "meshes", "m"}, {"--mesh"}},
      {{"verbose", "v", "full", "list", "tensors"}, {"--all"}},
      {{"override", "overrides", "config-override"}, {"--set"}},
      {{"ckpt", "load", "checkpoint-path"}, {"--checkpoint", "--resume-from"}},
      {{"continue", "restart", "auto-resume"}, {"--resume"}},
      {{"retries", "max-retries", "restarts"}, {"--max-restarts"}},
  };
  return kTable;
}

std::string command_hint(std::string_view words, std::string_view name, std::span<const std::string> commands) {
  // "import" after "meshtrain ckpt" is what it says there; elsewhere the whole way counts.
  const std::string_view group = words.substr(std::min(words.find(' ') + 1, words.size()));
  const bool at_top = words.find(' ') == std::string_view::npos;
  std::string hint;
  for (const std::string_view meaning : meanings_of(command_synonyms(), name)) {
    const bool fits = at_top ? !meaning.starts_with("bench ") : meaning.starts_with(group);
    if (fits) hint += fmt::format("{}`meshtrain {}`", hint.empty() ? "; that is " : " or ", meaning);
  }
  if (hint.empty()) hint = nearest_hint(name, commands, "");
  if (!hint.empty() || !at_top) return hint;
  // A misspelt synonym: "evalute".
  std::vector<std::string> names;
  for (const Synonym& known : command_synonyms()) {
    for (const std::string_view other : known.names) {
      if (other.size() > 4) names.emplace_back(other);
    }
  }
  const std::string near = nearest(name, names);
  return near.empty() ? "" : command_hint(words, near, commands);
}

std::string option_hint(const CLI::App& command, std::string_view option) {
  const std::string_view name = option.substr(0, option.find('='));
  for (const std::string_view meaning : meanings_of(option_synonyms(), option)) {
    if (has_option(command, meaning)) return fmt::format("; that is {}", meaning);
  }
  const std::string hint = has_option(command, "--set") ? key_hint(option) : "";
  return hint.empty() ? nearest_hint(name, options_of(command), "") : hint;
}

std::string argument_hint(const CLI::App& command, std::string_view argument) {
  if (argument.find('=') == std::string_view::npos || !has_option(command, "--set")) return "";
  return key_hint(argument);
}

}  // namespace meshtrain::cli
