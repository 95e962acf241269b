#include "checkpoint/huggingface/exporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json_reason.h"
#include "base/mapped_file.h"
#include "checkpoint/huggingface/exact_convert.h"
#include "checkpoint/partial_folder.h"
#include "checkpoint/safetensors.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Tensors = std::unordered_map<std::string, HfTensor>;

constexpr std::int64_t kPieceElements = std::int64_t{1} << 22U;

// The layout's tensors by the names that the record's files have.
Tensors tensors_of(const ModelSpec& spec, const HfRecord& record) {
  const std::string_view embedding = hf_embedding_name(spec.arch);
  bool bare = false;
  for (const HfStoredFile& file : record.files) {
    for (const HfStoredTensor& tensor : file.tensors) bare = bare || tensor.name == embedding;
  }
  Tensors tensors;
  for (HfTensor& tensor : hf_tensors(spec, bare ? "" : hf_prefix(spec.arch))) {
    std::string name = tensor.name;
    tensors.emplace(std::move(name), std::move(tensor));
  }
  return tensors;
}

// Every tensor once, and none that the model does not have.
void check_record(const Tensors& tensors, const HfRecord& record, const std::string& where) {
  std::unordered_map<std::string, int> seen;
  for (const HfStoredFile& file : record.files) {
    for (const HfStoredTensor& tensor : file.tensors) {
      if (!tensors.contains(tensor.name) || ++seen[tensor.name] > 1) {
        throw_user_error(
            "{} remembers a Hugging Face folder with a tensor \"{}\" that its model does not have.", where,
            tensor.name);
      }
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.optional && !seen.contains(name)) {
      throw_user_error("{} remembers a Hugging Face folder without the tensor \"{}\".", where, name);
    }
  }
}

class TensorWriter {
 public:
  TensorWriter(const WeightSource& weights, SafetensorsWriter& file) : weights_(weights), file_(file) {}

  void write(const HfTensor& tensor, DType dtype) {
    name_ = tensor.name;
    dtype_ = dtype;
    if (tensor.transposed) {
      write_transposed(tensor);
      return;
    }
    for (const HfTensor::Part& part : tensor.parts) {
      for (std::int64_t first = 0; first < part.shape.numel(); first += kPieceElements) {
        values_.resize(static_cast<std::size_t>(std::min(kPieceElements, part.shape.numel() - first)));
        weights_.read(part.name, part.shape, first, values_);
        weights_.let_go();
        append(values_);
      }
    }
  }

 private:
  void write_transposed(const HfTensor& tensor) {
    const std::int64_t in = tensor.shape[0];
    const std::int64_t all = tensor.shape[1];
    values_.resize(static_cast<std::size_t>(in * all));  // [all, in]
    std::span<float> rest = values_;
    for (const HfTensor::Part& part : tensor.parts) {
      const auto count = static_cast<std::size_t>(part.shape.numel());
      weights_.read(part.name, part.shape, 0, rest.first(count));
      weights_.let_go();
      rest = rest.subspan(count);
    }
    constexpr std::int64_t kRows = 16;
    for (std::int64_t begin = 0; begin < in; begin += kRows) {
      const std::int64_t rows = std::min(kRows, in - begin);
      rows_.resize(static_cast<std::size_t>(rows * all));
      for (std::int64_t o = 0; o < all; ++o) {
        for (std::int64_t i = 0; i < rows; ++i) {
          rows_[static_cast<std::size_t>(i * all + o)] = values_[static_cast<std::size_t>(o * in + begin + i)];
        }
      }
      append(rows_);
    }
  }

  void append(std::span<const float> values) {
    bytes_.resize(values.size() * static_cast<std::size_t>(size_of(dtype_)));
    if (const auto overflow = narrow(values, dtype_, bytes_)) {
      throw_run_error("the tensor \"{}\" has the value {:g}, which {} cannot hold; export it as another type.",
                      name_, values[*overflow], dtype_ == DType::kF16 ? "fp16" : "bf16");
    }
    file_.append(bytes_);
  }

  const WeightSource& weights_;
  SafetensorsWriter& file_;
  std::string name_;
  DType dtype_ = DType::kF32;
  std::vector<float> values_;
  std::vector<float> rows_;
  std::vector<std::byte> bytes_;
};

void write_weights(const WeightSource& weights, const Tensors& tensors, const HfStoredFile& stored,
                   const fs::path& path, const WriteHook& hook) {
  std::vector<SafetensorsDecl> decls;
  for (const HfStoredTensor& tensor : stored.tensors)
    decls.push_back({tensor.name, tensor.dtype, tensors.at(tensor.name).shape});
  SafetensorsWriter file(path.string(), decls, {{"format", "pt"}}, hook);
  TensorWriter writer(weights, file);
  for (const HfStoredTensor& tensor : stored.tensors) writer.write(tensors.at(tensor.name), tensor.dtype);
  file.finish();
}

std::string index_text(const ModelSpec& spec, const Tensors& tensors, const std::vector<HfStoredFile>& files) {
  Json weight_map = Json::object();
  std::int64_t total = 0;
  for (const HfStoredFile& file : files) {
    for (const HfStoredTensor& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
      total += tensors.at(tensor.name).shape.numel() * size_of(tensor.dtype);
    }
  }
  const Json index = {{"metadata", {{"total_parameters", parameter_count(spec)}, {"total_size", total}}},
                      {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

void write_files(const WeightSource& weights, const ModelSpec& spec, const Tensors& tensors,
                 const HfRecord& record, const std::vector<HfExtraFile>& extras, const fs::path& folder,
                 const WriteHook& hook) {
  for (const HfStoredFile& file : record.files) write_weights(weights, tensors, file, folder / file.name, hook);
  const bool single = record.files.size() == 1 && record.files[0].name == "model.safetensors";
  if (!single) {
    write_and_sync((folder / "model.safetensors.index.json").string(), index_text(spec, tensors, record.files),
                   hook);
  }
  for (const HfExtraFile& extra : extras) {
    const std::string path = (folder / extra.name).string();
    if (extra.from.empty()) {
      write_and_sync(path, extra.text, hook);
    } else {
      write_and_sync(path, MappedFile::open(extra.from, "the file").text(), hook);
    }
  }
  // Last: without it nobody takes the folder for a model.
  write_and_sync((folder / "config.json").string(), record.config_text, hook);
  sync_directory(folder.string(), hook);
}

DType dtype_from(const Json& json) {
  const auto name = json.get<std::string>();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == safetensors_name(dtype)) return dtype;
  }
  throw_user_error("\"{}\" is not a type of weights", name);
}

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && fs::path(name).filename() == name;
}

}  // namespace

HfRecord record_of(const HuggingFaceFolder& folder) {
  return {.config_text = folder.config_text(), .files = folder.files()};
}

Json to_json(const HfRecord& record) {
  Json files = Json::array();
  for (const HfStoredFile& file : record.files) {
    Json tensors = Json::array();
    for (const HfStoredTensor& tensor : file.tensors)
      tensors.push_back({tensor.name, safetensors_name(tensor.dtype)});
    files.push_back({{"name", file.name}, {"tensors", tensors}});
  }
  return {{"config", record.config_text}, {"files", files}};
}

HfRecord hf_record_from_json(const Json& json, const std::string& where) {
  HfRecord record;
  try {
    record.config_text = json.at("config").get<std::string>();
    for (const Json& file : json.at("files")) {
      HfStoredFile& stored = record.files.emplace_back();
      stored.name = file.at("name").get<std::string>();
      if (!is_file_name(stored.name)) throw_user_error("\"{}\" is not the name of a file", stored.name);
      for (const Json& tensor : file.at("tensors"))
        stored.tensors.push_back({tensor.at(0).get<std::string>(), dtype_from(tensor.at(1))});
    }
  } catch (const Json::exception& error) {
    throw_user_error("{}: what it says of the Hugging Face folder that it was made of is damaged: {}.", where,
                     json_reason(error));
  } catch (const UserError& error) {
    throw_user_error("{}: what it says of the Hugging Face folder that it was made of is damaged: {}.", where,
                     error.what());
  }
  return record;
}

std::vector<HfStoredFile> hf_files(const ModelSpec& spec, DType dtype, std::int64_t shard_bytes) {
  std::vector<HfStoredFile> files(1);
  std::int64_t used = 0;
  for (const HfTensor& tensor : hf_tensors(spec, hf_prefix(spec.arch))) {
    if (tensor.optional) continue;
    const std::int64_t bytes = tensor.shape.numel() * size_of(dtype);
    if (used > 0 && used + bytes > shard_bytes) {
      files.emplace_back();
      used = 0;
    }
    files.back().tensors.push_back({tensor.name, dtype});
    used += bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i) files[i].name = shard_name("model", i, files.size());
  return files;
}

void write_hf_folder(const WeightSource& weights, const ModelSpec& spec, const HfRecord& record,
                     const std::vector<HfExtraFile>& extras, const std::string& out, const WriteHook& hook) {
  check_new_folder(out);
  const Tensors tensors = tensors_of(spec, record);
  check_record(tensors, record, weights.path());
  PartialFolder folder(out);
  write_files(weights, spec, tensors, record, extras, folder.contents(), hook);
  folder.commit(hook);
}

}  // namespace meshtrain
