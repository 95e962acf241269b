// A Hugging Face model folder as a source of weights: config.json with model.safetensors, or with the shards
// that model.safetensors.index.json lists. Bytes are read from the mapped files when they are asked for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/huggingface/layout.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "model/spec.h"

namespace meshtrain {

// What a folder's safetensors files hold, in the order of their bytes: what gives the same files again.
struct HfStoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  friend bool operator==(const HfStoredTensor&, const HfStoredTensor&) = default;
};
struct HfStoredFile {
  std::string name;
  std::vector<HfStoredTensor> tensors;
  friend bool operator==(const HfStoredFile&, const HfStoredFile&) = default;
};

// Whether `path` is meant as one: it has a config.json and is no run folder and no checkpoint.
bool is_hf_folder(const std::string& path);

// {tensor: file} of an index; throws UserError naming `path`.
std::map<std::string, std::string> parse_hf_index(std::string_view text, const std::string& path);

// Files beside the weights that belong to the tokenizer and to generation, of those in `folder`.
std::vector<std::string> hf_tokenizer_files(const std::string& folder);

class HuggingFaceFolder : public WeightSource {
 public:
  // Everything but the weights' values is checked: throws UserError naming the file and what is wrong.
  explicit HuggingFaceFolder(const std::string& path);

  const std::string& path() const override { return path_; }
  const ModelSpec& spec() const { return spec_; }
  // Where a tied model's file has lm_head.weight too, what is read of the embedding is compared with it: throws
  // UserError when they differ.
  void read(const std::string& name, const Shape& whole, std::int64_t first,
            std::span<float> to) const override;
  void let_go() const override;
  // Reads as much of the weights as a tied model's two copies are: throws UserError when they differ.
  void check_tied_head() const;

  const std::string& config_text() const { return config_text_; }
  // Buffers that are no weights are left out.
  const std::vector<HfStoredFile>& files() const { return stored_; }
  // Buffers that the files have and that are left out: the first one, and how many.
  const std::string& first_buffer() const { return first_buffer_; }
  std::int64_t buffers() const { return buffers_; }
  // The type that the token embedding is stored in.
  DType dtype() const { return dtype_; }

 private:
  // Where a parameter lies: entry elements [in, all] or [all, in], ours from output `offset` on.
  struct Place {
    const SafetensorsEntry* entry = nullptr;
    const SafetensorsReader* file = nullptr;
    Shape shape;
    bool transposed = false;
    std::int64_t offset = 0;  // outputs before ours
    std::int64_t all = 0;     // outputs of the tensor
  };
  struct Found {
    const SafetensorsEntry* entry = nullptr;
    const SafetensorsReader* file = nullptr;
  };

  void open_files();
  void open_shards(const std::map<std::string, std::string>& weight_map);
  void add_file(const std::string& name);
  void place_tensors();
  void place(const HfTensor& tensor, Found found);
  std::string whole_name(const std::string& file) const { return path_ + "/" + file; }

  std::string path_;
  std::string config_text_;
  ModelSpec spec_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::vector<HfStoredFile> stored_;
  std::unordered_map<std::string, Found> found_;
  std::unordered_map<std::string, Place> places_;
  Place head_copy_;  // a tied model's lm_head.weight, if the files have it
  std::string first_buffer_;
  std::int64_t buffers_ = 0;
  DType dtype_ = DType::kF32;
};

}  // namespace meshtrain
