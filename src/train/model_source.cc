#include "train/model_source.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/exporter.h"
#include "checkpoint/huggingface/folder.h"
#include "data/byte_tokenizer.h"
#include "data/hf_tokenizer.h"
#include "data/tokenizer_name.h"
#include "train/checkpointing.h"
#include "train/config_fields.h"
#include "train/config_value.h"
#include "train/resume.h"
#include "train/run_folder.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// Not all are of a kind that is read here; those of Llama 2 and Mistral, for one, have a tokenizer.model
// beside.
bool is_readable_tokenizer(const std::string& json) {
  try {
    (void)load_hf_tokenizer(json, "");
    return true;
  } catch (const UserError&) {
    return false;
  }
}

// The tokenizer of `folder`, where it is called `name`. Plain bytes have no file: their vocabulary tells them.
std::string tokenizer_of_folder(const std::string& folder, const std::string& name, std::int64_t vocab) {
  const fs::path path(folder);
  std::error_code ignored;
  const bool json = fs::exists(path / "tokenizer.json", ignored);
  const bool sentencepiece = fs::exists(path / "tokenizer.model", ignored);
  if (json && (!sentencepiece || is_readable_tokenizer(path / "tokenizer.json")))
    return name + "/tokenizer.json";
  if (sentencepiece) return to_string({TokenizerKind::kSentencePiece, name + "/tokenizer.model"});
  return to_string({vocab == ByteTokenizer().vocab_size() ? TokenizerKind::kBytes : TokenizerKind::kNone, ""});
}

ModelDescription describe_folder(const std::string& folder) {
  const std::string config = folder + "/config.json";
  const MappedFile file = MappedFile::open(config, "the config of the model folder");
  const ModelSpec spec = spec_of_hf_config(file.text(), config);
  return {.spec = spec, .tokenizer = tokenizer_of_folder(folder, folder, spec.vocab)};
}

bool may_differ(const ModelSpec& spec, std::string_view key) {
  if (key == "context") return spec.arch == Architecture::kLlama;
  return key == "norm_eps" || key == "init_std" || key.starts_with("rope_");
}

}  // namespace

ModelDescription describe_model(const std::string& path) {
  if (is_hf_folder(path)) return describe_folder(path);
  const Checkpoint checkpoint(find_checkpoint(path), Verify::kManifest);
  checkpoint.verify_files();
  const Config config = config_of(checkpoint);
  return {.spec = config.model, .tokenizer = config.data.tokenizer};
}

std::unique_ptr<WeightSource> open_weights(const std::string& path) {
  if (is_hf_folder(path)) return std::make_unique<HuggingFaceFolder>(path);
  return std::make_unique<Checkpoint>(find_checkpoint(path), Verify::kSizes);
}

Config config_of_folder(const std::string& folder, const std::vector<std::string>& overrides) {
  const HuggingFaceFolder opened(folder);
  const std::string text = fmt::format(
      "[model]\nfrom = {}\n[data]\nseq_len = {}\n[precision]\ncompute = \"{}\"\n", meshtrain::quoted(folder),
      std::min(opened.spec().context, kFolderSeqLen), name_of(opened.dtype()));
  return parse_config(text, folder, overrides);
}

std::string carried_tokenizer(const std::string& folder, const ModelSpec& spec) {
  return tokenizer_of_folder(folder, kTokenizerFolder, spec.vocab);
}

std::string with_carried_tokenizer(const std::string& tokenizer, const Checkpoint& checkpoint) {
  std::optional<TokenizerName> name = parse_tokenizer_name(tokenizer);
  if (!name || !checkpoint.manifest().files.contains(name->path)) return tokenizer;
  name->path = checkpoint.path() + "/" + name->path;
  return to_string(*name);
}

std::optional<HfTokenIds> hf_token_ids_of(const Checkpoint& checkpoint) {
  const nlohmann::json& state = checkpoint.state();
  if (const auto own = state.find("token_ids"); own != state.end())
    return hf_token_ids_from_json(*own, checkpoint.path());
  const auto imported = state.find("huggingface");
  if (imported == state.end()) return std::nullopt;
  std::optional<std::string> generation_config;
  const std::string name = fmt::format("{}/{}", kTokenizerFolder, kHfGenerationConfig);
  if (checkpoint.manifest().files.contains(name)) {
    generation_config = MappedFile::open(checkpoint.path() + "/" + name, "the file of the checkpoint").text();
  }
  const HfRecord record = hf_record_from_json(*imported, checkpoint.path());
  return hf_token_ids(record.config_text, std::move(generation_config), checkpoint.path());
}

void check_model_of_source(const ModelSpec& spec, const ModelSpec& source, const std::string& path) {
  Config here;
  Config there;
  here.model = spec;
  there.model = source;
  for (const ConfigField& field : config_fields()) {
    if (field.section != "model" || may_differ(source, field.key)) continue;
    if (field.get(here) == field.get(there)) continue;
    throw_user_error("{} = {} contradicts the weights of {}, where it is {}. Leave the key out.",
                     field.full_name(), field.get(here), path, field.get(there));
  }
}

void initialize_weights(Assembly& assembly) {
  const std::string& from = assembly.config().from;
  assembly.token_ids.reset();
  if (from.empty()) {
    assembly.initialize();
    return;
  }
  check_model_of_source(assembly.config().model, describe_model(from).spec, from);
  if (is_hf_folder(from)) {
    assembly.token_ids = hf_token_ids_of_folder(from);
    load_masters(assembly, *open_weights(from));
  } else {
    const ResumeSource source = whole_checkpoint(from, *assembly.groups.control);
    assembly.token_ids = hf_token_ids_of(*source.checkpoint);
    load_masters(assembly, *source.checkpoint);
  }
}

}  // namespace meshtrain
