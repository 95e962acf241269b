// Writing a Hugging Face model folder from any source of weights.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/file_writer.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/weight_source.h"
#include "model/spec.h"

namespace meshtrain {

// What makes a folder besides the values of its weights. A checkpoint that was made of a folder remembers it,
// so that the folder made of the checkpoint has the same tensors, bytes and config.json.
struct HfRecord {
  std::string config_text;
  std::vector<HfStoredFile> files;
};
HfRecord record_of(const HuggingFaceFolder& folder);
nlohmann::json to_json(const HfRecord& record);
// Throws UserError naming `where` when it is not what to_json gave.
HfRecord hf_record_from_json(const nlohmann::json& json, const std::string& where);

// One of a model that no folder is known of: all tensors in `dtype`, in files of at most `shard_bytes` (a
// larger tensor alone), named as the library names them.
std::vector<HfStoredFile> hf_files(const ModelSpec& spec, DType dtype,
                                   std::int64_t shard_bytes = 5'000'000'000);

// A file that goes along as it is.
struct HfExtraFile {
  std::string name;
  std::string from;  // empty: it holds `text`
  std::string text = {};
};

// Writes the folder `out`, which must not exist or be empty (else UserError), as a PartialFolder
// (checkpoint/partial_folder.h): it is there once everything is on the disk. Needs memory for a piece of a
// tensor; for GPT-2, whose matrices are transposed, for one matrix. A weight that the file's type cannot hold,
// a record of another model and a failing disk are errors that name the tensor or file.
void write_hf_folder(const WeightSource& weights, const ModelSpec& spec, const HfRecord& record,
                     const std::vector<HfExtraFile>& extras, const std::string& out,
                     const WriteHook& hook = {});

}  // namespace meshtrain
