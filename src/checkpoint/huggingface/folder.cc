#include "checkpoint/huggingface/folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/mapped_file.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/exact_convert.h"
#include "checkpoint/manifest.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

[[noreturn]] void throw_no_weights(const std::string& folder) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (is_there(fs::path(folder) / name)) {
      throw_user_error(
          "{} has its weights in {}, which is a pickle: loading one may run any code. Convert the folder to "
          "safetensors: load it with the Hugging Face library and save_pretrained it with "
          "safe_serialization=True.",
          folder, name);
    }
  }
  throw_user_error("{} has a {}, but no weights: neither {} nor {} is there.", folder, kConfig, kSingle,
                   kIndex);
}

Shape shape_of(const SafetensorsEntry& entry) {
  Shape shape;
  if (entry.dims.size() == 1) shape = {entry.dims[0]};
  if (entry.dims.size() == 2) shape = {entry.dims[0], entry.dims[1]};
  return shape;  // weights have one dimension or two; anything else equals none of them
}

// to[r, c] = from[c, r] of a block of fp32 or 16-bit elements; rows of `from` are `stride` elements apart.
void transpose_rows(DType dtype, std::span<const std::byte> from, std::int64_t stride, std::int64_t rows,
                    std::int64_t columns, std::span<float> to) {
  constexpr std::int64_t kBlock = 64;
  std::array<float, kBlock> line{};
  const std::int64_t size = size_of(dtype);
  for (std::int64_t begin = 0; begin < rows; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, rows - begin);
    const std::span<float> part = std::span(line).first(static_cast<std::size_t>(count));
    for (std::int64_t c = 0; c < columns; ++c) {
      widen(dtype,
            from.subspan(static_cast<std::size_t>((c * stride + begin) * size),
                         static_cast<std::size_t>(count * size)),
            part);
      for (std::int64_t r = 0; r < count; ++r) {
        to[static_cast<std::size_t>((begin + r) * columns + c)] = part[static_cast<std::size_t>(r)];
      }
    }
  }
}

// Elements [first, first + to.size()) of [out, in], where `from` is [in, all] and ours begin at column
// `offset`.
void read_transposed(DType dtype, std::span<const std::byte> from, std::int64_t all, std::int64_t offset,
                     std::int64_t in, std::int64_t first, std::span<float> to) {
  const std::int64_t size = size_of(dtype);
  while (!to.empty()) {
    const std::int64_t row = first / in;
    const std::int64_t column = first % in;
    const auto left = static_cast<std::int64_t>(to.size());
    const bool whole = column == 0 && left >= in;
    const std::int64_t rows = whole ? left / in : 1;
    const std::int64_t columns = whole ? in : std::min(left, in - column);
    const std::int64_t begin = column * all + offset + row;
    transpose_rows(dtype, from.subspan(static_cast<std::size_t>(begin * size)), all, rows, columns,
                   to.first(static_cast<std::size_t>(rows * columns)));
    first += rows * columns;
    to = to.subspan(static_cast<std::size_t>(rows * columns));
  }
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  const fs::path folder(path);
  return is_there(folder / kConfig) && !is_there(folder / kManifestName) && !is_there(folder / "config.toml");
}

std::map<std::string, std::string> parse_hf_index(std::string_view text, const std::string& path) {
  std::map<std::string, std::string> files;
  try {
    const Json json = Json::parse(text);
    for (const auto& [tensor, file] : json.at("weight_map").items()) {
      files[tensor] = file.get<std::string>();
    }
  } catch (const Json::exception& error) {
    throw_user_error("{} is not an index of weights: {}.", path, json_reason(error));
  }
  if (files.empty()) throw_user_error("{} lists no tensors.", path);
  for (const auto& [tensor, file] : files) {
    // An index from elsewhere must not lead outside of its folder.
    if (file.empty() || file == "." || file == ".." || fs::path(file).filename() != file ||
        file.find('\0') != std::string::npos) {
      throw_user_error("{} places the tensor \"{}\" in \"{}\", which is not the name of a file.", path, tensor,
                       file);
    }
  }
  return files;
}

std::vector<std::string> hf_tokenizer_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
                           "generation_config.json", "chat_template.jinja", "chat_template.json"}) {
    if (is_there(fs::path(folder) / name)) names.emplace_back(name);
  }
  return names;
}

HuggingFaceFolder::HuggingFaceFolder(const std::string& path) : path_(path) {
  const std::string config = whole_name(kConfig);
  config_text_ = MappedFile::open(config, "the config of the model folder").text();
  spec_ = spec_of_hf_config(config_text_, config);
  open_files();
  place_tensors();
}

void HuggingFaceFolder::open_files() {
  if (is_there(whole_name(kSingle))) {  // the library, too, prefers it to an index
    add_file(kSingle);
    return;
  }
  const std::string index = whole_name(kIndex);
  if (!is_there(index)) throw_no_weights(path_);
  open_shards(parse_hf_index(MappedFile::open(index, "the index of the weights").text(), index));
}

void HuggingFaceFolder::open_shards(const std::map<std::string, std::string>& weight_map) {
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  for (const std::string& name : names) {
    if (!is_there(whole_name(name))) {
      throw_user_error("{} lists the file {}, which is not there: the folder is incomplete, download the rest.",
                       whole_name(kIndex), name);
    }
    add_file(name);
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto found = found_.find(tensor);
    if (found != found_.end() && found->second.file->name() == whole_name(file)) continue;
    throw_user_error(
        "{} places the tensor \"{}\" in {}, but {}: the index and the files do not belong together.",
        whole_name(kIndex), tensor, file,
        found == found_.end() ? "no file has it" : "it is in " + found->second.file->name());
  }
  for (const auto& [tensor, found] : found_) {
    if (!weight_map.contains(tensor)) {
      throw_user_error(
          "{} has the tensor \"{}\", which {} does not list: the index and the files do not belong together.",
          found.file->name(), tensor, kIndex);
    }
  }
}

void HuggingFaceFolder::add_file(const std::string& name) {
  const auto& reader = readers_.emplace_back(std::make_unique<SafetensorsReader>(whole_name(name)));
  HfStoredFile& stored = stored_.emplace_back();
  stored.name = name;
  for (const SafetensorsEntry& entry : reader->entries()) {
    const auto [place, is_new] = found_.try_emplace(entry.name, Found{&entry, reader.get()});
    if (!is_new) {
      throw_user_error("the tensor \"{}\" is both in {} and in {}: one of them does not belong here.",
                       entry.name, place->second.file->name(), reader->name());
    }
    if (is_hf_buffer(entry.name)) {
      if (buffers_++ == 0) first_buffer_ = entry.name;
      continue;
    }
    if (!entry.dtype || !is_weight_dtype(*entry.dtype)) {
      throw_user_error(
          "{}: the tensor \"{}\" is of the type {}; weights must be F32, BF16 or F16 (quantized weights are "
          "not "
          "supported).",
          reader->name(), entry.name, entry.dtype_name);
    }
    stored.tensors.push_back({entry.name, *entry.dtype});
  }
}

void HuggingFaceFolder::place_tensors() {
  const std::string embedding(hf_embedding_name(spec_.arch));
  const std::string prefix(found_.contains(embedding) ? "" : hf_prefix(spec_.arch));
  std::set<std::string> known;
  for (const HfTensor& tensor : hf_tensors(spec_, prefix)) {
    known.insert(tensor.name);
    const auto found = found_.find(tensor.name);
    if (found != found_.end()) {
      place(tensor, found->second);
    } else if (!tensor.optional) {
      throw_user_error("{} has no tensor \"{}\" {}, which its {} asks for{}.", path_, tensor.name,
                       tensor.shape.to_string(), kConfig,
                       tensor.name == "lm_head.weight" ? " (tie_word_embeddings is false)" : "");
    }
  }
  for (const HfStoredFile& file : stored_) {
    for (const HfStoredTensor& tensor : file.tensors) {
      if (known.contains(tensor.name)) continue;
      throw_user_error("{}: there is no place for the tensor \"{}\" in the model that {} describes.",
                       whole_name(file.name), tensor.name, kConfig);
    }
  }
  dtype_ = *places_.at("embed.tokens").entry->dtype;
}

void HuggingFaceFolder::place(const HfTensor& tensor, Found found) {
  if (shape_of(*found.entry) != tensor.shape) {
    throw_user_error("{}: the tensor \"{}\" is [{}], but the {} asks for {}.", found.file->name(), tensor.name,
                     fmt::join(found.entry->dims, ", "), kConfig, tensor.shape.to_string());
  }
  const std::int64_t all = tensor.transposed ? tensor.shape[1] : tensor.shape[0];
  std::int64_t offset = 0;
  for (const HfTensor::Part& part : tensor.parts) {
    const Place where = {.entry = found.entry,
                         .file = found.file,
                         .shape = part.shape,
                         .transposed = tensor.transposed,
                         .offset = offset,
                         .all = all};
    if (tensor.optional) {
      head_copy_ = where;
    } else {
      places_[part.name] = where;
    }
    offset += part.shape[0];
  }
}

void HuggingFaceFolder::read(const std::string& name, const Shape& whole, std::int64_t first,
                             std::span<float> to) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw_user_error("{} has no parameter {}: it is of another model.", path_, name);
  const Place& place = found->second;
  if (place.shape != whole) {
    throw_user_error("{} has the parameter {} as {}, but it should be {}: it is of another model.", path_, name,
                     place.shape.to_string(), whole.to_string());
  }
  check(first >= 0 && first + static_cast<std::int64_t>(to.size()) <= whole.numel(),
        "a range of a parameter reaches beyond it");
  const DType dtype = *place.entry->dtype;
  const std::int64_t in = whole.rank() > 1 ? whole[1] : 1;
  if (place.transposed) {
    read_transposed(dtype, place.entry->data, place.all, place.offset, in, first, to);
  } else {
    const auto bytes_of = [&](const Place& where) {
      const std::int64_t size = size_of(*where.entry->dtype);
      return where.entry->data.subspan(static_cast<std::size_t>((where.offset * in + first) * size),
                                       to.size() * static_cast<std::size_t>(size));
    };
    widen(dtype, bytes_of(place), to);
    if (name == "embed.tokens" && head_copy_.entry != nullptr) {
      std::vector<float> copy(to.size());
      widen(*head_copy_.entry->dtype, bytes_of(head_copy_), copy);
      if (std::memcmp(copy.data(), to.data(), copy.size() * sizeof(float)) != 0) {
        throw_user_error(
            "{}: {} ties the output layer to the embedding, but lm_head.weight is not equal to it. Set "
            "tie_word_embeddings to false if the file is right.",
            path_, kConfig);
      }
    }
  }
}

void HuggingFaceFolder::check_tied_head() const {
  if (head_copy_.entry == nullptr) return;
  constexpr std::int64_t kPiece = std::int64_t{1} << 22U;
  const Shape& shape = head_copy_.shape;
  std::vector<float> values;
  for (std::int64_t first = 0; first < shape.numel(); first += kPiece) {
    values.resize(static_cast<std::size_t>(std::min(kPiece, shape.numel() - first)));
    read("embed.tokens", shape, first, values);
    let_go();
  }
}

void HuggingFaceFolder::let_go() const {
  for (const auto& reader : readers_) reader->let_go();
}

}  // namespace meshtrain
