#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/exporter.h"
#include "checkpoint/partial_folder.h"
#include "cli/ckpt.h"
#include "cli/commands.h"
#include "data/tokenizer.h"
#include "data/tokenizer_name.h"
#include "train/checkpointing.h"
#include "train/model_source.h"
#include "train/run_folder.h"

namespace meshtrain::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string checkpoint;
  std::string out;
  std::string dtype;
};

// The files of the tokenizer that a config names, as a model folder has them.
std::vector<HfExtraFile> tokenizer_files(const std::string& tokenizer) {
  // What is no name any more was a folder that is gone.
  const TokenizerName named =
      parse_tokenizer_name(tokenizer).value_or(TokenizerName{TokenizerKind::kHuggingFace, tokenizer});
  if (named.kind == TokenizerKind::kBytes) {
    notice("exporting without a tokenizer: the library has none of plain bytes");
    return {};
  }
  if (named.kind == TokenizerKind::kNone) {
    notice("exporting without a tokenizer: data.tokenizer is \"none\"");
    return {};
  }
  fs::path path = named.path;
  const std::string name = named.kind == TokenizerKind::kSentencePiece ? "tokenizer.model" : "tokenizer.json";
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) path /= name;
  if (!fs::exists(path, ignored)) {
    notice("exporting without a tokenizer: {} does not exist any more", path.string());
    return {};
  }
  if (path.filename() != name) return {{.name = name, .from = path.string()}};
  std::vector<HfExtraFile> files;
  for (const std::string& sibling : hf_tokenizer_files(path.parent_path().string()))
    files.push_back({.name = sibling, .from = (path.parent_path() / sibling).string()});
  return files;
}

// Those that came with an imported model.
std::vector<HfExtraFile> carried_files(const Checkpoint& checkpoint) {
  std::vector<HfExtraFile> files;
  for (const auto& [name, file] : checkpoint.manifest().files) {
    if (fs::path(name).parent_path() != kTokenizerFolder) continue;
    files.push_back({.name = fs::path(name).filename().string(), .from = checkpoint.path() + "/" + name});
  }
  return files;
}

// The token that ends a document, where the tokenizer can be opened and has one.
std::optional<std::int64_t> end_of_document(const Config& config) {
  try {
    const auto token = make_tokenizer(config.data.tokenizer)->end_of_document();
    if (token && *token < config.model.vocab) return *token;
  } catch (const UserError&) {  // gone, which tokenizer_files() has said
  }
  return std::nullopt;
}

// The special tokens of a model that began with no folder. Null: the library's own defaults may lie outside of
// a small vocabulary.
nlohmann::json own_token_ids(const Config& config) {
  const std::optional<std::int64_t> end = end_of_document(config);
  return {{"bos_token_id", nullptr}, {"eos_token_id", end ? nlohmann::json(*end) : nullptr}};
}

HfRecord generated(const Config& config, DType dtype, const std::optional<HfTokenIds>& token_ids) {
  return {
      .config_text = hf_config_of(config.model, dtype, token_ids ? token_ids->config : own_token_ids(config)),
      .files = hf_files(config.model, dtype)};
}

// generation_config.json says more of special tokens: the model's own, not that of another model whose
// tokenizer it has.
void put_generation_config(const HfTokenIds& token_ids, std::vector<HfExtraFile>& extras) {
  std::erase_if(extras, [](const HfExtraFile& extra) { return extra.name == kHfGenerationConfig; });
  if (token_ids.generation_config)
    extras.push_back({.name = kHfGenerationConfig, .from = {}, .text = *token_ids.generation_config});
}

HfRecord remembered(const nlohmann::json& json, const std::string& path, std::optional<DType> dtype) {
  HfRecord record = hf_record_from_json(json, path);
  if (!dtype) return record;
  record.config_text = with_hf_dtype(record.config_text, *dtype);
  for (HfStoredFile& file : record.files) {
    for (HfStoredTensor& tensor : file.tensors) tensor.dtype = *dtype;
  }
  return record;
}

void run(const Arguments& arguments) {
  check_new_folder(arguments.out);
  const std::string path = find_checkpoint(arguments.checkpoint);
  const Checkpoint checkpoint(path, Verify::kBytes);
  const Config config = config_of(checkpoint);
  std::optional<DType> dtype;
  if (!arguments.dtype.empty()) dtype = parse_dtype(arguments.dtype);
  const std::optional<HfTokenIds> token_ids = hf_token_ids_of(checkpoint);
  const auto known = checkpoint.state().find("huggingface");
  const HfRecord record = known != checkpoint.state().end()
                              ? remembered(*known, path, dtype)
                              : generated(config, dtype.value_or(config.precision.compute), token_ids);
  std::vector<HfExtraFile> extras = carried_files(checkpoint);
  if (extras.empty()) extras = tokenizer_files(config.data.tokenizer);
  if (token_ids) put_generation_config(*token_ids, extras);
  install_stop_handler();
  write_hf_folder(checkpoint, config.model, record, extras, arguments.out, stopping_hook(arguments.out));
  print_line(stdout, fmt::format("{} (step {}): {} parameters; folder {}", path, checkpoint.step(),
                                 parameter_count(config.model), arguments.out));
}

}  // namespace

void add_ckpt_export(CLI::App& ckpt) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = ckpt.add_subcommand("export", "Makes a Hugging Face model folder of a checkpoint");
  command->add_option("CKPT", arguments->checkpoint, "A checkpoint, or a run folder for its newest")
      ->required();
  command->add_option("--out", arguments->out, "Model folder to write")->required();
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of the weights; default: the types that it was imported with, or precision.compute")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli
